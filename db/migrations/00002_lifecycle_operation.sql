-- +goose Up

-- Which operation brought an accelerator to its lifecycle, so that whoever comes too late is told to whom it lost. Null
-- where none did: it was found so, or the repair that did it belongs to no operation. A trigger writes it, so that no
-- change can forget it.
ALTER TABLE deployables ADD COLUMN lifecycle_operation uuid;

-- +goose StatementBegin
CREATE FUNCTION note_lifecycle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.lifecycle_operation := nullif(current_setting('cyborg.operation', true), '')::uuid;
    RETURN NEW;
END $$;
-- +goose StatementEnd

CREATE TRIGGER note_lifecycle BEFORE UPDATE OF lifecycle ON deployables
    FOR EACH ROW WHEN (OLD.lifecycle <> NEW.lifecycle) EXECUTE FUNCTION note_lifecycle();

-- +goose Down
DROP TRIGGER note_lifecycle ON deployables;
DROP FUNCTION note_lifecycle;
ALTER TABLE deployables DROP COLUMN lifecycle_operation;
