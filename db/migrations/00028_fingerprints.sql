-- +goose Up

-- By what a card is told from another one that is put into its place, as far as a report has said it: an
-- object with the model and the serial. And the card that is there instead of the recorded one, for
-- people; null where none was seen. The recorded one stays as long as somebody has it.
ALTER TABLE devices ADD COLUMN fingerprint jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(fingerprint) = 'object'),
    ADD COLUMN replaced_by text CHECK (replaced_by <> ''),
    ADD CONSTRAINT devices_replaced_is_missing CHECK (replaced_by IS NULL OR presence = 'missing');

CREATE INDEX devices_replaced ON devices (host) WHERE replaced_by IS NOT NULL;

-- On which card something was that was installed when it was forgotten.
ALTER TABLE forgotten_installs ADD COLUMN fingerprint jsonb NOT NULL DEFAULT '{}';

-- other_card says that two fingerprints are of different cards, as Fingerprint.Other does.
CREATE FUNCTION other_card(a jsonb, b jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN coalesce(a ->> 'model' <> b ->> 'model', false) OR coalesce(a ->> 'serial' <> b ->> 'serial', false);

-- The card is back, also where a server of an earlier release has recorded that.
-- +goose StatementBegin
CREATE FUNCTION devices_back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.replaced_by := NULL;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER devices_back BEFORE UPDATE ON devices FOR EACH ROW
    WHEN (OLD.replaced_by IS NOT NULL AND NEW.presence = 'present') EXECUTE FUNCTION devices_back();

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION devices_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'device', n.uuid::text, n.host, e.axis, e.old, e.new, jsonb_build_object('identity', n.identity)
    FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid CROSS JOIN LATERAL (VALUES
        (1, 'presence',    o.presence, n.presence),
        (2, 'replaced_by', coalesce(o.replaced_by, ''), coalesce(n.replaced_by, '')),
        (3, 'backend',     o.backend,  n.backend)) AS e (position, axis, old, new)
    WHERE e.old <> e.new ORDER BY n.id, e.position;
    RETURN NULL;
END $$;
-- +goose StatementEnd
