-- +goose Up
-- Who asked for an operation: a name may be several people's, as of a static token and of a user of Keystone.
ALTER TABLE operations ADD COLUMN actor_id text NOT NULL DEFAULT '';
DROP INDEX operations_by_idempotency_key;
CREATE UNIQUE INDEX operations_by_idempotency_key ON operations (actor, actor_id, project, idempotency_key);

-- +goose Down
DROP INDEX operations_by_idempotency_key;
UPDATE operations SET idempotency_key = NULL, fingerprint = NULL
    WHERE idempotency_key IS NOT NULL AND id NOT IN (SELECT DISTINCT ON (actor, project, idempotency_key) id FROM operations
        WHERE idempotency_key IS NOT NULL ORDER BY actor, project, idempotency_key, admitted_at);
CREATE UNIQUE INDEX operations_by_idempotency_key ON operations (actor, project, idempotency_key);
ALTER TABLE operations DROP COLUMN actor_id;
