-- +goose Up
-- The accelerators that the instance has when it is found, for as long as it lasts, whatever becomes of them meanwhile.
ALTER TABLE instance_drift ADD COLUMN accelerators uuid[] NOT NULL DEFAULT '{}';

-- +goose StatementBegin
CREATE FUNCTION instance_drift_found() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.accelerators := ARRAY(
        SELECT DISTINCT h.deployable_uuid FROM arqs a JOIN attach_handles h ON h.uuid = a.handle_uuid
        WHERE a.instance_uuid = NEW.instance_uuid ORDER BY h.deployable_uuid);
    RETURN NEW;
END $$;

-- The value of the axis is the difference in words, and empty while there is none, as of what differs in Placement. It is told of
-- each accelerator; of the host where there was none.
CREATE FUNCTION instance_drift_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    was    text := '';
    is_now text := CASE WHEN NEW.counts AND NEW.repaired_at IS NULL THEN NEW.detail ELSE '' END;
    about  jsonb := jsonb_build_object('instance', NEW.instance_uuid);
BEGIN
    IF TG_OP = 'UPDATE' THEN
        was := CASE WHEN OLD.counts AND OLD.repaired_at IS NULL THEN OLD.detail ELSE '' END;
    END IF;
    IF was = is_now THEN
        RETURN NULL;
    END IF;
    IF is_now = '' THEN
        about := about || '{"repaired": false}';
    END IF;
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'accelerator', a::text, NEW.host, 'drift_' || NEW.class, was, is_now, about FROM unnest(NEW.accelerators) AS a
    UNION ALL
    SELECT 'host', NEW.host, NEW.host, 'drift_' || NEW.class, was, is_now, about WHERE NEW.accelerators = '{}';
    RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER instance_drift_inserted BEFORE INSERT ON instance_drift
    FOR EACH ROW EXECUTE FUNCTION instance_drift_found();
CREATE TRIGGER instance_drift_found BEFORE UPDATE ON instance_drift
    FOR EACH ROW WHEN (OLD.repaired_at IS NOT NULL) EXECUTE FUNCTION instance_drift_found();
UPDATE instance_drift d SET accelerators = ARRAY(
    SELECT DISTINCT h.deployable_uuid FROM arqs a JOIN attach_handles h ON h.uuid = a.handle_uuid
    WHERE a.instance_uuid = d.instance_uuid ORDER BY h.deployable_uuid) WHERE repaired_at IS NULL;
CREATE TRIGGER instance_drift_changed AFTER INSERT OR UPDATE ON instance_drift
    FOR EACH ROW EXECUTE FUNCTION instance_drift_changed();
INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
SELECT 'accelerator', a::text, host, 'drift_' || class, '', detail, jsonb_build_object('instance', instance_uuid)
FROM instance_drift CROSS JOIN LATERAL unnest(accelerators) AS a WHERE counts AND repaired_at IS NULL
UNION ALL
SELECT 'host', host, host, 'drift_' || class, '', detail, jsonb_build_object('instance', instance_uuid)
FROM instance_drift WHERE counts AND repaired_at IS NULL AND accelerators = '{}';

-- +goose Down
DROP TRIGGER instance_drift_inserted ON instance_drift;
DROP TRIGGER instance_drift_found ON instance_drift;
DROP TRIGGER instance_drift_changed ON instance_drift;
DROP FUNCTION instance_drift_found, instance_drift_changed;
ALTER TABLE instance_drift DROP COLUMN accelerators;
