-- +goose Up

-- Attributes that were set through the API, beside those that the driver reports: no report touches them.
ALTER TABLE deployables ADD COLUMN attributes_set jsonb NOT NULL DEFAULT '[]'
    CHECK (jsonb_typeof(attributes_set) = 'array');
CREATE INDEX deployables_with_attributes_set ON deployables (id) WHERE attributes_set <> '[]';

-- +goose StatementBegin
CREATE FUNCTION attributes_set_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    VALUES ('accelerator', NEW.uuid::text, NEW.host, 'attributes', '', '', jsonb_build_object('attributes', NEW.attributes_set));
    RETURN NULL;
END $$;

CREATE FUNCTION device_profiles_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, axis, from_value, to_value, data)
    SELECT 'device_profile', n.uuid::text, 'name', '', n.name, jsonb_build_object('groups', n.groups) FROM new_rows n ORDER BY n.id;
    RETURN NULL;
END $$;

CREATE FUNCTION device_profiles_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, axis, from_value, to_value)
    SELECT 'device_profile', o.uuid::text, 'name', o.name, '' FROM old_rows o ORDER BY o.id;
    RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER attributes_set_changed AFTER UPDATE OF attributes_set ON deployables
    FOR EACH ROW WHEN (OLD.attributes_set <> NEW.attributes_set) EXECUTE FUNCTION attributes_set_changed();
CREATE TRIGGER device_profiles_inserted AFTER INSERT ON device_profiles
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION device_profiles_inserted();
CREATE TRIGGER device_profiles_deleted AFTER DELETE ON device_profiles
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION device_profiles_deleted();

-- +goose Down
DROP TRIGGER device_profiles_deleted ON device_profiles;
DROP TRIGGER device_profiles_inserted ON device_profiles;
DROP TRIGGER attributes_set_changed ON deployables;
DROP FUNCTION device_profiles_deleted, device_profiles_inserted, attributes_set_changed;
ALTER TABLE deployables DROP COLUMN attributes_set;
