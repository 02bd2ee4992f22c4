-- +goose Up
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION devices_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'device', n.uuid::text, n.host, e.axis, '', e.value, jsonb_build_object('identity', n.identity)
    FROM new_rows n CROSS JOIN LATERAL (VALUES
        (1, 'presence', n.presence),
        (2, 'backend',  n.backend)) AS e (position, axis, value)
    ORDER BY n.id, e.position;
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION devices_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'device', n.uuid::text, n.host, 'presence', '', n.presence, jsonb_build_object('identity', n.identity)
    FROM new_rows n ORDER BY n.id;
    RETURN NULL;
END $$;
-- +goose StatementEnd
