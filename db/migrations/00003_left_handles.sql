-- +goose Up

-- What a handle was left with: it may still be attached on its host, or be used there, though nobody has it in the
-- records, because it was taken back by force, or because a host that had been forgotten came back with it. Nobody gets
-- it until the host has settled that.
ALTER TABLE attach_handles
    ADD COLUMN left_kind text CHECK (left_kind IN ('instance', 'host', 'service')),
    ADD COLUMN left_id text CHECK (left_id <> ''),
    ADD COLUMN left_operation uuid, -- attached it
    ADD CONSTRAINT attach_handles_left_check CHECK (num_nulls(left_kind, left_id, left_operation) IN (0, 3)),
    ADD CONSTRAINT attach_handles_left_or_held_check CHECK (left_kind IS NULL OR holder_kind IS NULL);
CREATE INDEX attach_handles_left ON attach_handles (host) WHERE left_kind IS NOT NULL;

-- An operation outlives the host that it was about.
ALTER TABLE operations
    DROP CONSTRAINT operations_host_fkey;

-- +goose StatementBegin
CREATE FUNCTION hosts_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
    VALUES ('host', OLD.name, OLD.name, 'boot', OLD.boot_id, '');
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER hosts_deleted AFTER DELETE ON hosts FOR EACH ROW EXECUTE FUNCTION hosts_deleted();

-- +goose Down
DROP TRIGGER hosts_deleted ON hosts;
DROP FUNCTION hosts_deleted;
DELETE FROM operations WHERE host NOT IN (SELECT name FROM hosts);
ALTER TABLE operations
    ADD CONSTRAINT operations_host_fkey FOREIGN KEY (host) REFERENCES hosts;
ALTER TABLE attach_handles DROP COLUMN left_kind, DROP COLUMN left_id, DROP COLUMN left_operation;
