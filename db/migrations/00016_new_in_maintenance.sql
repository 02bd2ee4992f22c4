-- +goose Up
-- What appears on a device that is in maintenance is in it from the beginning, for the same reason.
-- +goose StatementBegin
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
        (6, 'protected',      n.protected,      NULL::jsonb)) AS e (position, axis, value, data)
    WHERE e.value <> '' ORDER BY n.id, e.position;
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION deployables_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'accelerator', n.uuid::text, n.host, e.axis, '', e.value, e.data
    FROM new_rows n CROSS JOIN LATERAL (VALUES
        (1, 'presence',       n.presence,       jsonb_build_object('deployable', n.name, 'device', n.device_uuid)),
        (2, 'name',           n.accelerator,    NULL::jsonb),
        (3, 'lifecycle',      n.lifecycle,      NULL::jsonb),
        (4, 'administration', n.administration, NULL::jsonb),
        (5, 'bitstream',      n.bitstream_id,   NULL::jsonb),
        (6, 'protected',      n.protected,      NULL::jsonb)) AS e (position, axis, value, data)
    WHERE e.value <> '' ORDER BY n.id, e.position;
    RETURN NULL;
END $$;
-- +goose StatementEnd
