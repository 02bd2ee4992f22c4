-- +goose Up

-- The image that was loaded last where it does not take effect yet, as cyborg.PendingImage; null where there is none. bitstream_id is the
-- image that is in effect until then.
ALTER TABLE deployables ADD COLUMN pending_image jsonb CHECK (jsonb_typeof(pending_image) = 'object' AND pending_image ->> 'bitstream_id' <> '');
CREATE INDEX deployables_image_pending ON deployables (id) WHERE pending_image IS NOT NULL;

-- +goose StatementBegin

-- What is in effect is not pending any more. A server that does not know the column writes only what is in effect.
CREATE FUNCTION clear_pending_image() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.pending_image := NULL;
    RETURN NEW;
END $$;

-- Our image is there once it is in effect. Until then, the image that was loaded last counts: ours waits, and is not lost; but where it was
-- lost before, it is not there again yet. Another one that waits, while ours is in effect, was loaded by somebody else, who knows why. So
-- was another one in the boot of the host in which ours was seen. In a boot in which ours was not seen, it was lost with the power. While
-- an operation loads one, nothing is known. image_boot is for those to set who have looked; where the fence of an operation that loads is
-- lifted, its host has.
CREATE OR REPLACE FUNCTION deployables_image() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    waits   boolean := coalesce(NEW.pending_image ->> 'bitstream_id' = NEW.image_bitstream, false);
    waited  boolean := coalesce(OLD.pending_image ->> 'bitstream_id' = NEW.image_bitstream, false);
    is_ours boolean := NEW.bitstream_id = NEW.image_bitstream;
BEGIN
    IF NEW.presence <> 'present' OR loads_image(NEW.fence_operation) THEN
        RETURN NEW;
    END IF;
    IF loads_image(OLD.fence_operation) THEN
        SELECT boot_id INTO NEW.image_boot FROM hosts WHERE name = NEW.host;
    END IF;
    IF waits THEN
        RETURN NEW;
    ELSIF is_ours AND NEW.pending_image IS NULL THEN
        NEW.image_lost_at := NULL;
    ELSIF NEW.image_lost_at IS NOT NULL AND NOT is_ours AND (NOT waited OR NEW.image_boot = OLD.image_boot) THEN
        RETURN NEW;
    ELSIF is_ours OR NEW.image_boot = OLD.image_boot THEN
        NEW.image := NULL;
        NEW.image_bitstream := NULL;
        NEW.image_boot := NULL;
        NEW.image_lost_at := NULL;
    ELSE
        NEW.image_lost_at := now();
    END IF;
    RETURN NEW;
END $$;

-- This event is written row by row, so that no other change of an accelerator pays for it.
CREATE FUNCTION pending_image_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    VALUES ('accelerator', NEW.uuid::text, NEW.host, 'pending_image', coalesce(OLD.pending_image ->> 'bitstream_id', ''),
            coalesce(NEW.pending_image ->> 'bitstream_id', ''),
            jsonb_strip_nulls(jsonb_build_object('until', coalesce(NEW.pending_image, OLD.pending_image) -> 'until', 'bitstream_id', NEW.bitstream_id)));
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
        (8, 'excludes',       array_to_string(n.excludes, ', '), NULL::jsonb),
        (9, 'conditions',     conditions_named(n.conditions), jsonb_build_object('conditions', n.conditions)),
        (10, 'pending_image', coalesce(n.pending_image ->> 'bitstream_id', ''),
            jsonb_build_object('until', n.pending_image -> 'until', 'bitstream_id', n.bitstream_id))) AS e (position, axis, value, data)
    WHERE e.value <> '' ORDER BY n.id, e.position;
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- Triggers fire in the order of their names: this one before deployables_image.
CREATE TRIGGER clear_pending_image BEFORE UPDATE OF bitstream_id ON deployables FOR EACH ROW
    WHEN (NEW.pending_image ->> 'bitstream_id' = NEW.bitstream_id) EXECUTE FUNCTION clear_pending_image();
CREATE TRIGGER pending_image_changed AFTER UPDATE ON deployables FOR EACH ROW
    WHEN (OLD.pending_image IS DISTINCT FROM NEW.pending_image) EXECUTE FUNCTION pending_image_changed();

-- Where an image waits on an accelerator that has lost its own, its drift says so.
CREATE OR REPLACE VIEW drift AS
    SELECT host, class, provider_uuid, provider_name, '00000000-0000-0000-0000-000000000000'::uuid AS instance_uuid, detail, found_at,
           last_found_at, counts, repaired_at, '00000000-0000-0000-0000-000000000000'::uuid AS device_uuid
    FROM placement_drift
    UNION ALL
    SELECT host, class, '00000000-0000-0000-0000-000000000000', '', instance_uuid, detail, found_at, last_found_at, counts, repaired_at,
           '00000000-0000-0000-0000-000000000000'
    FROM instance_drift
    UNION ALL
    SELECT host, 'lost_at_boot', '00000000-0000-0000-0000-000000000000', '', instance_uuid,
           'its host has booted since its accelerators were bound: it may run without ' || count(*) || ' of them', min(lost_at), max(lost_at),
           true, NULL, '00000000-0000-0000-0000-000000000000'
    FROM arqs WHERE lost_at IS NOT NULL GROUP BY host, instance_uuid
    UNION ALL
    SELECT host, 'nova_whitelist', '00000000-0000-0000-0000-000000000000', '', '00000000-0000-0000-0000-000000000000', detail, found_at,
           last_found_at, counts, repaired_at, '00000000-0000-0000-0000-000000000000'
    FROM whitelist_drift
    UNION ALL
    SELECT host, 'lost_image', provider_uuid, name, '00000000-0000-0000-0000-000000000000',
           'image ' || image_bitstream || ' is not loaded any more since its host booted; it has '
               || CASE WHEN bitstream_id = '' THEN 'none' ELSE bitstream_id END
               || coalesce('; image ' || (pending_image ->> 'bitstream_id') || ' takes effect after a ' || replace(pending_image ->> 'until', '_', ' '), ''),
           image_lost_at, image_lost_at, true, NULL, '00000000-0000-0000-0000-000000000000'
    FROM deployables WHERE image_lost_at IS NOT NULL AND lifecycle = 'ready'
    UNION ALL
    SELECT host, 'layout', '00000000-0000-0000-0000-000000000000', '', '00000000-0000-0000-0000-000000000000',
           'device ' || identity || CASE WHEN partitioning IS NULL THEN ' cannot be divided any more' ELSE ' is divided otherwise: '
               || layout_text(partitioning -> 'layout') END || '; wanted: ' || layout_text(wanted_layout),
           layout_differs_since, layout_differs_since, true, NULL, uuid
    FROM devices WHERE layout_differs_since IS NOT NULL AND presence = 'present' AND partition_operation IS NULL;
