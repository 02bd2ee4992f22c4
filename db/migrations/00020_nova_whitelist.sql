-- +goose Up
ALTER TABLE operations
    DROP CONSTRAINT operations_kind_check,
    ADD CONSTRAINT operations_kind_check
        CHECK (kind IN ('provision', 'program', 'attach', 'detach', 'configure', 'retire', 'bind', 'unbind', 'whitelist'));

-- What the whitelist of the host's Nova ([pci] device_spec) says of it besides its address; null where it is not in it. What
-- Nova gives out is not in service here, and there is no provider of it in Placement.
ALTER TABLE deployables
    ADD COLUMN nova_spec jsonb CHECK (jsonb_typeof(nova_spec) = 'object'),
    ADD CONSTRAINT deployables_given_out_once CHECK (nova_spec IS NULL OR lifecycle IN ('inactive', 'error'));
CREATE INDEX deployables_whitelisted ON deployables (host) WHERE nova_spec IS NOT NULL;

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
                   o.fence_reason IS NULL, o.protected = '', o.untouched, o.nova_spec IS NULL)
               IS DISTINCT FROM
                  (n.provider_uuid, n.name, n.specs -> 'num', n.attributes, n.attributes_set, n.lifecycle, n.administration, n.presence,
                   n.fence_reason IS NULL, n.protected = '', n.untouched, n.nova_spec IS NULL)));
    END CASE;
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- +goose Down
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
        (10, 'specs', o.specs_version::text, n.specs_version::text, n.specs_set, o.specs_version <> n.specs_version)
        ) AS e (position, axis, old, new, data, changed)
    WHERE e.changed ORDER BY n.id, e.position;
    RETURN NULL;
END $$;

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
                   o.fence_reason IS NULL, o.protected = '', o.untouched)
               IS DISTINCT FROM
                  (n.provider_uuid, n.name, n.specs -> 'num', n.attributes, n.attributes_set, n.lifecycle, n.administration, n.presence,
                   n.fence_reason IS NULL, n.protected = '', n.untouched)));
    END CASE;
    RETURN NULL;
END $$;
-- +goose StatementEnd
ALTER TABLE deployables DROP COLUMN nova_spec;
DELETE FROM operations WHERE kind = 'whitelist';
ALTER TABLE operations
    DROP CONSTRAINT operations_kind_check,
    ADD CONSTRAINT operations_kind_check
        CHECK (kind IN ('provision', 'program', 'attach', 'detach', 'configure', 'retire', 'bind', 'unbind'));
