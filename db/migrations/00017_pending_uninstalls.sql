-- +goose Up

-- Since when an accelerator is out of service without its driver having uninstalled it, because its host did not show it then.
ALTER TABLE deployables ADD COLUMN uninstall_pending_since timestamptz,
    ADD CONSTRAINT deployables_served_is_installed CHECK (uninstall_pending_since IS NULL OR lifecycle <> 'ready');
CREATE INDEX deployables_uninstall_pending ON deployables (id) WHERE uninstall_pending_since IS NOT NULL;

-- What was forgotten while its host may have had it installed. If it comes back, it has to be uninstalled.
CREATE TABLE forgotten_installs (
    host       text NOT NULL,
    local_name text NOT NULL,
    PRIMARY KEY (host, local_name)
);

-- The events of those few are written row by row, so that no other change of an accelerator pays for them.
-- +goose StatementBegin
CREATE FUNCTION uninstall_pending_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    VALUES ('accelerator', NEW.uuid, NEW.host, 'installation',
        CASE WHEN OLD.uninstall_pending_since IS NULL THEN '' ELSE 'uninstall_pending' END,
        CASE WHEN NEW.uninstall_pending_since IS NULL THEN '' ELSE 'uninstall_pending' END, '{}');
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER uninstall_pending_changed AFTER UPDATE OF uninstall_pending_since ON deployables FOR EACH ROW
    WHEN ((OLD.uninstall_pending_since IS NULL) <> (NEW.uninstall_pending_since IS NULL)) EXECUTE FUNCTION uninstall_pending_changed();
