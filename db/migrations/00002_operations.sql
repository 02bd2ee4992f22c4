-- +goose Up

-- Operations, and what they hold while they work.

-- The kinds of operations. After all migrations, cyborg migrate adds every
-- kind that its binary knows, so that a new kind needs no migration.
CREATE TABLE operation_kinds (
    kind             text PRIMARY KEY,
    closes_placement boolean NOT NULL -- Placement must not give away what such an operation has claimed
);

-- An operation outlives the host that it was about.
CREATE TABLE operations (
    id                   uuid PRIMARY KEY,
    kind                 text NOT NULL REFERENCES operation_kinds,
    state                text NOT NULL DEFAULT 'admitted'
                         CHECK (state IN ('admitted', 'running', 'succeeded', 'failed', 'needs_operator', 'cancelled')),
    open                 boolean NOT NULL GENERATED ALWAYS AS (state IN ('admitted', 'running')) STORED,
    host                 text NOT NULL,
    first_subject        int NOT NULL DEFAULT 0 CHECK (first_subject = 0), -- for operations_have_a_subject
    input                jsonb NOT NULL,
    before               jsonb NOT NULL DEFAULT '{}', -- what the undo and the last change need to know
    steps                jsonb NOT NULL DEFAULT '[]',
    result               jsonb,
    error                jsonb,
    -- who asked
    actor                text NOT NULL,
    actor_id             text NOT NULL DEFAULT '',    -- a name may be that of a static token and of a user of Keystone
    project              text NOT NULL DEFAULT '',
    request_id           text NOT NULL DEFAULT '',
    idempotency_key      text CHECK (idempotency_key <> ''),
    fingerprint          text,                        -- of the request that carried the key
    retry_of             uuid REFERENCES operations ON DELETE SET NULL,
    cancel_at            timestamptz,
    -- Nova waits for the result of a bind, and has not been notified of it yet. It is set at the
    -- admission, so that it does not depend on how the run ends; whoever has notified Nova clears it.
    notification_pending boolean NOT NULL DEFAULT false,
    admitted_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at           timestamptz,
    ended_at             timestamptz,
    UNIQUE (id, open), -- to which claims refer
    CONSTRAINT operations_ended_at CHECK (open = (ended_at IS NULL)),
    CONSTRAINT operations_started_at CHECK (state NOT IN ('running', 'succeeded', 'needs_operator') OR started_at IS NOT NULL),
    CONSTRAINT operations_failure_has_error CHECK ((state IN ('failed', 'needs_operator', 'cancelled')) = (error IS NOT NULL)),
    CONSTRAINT operations_key_has_fingerprint CHECK ((idempotency_key IS NULL) = (fingerprint IS NULL)),
    CONSTRAINT operations_bind_notifies CHECK (kind = 'bind' OR NOT notification_pending)
);
-- Of several requests with one key, one is admitted.
CREATE UNIQUE INDEX operations_by_idempotency_key ON operations (actor, actor_id, project, idempotency_key);
-- Keys are forgotten after a while.
CREATE INDEX operations_idempotent ON operations (admitted_at) WHERE idempotency_key IS NOT NULL;
-- Lists have the newest first, of all operations or of a host.
CREATE INDEX operations_newest ON operations (admitted_at DESC, id DESC);
CREATE INDEX operations_by_host ON operations (host, admitted_at DESC, id DESC);
-- Each of these has only the few operations that are in such a state now, among all that are kept.
CREATE INDEX operations_open ON operations (admitted_at) WHERE open;
CREATE INDEX operations_in_need ON operations (admitted_at DESC, id DESC) WHERE state = 'needs_operator';
CREATE INDEX operations_to_notify ON operations (admitted_at, id) WHERE notification_pending AND NOT open;
-- The oldest are pruned, and their retries refer to them no longer.
CREATE INDEX operations_ended ON operations (ended_at) WHERE NOT open;
CREATE INDEX operations_by_retry ON operations (retry_of) WHERE retry_of IS NOT NULL;

-- What an operation is about; position 0 is what it was requested for.
CREATE TABLE operation_subjects (
    operation_id uuid NOT NULL REFERENCES operations ON DELETE CASCADE,
    position     int NOT NULL CHECK (position >= 0),
    kind         text NOT NULL,
    subject_id   text NOT NULL CHECK (subject_id <> ''),
    PRIMARY KEY (operation_id, position)
);
-- The operations of an accelerator, a host and so on.
CREATE INDEX operation_subjects_by_subject ON operation_subjects (kind, subject_id, operation_id);
-- No operation without a subject: its subject 0 must exist when the transaction commits.
ALTER TABLE operations ADD CONSTRAINT operations_have_a_subject
    FOREIGN KEY (id, first_subject) REFERENCES operation_subjects (operation_id, position) DEFERRABLE INITIALLY DEFERRED;

-- The claim is the lock. A deployable has at most one, and an operation that has ended has none:
-- its terminal state turns its generated column "open" false, which the reference below refuses
-- while a claim is left.
CREATE TABLE claims (
    deployable_uuid uuid PRIMARY KEY REFERENCES deployables,
    operation_id    uuid NOT NULL,
    operation_open  boolean NOT NULL DEFAULT true CHECK (operation_open),
    claimed_at      timestamptz NOT NULL DEFAULT now(),
    FOREIGN KEY (operation_id, operation_open) REFERENCES operations (id, open)
);
-- An operation releases its claims when it ends.
CREATE INDEX claims_by_operation ON claims (operation_id);

-- An UPDATE could hand a claim to another operation. It would evade the primary key, which decides
-- who gets the claim, and would write no event.
-- +goose StatementBegin
CREATE FUNCTION refuse_handover() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a claim is taken and released, never handed over' USING ERRCODE = 'integrity_constraint_violation';
END $$;
-- +goose StatementEnd
CREATE TRIGGER refuse_handover BEFORE UPDATE ON claims FOR EACH STATEMENT EXECUTE FUNCTION refuse_handover();

-- One-time URLs of images in Glance. Whoever has the secret may fetch the image while the operation
-- runs; only the hash of the secret is here. Every conductor serves them. A row is deleted when its
-- host has the image, or else after it has expired.
CREATE TABLE image_urls (
    operation_id    uuid NOT NULL REFERENCES operations ON DELETE CASCADE,
    deployable_uuid uuid NOT NULL,
    secret          bytea NOT NULL UNIQUE CHECK (length(secret) = 32), -- its SHA-256
    host            text NOT NULL CHECK (host <> ''),
    image           jsonb NOT NULL,
    size            bigint NOT NULL CHECK (size >= 0),                 -- bytes
    valid           interval NOT NULL CHECK (valid > interval '0'),    -- after each use
    expires_at      timestamptz NOT NULL,
    PRIMARY KEY (operation_id, deployable_uuid)
);
-- Those that are over are deleted.
CREATE INDEX image_urls_by_end ON image_urls (expires_at);
