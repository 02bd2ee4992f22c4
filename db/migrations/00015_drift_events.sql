-- +goose Up
ALTER TABLE placement_drift
    -- What it is about, for as long as it lasts, whatever becomes of that meanwhile.
    ADD COLUMN subject_kind text NOT NULL DEFAULT '',
    ADD COLUMN subject_id   text NOT NULL DEFAULT '',
    -- What may be so for a moment, while Nova is at work, counts from the second time on.
    ADD COLUMN counts       boolean NOT NULL GENERATED ALWAYS AS
        (times > 1 OR class NOT IN ('unknown_allocation', 'missing_allocation')) STORED;

-- +goose StatementBegin
-- The accelerator that has the provider when it is found, else the provider, else the host.
CREATE FUNCTION placement_drift_found() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    SELECT 'accelerator', uuid::text INTO NEW.subject_kind, NEW.subject_id FROM deployables WHERE provider_uuid = NEW.provider_uuid;
    IF NOT FOUND AND NEW.provider_uuid = '00000000-0000-0000-0000-000000000000' THEN
        NEW.subject_kind := 'host';
        NEW.subject_id := NEW.host;
    ELSIF NOT FOUND THEN
        NEW.subject_kind := 'resource_provider';
        NEW.subject_id := NEW.provider_uuid::text;
    END IF;
    RETURN NEW;
END $$;

-- The value of the axis is the difference in words, and empty while there is none. What was found and repaired at once
-- differed all the same: that is two events. What is over by itself was not found when it ended.
CREATE FUNCTION placement_drift_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    about    jsonb := jsonb_build_object('provider', NEW.provider_uuid, 'name', NEW.provider_name);
    repaired boolean := coalesce(NEW.repaired_at = NEW.last_found_at, false);
    was      text := '';
    is_now   text := CASE WHEN NEW.counts AND NEW.repaired_at IS NULL THEN NEW.detail ELSE '' END;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        was := CASE WHEN OLD.counts AND OLD.repaired_at IS NULL THEN OLD.detail ELSE '' END;
        repaired := repaired AND OLD.repaired_at IS DISTINCT FROM NEW.repaired_at;
    END IF;
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT NEW.subject_kind, NEW.subject_id, NEW.host, 'drift_' || NEW.class, e.old, e.new, e.data
    FROM (VALUES
        (1, '', NEW.detail, about, repaired AND was = ''),
        (2, CASE WHEN repaired AND was = '' THEN NEW.detail ELSE was END, is_now,
            CASE WHEN is_now = '' THEN about || jsonb_build_object('repaired', repaired) ELSE about END,
            repaired OR was <> is_now)) AS e (position, old, new, data, happened)
    WHERE e.happened ORDER BY e.position;
    RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER placement_drift_inserted BEFORE INSERT ON placement_drift
    FOR EACH ROW EXECUTE FUNCTION placement_drift_found();
CREATE TRIGGER placement_drift_found BEFORE UPDATE ON placement_drift
    FOR EACH ROW WHEN (OLD.repaired_at IS NOT NULL OR OLD.subject_kind = '') EXECUTE FUNCTION placement_drift_found();
UPDATE placement_drift SET detail = detail;
CREATE TRIGGER placement_drift_changed AFTER INSERT OR UPDATE ON placement_drift
    FOR EACH ROW EXECUTE FUNCTION placement_drift_changed();
INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
SELECT subject_kind, subject_id, host, 'drift_' || class, '', detail, jsonb_build_object('provider', provider_uuid, 'name', provider_name)
FROM placement_drift WHERE counts AND repaired_at IS NULL;

-- +goose Down
DROP TRIGGER placement_drift_inserted ON placement_drift;
DROP TRIGGER placement_drift_found ON placement_drift;
DROP TRIGGER placement_drift_changed ON placement_drift;
DROP FUNCTION placement_drift_found, placement_drift_changed;
ALTER TABLE placement_drift DROP COLUMN counts, DROP COLUMN subject_kind, DROP COLUMN subject_id;
