-- +goose Up
ALTER TABLE operations
    DROP CONSTRAINT operations_kind_check,
    ADD CONSTRAINT operations_kind_check
        CHECK (kind IN ('provision', 'program', 'attach', 'detach', 'configure', 'retire', 'bind', 'unbind'));

-- What an accelerator request refers to, so that its handle is its holder's for as long as it has it.
ALTER TABLE attach_handles ADD CONSTRAINT attach_handles_taken UNIQUE (uuid, operation_id);

ALTER TABLE arqs
    ADD COLUMN service      text CHECK (service <> ''), -- the holder, where that is no instance
    ADD COLUMN reason       text NOT NULL DEFAULT '',
    ADD COLUMN operation_id uuid, -- bound it, or tried to
    -- The claim: the operation that works on it. It is a column of the row because each change of it comes with one of the
    -- row, and it cannot outlive its operation, as those on deployables cannot.
    ADD COLUMN claimed_by   uuid,
    ADD COLUMN claim_open   boolean GENERATED ALWAYS AS (CASE WHEN claimed_by IS NOT NULL THEN true END) STORED,
    ADD COLUMN seen_at      timestamptz NOT NULL DEFAULT now(), -- when its instance was last known to exist
    DROP CONSTRAINT arqs_check,
    DROP CONSTRAINT arqs_handle_uuid_fkey,
    ADD CONSTRAINT arqs_handle_fkey FOREIGN KEY (handle_uuid, operation_id) REFERENCES attach_handles (uuid, operation_id),
    ADD CONSTRAINT arqs_claim_fkey FOREIGN KEY (claimed_by, claim_open) REFERENCES operations (id, open),
    ADD CONSTRAINT arqs_bound_check CHECK (state <> 'Bound' OR handle_uuid IS NOT NULL),
    ADD CONSTRAINT arqs_handle_check CHECK (handle_uuid IS NULL OR (operation_id IS NOT NULL AND num_nonnulls(instance_uuid, service) = 1)),
    ADD CONSTRAINT arqs_free_check CHECK (state NOT IN ('Initial', 'Unbound')
        OR num_nonnulls(host, provider_uuid, instance_uuid, service, operation_id, handle_uuid) = 0),
    ADD CONSTRAINT arqs_reason_check CHECK ((state IN ('BindFailed', 'UnbindFailed')) = (reason <> '')),
    ADD CONSTRAINT arqs_claim_check CHECK (claimed_by IS NOT NULL OR state NOT IN ('BindStarted', 'Deleting'));
CREATE INDEX arqs_claimed ON arqs (claimed_by) WHERE claimed_by IS NOT NULL;
CREATE INDEX arqs_by_project ON arqs (project, id);
CREATE INDEX arqs_by_host ON arqs (host, id) WHERE host IS NOT NULL;
CREATE INDEX arqs_by_state ON arqs (state, id) WHERE state <> 'Bound';
CREATE INDEX arqs_bound ON arqs (seen_at) WHERE state = 'Bound';
CREATE TRIGGER note_update BEFORE UPDATE OF state, project ON arqs FOR EACH ROW EXECUTE FUNCTION note_update();

-- What is said of a request: why it failed, and who has it.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION arqs_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'arq', n.uuid::text, coalesce(n.host, o.host, ''), e.axis, e.old, e.new, e.data
    FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid CROSS JOIN LATERAL (VALUES
        (1, 'state', o.state, n.state, nullif(jsonb_strip_nulls(jsonb_build_object('reason', nullif(n.reason, ''),
            'instance', n.instance_uuid, 'service', n.service, 'handle', n.handle_uuid)), '{}')),
        (2, 'project', coalesce(o.project, ''), coalesce(n.project, ''), NULL)) AS e (position, axis, old, new, data)
    WHERE e.old <> e.new ORDER BY n.id, e.position;
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION arqs_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
    SELECT 'arq', n.uuid::text, coalesce(n.host, ''), 'state', o.state, n.state
    FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid WHERE o.state <> n.state ORDER BY n.id;
    RETURN NULL;
END $$;
-- +goose StatementEnd
DROP TRIGGER note_update ON arqs;
DELETE FROM arqs WHERE claimed_by IS NOT NULL OR service IS NOT NULL;
DELETE FROM operations WHERE kind IN ('bind', 'unbind');
DROP INDEX arqs_by_project, arqs_by_host, arqs_by_state;
ALTER TABLE arqs
    DROP CONSTRAINT arqs_bound_check,
    DROP COLUMN service, DROP COLUMN reason, DROP COLUMN operation_id, DROP COLUMN claim_open, DROP COLUMN claimed_by, DROP COLUMN seen_at,
    ADD CONSTRAINT arqs_handle_uuid_fkey FOREIGN KEY (handle_uuid) REFERENCES attach_handles,
    ADD CONSTRAINT arqs_check CHECK (state <> 'Bound' OR (handle_uuid IS NOT NULL AND instance_uuid IS NOT NULL));
ALTER TABLE attach_handles DROP CONSTRAINT attach_handles_taken;
ALTER TABLE operations
    DROP CONSTRAINT operations_kind_check,
    ADD CONSTRAINT operations_kind_check CHECK (kind IN ('provision', 'program', 'attach', 'detach', 'configure', 'retire'));
