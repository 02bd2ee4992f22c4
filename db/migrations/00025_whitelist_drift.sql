-- +goose Up
ALTER TABLE hosts
    ADD COLUMN whitelist         jsonb,                   -- the file of its Nova's whitelist as last reported; null where nothing was
    ADD COLUMN whitelist_written text;                    -- the checksum of what was written into it last; empty for none, null where nobody knows
CREATE INDEX hosts_whitelist_differs ON hosts (name) WHERE whitelist ->> 'sha256' <> coalesce(whitelist_written, '');
-- Operations are pruned: of what was written long ago, the first report of it tells.
UPDATE hosts SET whitelist_written = w.written FROM (
    SELECT DISTINCT ON (host) host, result ->> 'sha256' AS written FROM operations
    WHERE kind = 'whitelist' AND state = 'succeeded' AND result ? 'sha256' ORDER BY host, ended_at DESC) AS w
WHERE w.host = name;

-- Hosts on which the file of Nova's whitelist was not as it was written last.
CREATE TABLE whitelist_drift (
    host          text PRIMARY KEY,
    detail        text NOT NULL,
    found_at      timestamptz NOT NULL DEFAULT now(),
    last_found_at timestamptz NOT NULL DEFAULT now(),
    times         int NOT NULL DEFAULT 1,
    repaired_at   timestamptz,
    -- What was just written may not have been reported yet: it counts from the second time on.
    counts        boolean NOT NULL GENERATED ALWAYS AS (times > 1) STORED
);
CREATE INDEX whitelist_drift_repaired ON whitelist_drift (repaired_at) WHERE repaired_at IS NOT NULL;

-- +goose StatementBegin
-- The value of the axis is the difference in words, and empty while there is none, as of what differs in Placement.
CREATE FUNCTION whitelist_drift_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    was    text := '';
    is_now text := CASE WHEN NEW.counts AND NEW.repaired_at IS NULL THEN NEW.detail ELSE '' END;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        was := CASE WHEN OLD.counts AND OLD.repaired_at IS NULL THEN OLD.detail ELSE '' END;
    END IF;
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'host', NEW.host, NEW.host, 'drift_nova_whitelist', was, is_now, CASE WHEN is_now = '' THEN '{"repaired": false}'::jsonb END
    WHERE was <> is_now;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER whitelist_drift_changed AFTER INSERT OR UPDATE ON whitelist_drift
    FOR EACH ROW EXECUTE FUNCTION whitelist_drift_changed();

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
    FROM arqs WHERE lost_at IS NOT NULL GROUP BY host, instance_uuid;
DROP TABLE whitelist_drift;
DROP FUNCTION whitelist_drift_changed;
ALTER TABLE hosts DROP COLUMN whitelist, DROP COLUMN whitelist_written;
