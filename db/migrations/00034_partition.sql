-- +goose Up

-- How a device can be divided, and is, as cyborg.Partitioning; null where its driver cannot divide it. What the last partition that
-- succeeded has made of it, as cyborg.Layout, and since when it is divided otherwise; and the operation that divides it now.
ALTER TABLE devices
    ADD COLUMN partitioning jsonb CHECK (jsonb_typeof(partitioning) = 'object'),
    ADD COLUMN wanted_layout jsonb CHECK (jsonb_typeof(wanted_layout) = 'object'),
    ADD COLUMN layout_differs_since timestamptz,
    ADD COLUMN partition_operation uuid,
    ADD COLUMN partition_open boolean GENERATED ALWAYS AS (CASE WHEN partition_operation IS NOT NULL THEN true END) STORED,
    ADD CONSTRAINT devices_layout_differs_from_wanted CHECK (layout_differs_since IS NULL OR wanted_layout IS NOT NULL),
    -- Only an open operation divides a device: it cannot end before it has let go of it.
    ADD CONSTRAINT devices_partition_fkey FOREIGN KEY (partition_operation, partition_open) REFERENCES operations (id, open);
CREATE UNIQUE INDEX devices_partitioned ON devices (partition_operation) WHERE partition_operation IS NOT NULL;
CREATE INDEX devices_layout_differs ON devices (host) WHERE layout_differs_since IS NOT NULL;
CREATE TRIGGER refuse_handover BEFORE UPDATE OF partition_operation ON devices FOR EACH ROW
    WHEN (OLD.partition_operation IS NOT NULL AND NEW.partition_operation IS NOT NULL AND OLD.partition_operation <> NEW.partition_operation)
    EXECUTE FUNCTION refuse_handover();

-- +goose StatementBegin

-- Whatever appears on a device while an operation divides it is claimed by that operation at once, whoever has recorded it, also a server
-- that does not know the columns: nobody gets a part before all of them are there.
CREATE FUNCTION partitioned_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO claims (deployable_uuid, operation_id)
    SELECT n.uuid, v.partition_operation FROM new_rows n JOIN devices v ON v.uuid = n.device_uuid
    WHERE v.partition_operation IS NOT NULL ORDER BY n.uuid ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

CREATE FUNCTION partitioned_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO claims (deployable_uuid, operation_id)
    SELECT NEW.uuid, partition_operation FROM devices WHERE uuid = NEW.device_uuid AND partition_operation IS NOT NULL ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

-- What has moved to the device while another operation had claimed it is claimed when that one lets go of it.
CREATE FUNCTION partitioned_released() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO claims (deployable_uuid, operation_id)
    SELECT d.uuid, v.partition_operation FROM old_rows o JOIN deployables d ON d.uuid = o.deployable_uuid JOIN devices v ON v.uuid = d.device_uuid
    WHERE v.partition_operation <> o.operation_id ORDER BY d.uuid ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

-- layout_text says to people, as cyborg.Layout.String does, how a device is divided; it is empty for one that cannot be.
CREATE FUNCTION layout_text(layout jsonb) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN layout IS NULL THEN '' WHEN layout = '{}' THEN 'whole'
        ELSE (SELECT string_agg(key || '=' || value, ' ' ORDER BY key COLLATE "C") FROM jsonb_each_text(layout)) END;

CREATE FUNCTION devices_layout() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.layout_differs_since := CASE WHEN NEW.wanted_layout IS NOT NULL AND NEW.wanted_layout IS DISTINCT FROM NEW.partitioning -> 'layout'
        THEN coalesce(OLD.layout_differs_since, clock_timestamp()) END;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION devices_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'device', n.uuid::text, n.host, e.axis, '', e.value, jsonb_build_object('identity', n.identity)
    FROM new_rows n CROSS JOIN LATERAL (VALUES
        (1, 'presence', n.presence),
        (2, 'backend',  n.backend),
        (3, 'layout',   layout_text(n.partitioning -> 'layout'))) AS e (position, axis, value)
    WHERE e.value <> '' ORDER BY n.id, e.position;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION devices_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'device', n.uuid::text, n.host, e.axis, e.old, e.new, jsonb_build_object('identity', n.identity)
    FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid CROSS JOIN LATERAL (VALUES
        (1, 'presence',    o.presence, n.presence),
        (2, 'replaced_by', coalesce(o.replaced_by, ''), coalesce(n.replaced_by, '')),
        (3, 'backend',     o.backend,  n.backend),
        (4, 'layout',      layout_text(o.partitioning -> 'layout'), layout_text(n.partitioning -> 'layout'))) AS e (position, axis, old, new)
    WHERE e.old <> e.new ORDER BY n.id, e.position;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER partitioned_added AFTER INSERT ON deployables REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION partitioned_added();
CREATE TRIGGER partitioned_moved AFTER UPDATE OF device_uuid ON deployables FOR EACH ROW
    WHEN (OLD.device_uuid <> NEW.device_uuid) EXECUTE FUNCTION partitioned_moved();
CREATE TRIGGER partitioned_released AFTER DELETE ON claims REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION partitioned_released();
CREATE TRIGGER devices_layout BEFORE UPDATE OF partitioning, wanted_layout ON devices FOR EACH ROW
    WHEN (OLD.partitioning IS DISTINCT FROM NEW.partitioning OR OLD.wanted_layout IS DISTINCT FROM NEW.wanted_layout) EXECUTE FUNCTION devices_layout();

-- A device that is divided otherwise than wanted is drift. What a difference is about, if it is a device, is the last column.
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
               || CASE WHEN bitstream_id = '' THEN 'none' ELSE bitstream_id END,
           image_lost_at, image_lost_at, true, NULL, '00000000-0000-0000-0000-000000000000'
    FROM deployables WHERE image_lost_at IS NOT NULL AND lifecycle = 'ready'
    UNION ALL
    SELECT host, 'layout', '00000000-0000-0000-0000-000000000000', '', '00000000-0000-0000-0000-000000000000',
           'device ' || identity || CASE WHEN partitioning IS NULL THEN ' cannot be divided any more' ELSE ' is divided otherwise: '
               || layout_text(partitioning -> 'layout') END || '; wanted: ' || layout_text(wanted_layout),
           layout_differs_since, layout_differs_since, true, NULL, uuid
    FROM devices WHERE layout_differs_since IS NOT NULL AND presence = 'present' AND partition_operation IS NULL;
