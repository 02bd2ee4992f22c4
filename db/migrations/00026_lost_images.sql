-- +goose Up
-- The image that an operation has loaded last, as it can be loaded again, what was read back then, and the boot of the host in which
-- it was looked at last; null where nobody knows. image_lost_at is since when that image is not there although it should be.
ALTER TABLE deployables
    ADD COLUMN image           jsonb CHECK (jsonb_typeof(image) = 'object'),
    ADD COLUMN image_bitstream text,
    ADD COLUMN image_boot      text,
    ADD COLUMN image_lost_at   timestamptz,
    ADD CONSTRAINT deployables_image_known CHECK (
        (image IS NULL) = (image_bitstream IS NULL) AND (image IS NULL) = (image_boot IS NULL) AND (image IS NOT NULL OR image_lost_at IS NULL));
CREATE INDEX deployables_image_lost ON deployables (host) WHERE image_lost_at IS NOT NULL;

-- +goose StatementBegin
-- Another image, or none, in a boot of the host in which ours was not seen was lost with the power. In the boot in which ours was seen,
-- somebody else has changed it, and knows why. While an operation loads one, nothing is known. image_boot is for those to set who have
-- looked; where an operation's fence is lifted, its host has.
CREATE FUNCTION deployables_image() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.fence_operation IS NOT NULL OR NEW.presence <> 'present' THEN
        RETURN NEW;
    END IF;
    IF OLD.fence_operation IS NOT NULL THEN
        SELECT boot_id INTO NEW.image_boot FROM hosts WHERE name = NEW.host;
    END IF;
    IF NEW.bitstream_id = NEW.image_bitstream THEN
        NEW.image_lost_at := NULL;
    ELSIF NEW.image_lost_at IS NOT NULL THEN
        RETURN NEW;
    ELSIF NEW.image_boot = OLD.image_boot THEN
        NEW.image := NULL;
        NEW.image_bitstream := NULL;
        NEW.image_boot := NULL;
    ELSE
        NEW.image_lost_at := now();
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION deployables_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'accelerator', n.uuid::text, n.host, e.axis, coalesce(e.old, ''), coalesce(e.new, ''), e.data
    FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid CROSS JOIN LATERAL (VALUES
        (1, 'presence', o.presence, n.presence, NULL::jsonb, o.presence <> n.presence),
        (2, 'name', o.accelerator, n.accelerator, NULL, o.accelerator <> n.accelerator),
        (3, 'lifecycle', o.lifecycle, n.lifecycle,
            CASE WHEN n.lifecycle = 'error' THEN jsonb_build_object('reason', n.reason, 'operation_id', n.error_operation) END,
            (o.lifecycle, o.reason) <> (n.lifecycle, n.reason)),
        (4, 'administration', o.administration, n.administration,
            CASE WHEN n.administration = 'maintaining'
                THEN jsonb_build_object('reason', n.maintain_reason, 'by', n.maintain_by, 'until', n.maintain_until) END,
            (o.administration, o.maintain_reason, o.maintain_by, o.maintain_until)
                IS DISTINCT FROM (n.administration, n.maintain_reason, n.maintain_by, n.maintain_until)),
        (5, 'fence', o.fence_reason, n.fence_reason,
            CASE WHEN n.fence_operation IS NOT NULL THEN jsonb_build_object('operation_id', n.fence_operation) END,
            (o.fence_reason, o.fence_operation) IS DISTINCT FROM (n.fence_reason, n.fence_operation)),
        (6, 'bitstream', o.bitstream_id, n.bitstream_id, NULL, o.bitstream_id <> n.bitstream_id),
        (7, 'protected', o.protected, n.protected, NULL, o.protected <> n.protected),
        (8, 'device', o.device_uuid::text, n.device_uuid::text, NULL, o.device_uuid <> n.device_uuid),
        (9, 'reported', '', '', jsonb_build_object('specs', n.specs, 'attributes', n.attributes),
            (o.specs, o.attributes) <> (n.specs, n.attributes)),
        (10, 'specs', o.specs_version::text, n.specs_version::text, n.specs_set, o.specs_version <> n.specs_version),
        (11, 'nova_whitelist', CASE WHEN o.nova_spec IS NOT NULL THEN 'in' ELSE '' END,
            CASE WHEN n.nova_spec IS NOT NULL THEN 'in' ELSE '' END, n.nova_spec, o.nova_spec IS DISTINCT FROM n.nova_spec),
        (12, 'health', CASE WHEN o.image_lost_at IS NULL THEN '' ELSE 'lost_image' END,
            CASE WHEN n.image_lost_at IS NULL THEN '' ELSE 'lost_image' END,
            jsonb_build_object('bitstream_id', coalesce(o.image_bitstream, n.image_bitstream)),
            (o.image_lost_at IS NULL) <> (n.image_lost_at IS NULL))
        ) AS e (position, axis, old, new, data, changed)
    WHERE e.changed ORDER BY n.id, e.position;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER deployables_image BEFORE UPDATE ON deployables
    FOR EACH ROW WHEN (NEW.image IS NOT NULL) EXECUTE FUNCTION deployables_image();

CREATE OR REPLACE VIEW drift AS
    SELECT host, class, provider_uuid, provider_name, '00000000-0000-0000-0000-000000000000'::uuid AS instance_uuid, detail, found_at,
           last_found_at, counts, repaired_at
    FROM placement_drift
    UNION ALL
    SELECT host, class, '00000000-0000-0000-0000-000000000000', '', instance_uuid, detail, found_at, last_found_at, counts, repaired_at
    FROM instance_drift
    UNION ALL
    SELECT host, 'lost_at_boot', '00000000-0000-0000-0000-000000000000', '', instance_uuid,
           'its host has booted since its accelerators were bound: it may run without ' || count(*) || ' of them', min(lost_at), max(lost_at),
           true, NULL
    FROM arqs WHERE lost_at IS NOT NULL GROUP BY host, instance_uuid
    UNION ALL
    SELECT host, 'nova_whitelist', '00000000-0000-0000-0000-000000000000', '', '00000000-0000-0000-0000-000000000000', detail, found_at,
           last_found_at, counts, repaired_at
    FROM whitelist_drift
    UNION ALL
    SELECT host, 'lost_image', provider_uuid, name, '00000000-0000-0000-0000-000000000000',
           'image ' || image_bitstream || ' is not loaded any more since its host booted; it has '
               || CASE WHEN bitstream_id = '' THEN 'none' ELSE bitstream_id END,
           image_lost_at, image_lost_at, true, NULL
    FROM deployables WHERE image_lost_at IS NOT NULL AND lifecycle = 'ready';

-- +goose Down
CREATE OR REPLACE VIEW drift AS
    SELECT host, class, provider_uuid, provider_name, '00000000-0000-0000-0000-000000000000'::uuid AS instance_uuid, detail, found_at,
           last_found_at, counts, repaired_at
    FROM placement_drift
    UNION ALL
    SELECT host, class, '00000000-0000-0000-0000-000000000000', '', instance_uuid, detail, found_at, last_found_at, counts, repaired_at
    FROM instance_drift
    UNION ALL
    SELECT host, 'lost_at_boot', '00000000-0000-0000-0000-000000000000', '', instance_uuid,
           'its host has booted since its accelerators were bound: it may run without ' || count(*) || ' of them', min(lost_at), max(lost_at),
           true, NULL
    FROM arqs WHERE lost_at IS NOT NULL GROUP BY host, instance_uuid
    UNION ALL
    SELECT host, 'nova_whitelist', '00000000-0000-0000-0000-000000000000', '', '00000000-0000-0000-0000-000000000000', detail, found_at,
           last_found_at, counts, repaired_at
    FROM whitelist_drift;
DROP TRIGGER deployables_image ON deployables;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION deployables_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'accelerator', n.uuid::text, n.host, e.axis, coalesce(e.old, ''), coalesce(e.new, ''), e.data
    FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid CROSS JOIN LATERAL (VALUES
        (1, 'presence', o.presence, n.presence, NULL::jsonb, o.presence <> n.presence),
        (2, 'name', o.accelerator, n.accelerator, NULL, o.accelerator <> n.accelerator),
        (3, 'lifecycle', o.lifecycle, n.lifecycle,
            CASE WHEN n.lifecycle = 'error' THEN jsonb_build_object('reason', n.reason, 'operation_id', n.error_operation) END,
            (o.lifecycle, o.reason) <> (n.lifecycle, n.reason)),
        (4, 'administration', o.administration, n.administration,
            CASE WHEN n.administration = 'maintaining'
                THEN jsonb_build_object('reason', n.maintain_reason, 'by', n.maintain_by, 'until', n.maintain_until) END,
            (o.administration, o.maintain_reason, o.maintain_by, o.maintain_until)
                IS DISTINCT FROM (n.administration, n.maintain_reason, n.maintain_by, n.maintain_until)),
        (5, 'fence', o.fence_reason, n.fence_reason,
            CASE WHEN n.fence_operation IS NOT NULL THEN jsonb_build_object('operation_id', n.fence_operation) END,
            (o.fence_reason, o.fence_operation) IS DISTINCT FROM (n.fence_reason, n.fence_operation)),
        (6, 'bitstream', o.bitstream_id, n.bitstream_id, NULL, o.bitstream_id <> n.bitstream_id),
        (7, 'protected', o.protected, n.protected, NULL, o.protected <> n.protected),
        (8, 'device', o.device_uuid::text, n.device_uuid::text, NULL, o.device_uuid <> n.device_uuid),
        (9, 'reported', '', '', jsonb_build_object('specs', n.specs, 'attributes', n.attributes),
            (o.specs, o.attributes) <> (n.specs, n.attributes)),
        (10, 'specs', o.specs_version::text, n.specs_version::text, n.specs_set, o.specs_version <> n.specs_version),
        (11, 'nova_whitelist', CASE WHEN o.nova_spec IS NOT NULL THEN 'in' ELSE '' END,
            CASE WHEN n.nova_spec IS NOT NULL THEN 'in' ELSE '' END, n.nova_spec, o.nova_spec IS DISTINCT FROM n.nova_spec)
        ) AS e (position, axis, old, new, data, changed)
    WHERE e.changed ORDER BY n.id, e.position;
    RETURN NULL;
END $$;
-- +goose StatementEnd
DROP FUNCTION deployables_image;
ALTER TABLE deployables DROP COLUMN image, DROP COLUMN image_bitstream, DROP COLUMN image_boot, DROP COLUMN image_lost_at;
