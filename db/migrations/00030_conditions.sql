-- +goose Up

-- What the driver says about a deployable: objects with code, level and message, the most severe first. Since when each is there, by its
-- code, and whether one of them keeps the deployable from everybody who does not have it.
ALTER TABLE deployables
    ADD COLUMN conditions jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(conditions) = 'array'),
    ADD COLUMN conditions_since jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN unready boolean NOT NULL GENERATED ALWAYS AS (conditions @> '[{"level": "unready"}]') STORED;
CREATE INDEX deployables_unready ON deployables (id) WHERE unready;

-- conditions_named lists conditions for people: unready unreadable, degraded ecc_errors.
CREATE FUNCTION conditions_named(conditions jsonb) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN (SELECT coalesce(string_agg((c ->> 'level') || ' ' || (c ->> 'code'), ', ' ORDER BY place), '')
            FROM jsonb_array_elements(conditions) WITH ORDINALITY AS e (c, place));

-- A condition is as old as it has been at this level, whatever its message says meanwhile.
-- +goose StatementBegin
CREATE FUNCTION deployables_conditions_since() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before jsonb := '[]';
    since  jsonb := '{}';
BEGIN
    IF TG_OP = 'UPDATE' THEN
        before := OLD.conditions;
        since := OLD.conditions_since;
    END IF;
    NEW.conditions_since := (
        SELECT coalesce(jsonb_object_agg(n ->> 'code', CASE
            WHEN before @> jsonb_build_array(jsonb_build_object('code', n ->> 'code', 'level', n ->> 'level')) AND since ? (n ->> 'code')
            THEN since -> (n ->> 'code') ELSE to_jsonb(clock_timestamp()) END), '{}')
        FROM jsonb_array_elements(NEW.conditions) AS n);
    RETURN NEW;
END $$;

-- This event is written row by row, so that no other change of an accelerator pays for it.
CREATE FUNCTION conditions_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    VALUES ('accelerator', NEW.uuid::text, NEW.host, 'conditions', conditions_named(OLD.conditions), conditions_named(NEW.conditions),
            jsonb_build_object('conditions', NEW.conditions));
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION deployables_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'accelerator', n.uuid::text, n.host, e.axis, '', e.value, e.data
    FROM new_rows n CROSS JOIN LATERAL (VALUES
        (1, 'presence',       n.presence,       jsonb_build_object('deployable', n.name, 'device', n.device_uuid)),
        (2, 'name',           n.accelerator,    NULL::jsonb),
        (3, 'lifecycle',      n.lifecycle,      NULL::jsonb),
        (4, 'administration', n.administration, CASE WHEN n.administration = 'maintaining'
            THEN jsonb_build_object('reason', n.maintain_reason, 'by', n.maintain_by, 'until', n.maintain_until) END),
        (5, 'bitstream',      n.bitstream_id,   NULL::jsonb),
        (6, 'protected',      n.protected,      NULL::jsonb),
        (7, 'same_holder',    n.same_holder,    NULL::jsonb),
        (8, 'conditions',     conditions_named(n.conditions), jsonb_build_object('conditions', n.conditions))) AS e (position, axis, value, data)
    WHERE e.value <> '' ORDER BY n.id, e.position;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER deployables_conditions_added BEFORE INSERT ON deployables FOR EACH ROW
    WHEN (NEW.conditions <> '[]') EXECUTE FUNCTION deployables_conditions_since();
CREATE TRIGGER deployables_conditions_since BEFORE UPDATE OF conditions ON deployables FOR EACH ROW
    WHEN (OLD.conditions <> NEW.conditions) EXECUTE FUNCTION deployables_conditions_since();
CREATE TRIGGER conditions_changed AFTER UPDATE OF conditions ON deployables FOR EACH ROW
    WHEN (OLD.conditions <> NEW.conditions AND conditions_named(OLD.conditions) <> conditions_named(NEW.conditions)) EXECUTE FUNCTION conditions_changed();

-- What is unready is closed in Placement.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION placement_deployables_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM placement_sync) THEN
        RETURN NULL;
    END IF;
    CASE TG_OP
    WHEN 'INSERT' THEN
        PERFORM placement_out_of_step(ARRAY(SELECT DISTINCT host FROM new_rows));
    WHEN 'DELETE' THEN
        PERFORM placement_out_of_step(ARRAY(SELECT DISTINCT host FROM old_rows));
    ELSE
        PERFORM placement_out_of_step(ARRAY(
            SELECT DISTINCT n.host FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid
            WHERE (o.provider_uuid, o.name, o.specs -> 'num', o.attributes, o.attributes_set, o.lifecycle, o.administration, o.presence,
                   o.fence_reason IS NULL, o.protected = '', o.untouched, o.nova_spec IS NULL, o.same_holder, o.unready)
               IS DISTINCT FROM
                  (n.provider_uuid, n.name, n.specs -> 'num', n.attributes, n.attributes_set, n.lifecycle, n.administration, n.presence,
                   n.fence_reason IS NULL, n.protected = '', n.untouched, n.nova_spec IS NULL, n.same_holder, n.unready)));
    END CASE;
    RETURN NULL;
END $$;
-- +goose StatementEnd
