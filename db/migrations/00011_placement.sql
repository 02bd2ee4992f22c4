-- +goose Up

-- How far OpenStack Placement has been brought to what the records say, host by host. Rows are there only where Placement
-- is configured: without them, the triggers below change nothing, and nothing piles up. A row outlives its host until what
-- Placement has of it is gone.
CREATE TABLE placement_sync (
    host        text PRIMARY KEY,
    wanted      bigint NOT NULL DEFAULT 1, -- grows with each change of the records that Placement should know,
    asked       bigint NOT NULL DEFAULT 0, -- up to which a run was asked for,
    done        bigint NOT NULL DEFAULT 0, -- and up to which Placement is known to be so
    asked_at    timestamptz,
    try_at      timestamptz,                    -- when to try again what could not be done
    error       text NOT NULL DEFAULT '',       -- why it could not
    since       timestamptz DEFAULT now(),      -- out of step since; null where it is in step
    silent      boolean NOT NULL DEFAULT false, -- unheard for so long that nothing on the host may be scheduled
    compare     boolean NOT NULL DEFAULT false, -- nothing but a comparison is asked for: what differs is drift
    compared_at timestamptz NOT NULL DEFAULT now(),
    marks       jsonb NOT NULL DEFAULT '{}',    -- what was written of each provider, so that it can be taken back
    CHECK (done <= wanted AND asked <= wanted),
    CHECK ((done = wanted) = (since IS NULL))
) WITH (fillfactor = 70);
CREATE INDEX placement_sync_due ON placement_sync (host) WHERE done < wanted;
CREATE INDEX placement_sync_compared ON placement_sync (compared_at) WHERE done = wanted;

-- In what Placement and the records differed, as comparisons found it.
CREATE TABLE placement_drift (
    host          text NOT NULL,
    class         text NOT NULL CHECK (class <> ''),
    provider_uuid uuid NOT NULL, -- zero where it is about the host
    provider_name text NOT NULL DEFAULT '',
    detail        text NOT NULL,
    found_at      timestamptz NOT NULL DEFAULT now(),
    last_found_at timestamptz NOT NULL DEFAULT now(),
    times         int NOT NULL DEFAULT 1,
    repaired_at   timestamptz,
    PRIMARY KEY (host, class, provider_uuid)
);
CREATE INDEX placement_drift_open ON placement_drift (class) WHERE repaired_at IS NULL;
CREATE INDEX placement_drift_repaired ON placement_drift (repaired_at) WHERE repaired_at IS NOT NULL;

-- +goose StatementBegin
-- Their hosts' locks are held by whoever changes something of them, so that no two transactions wait for each other here.
CREATE FUNCTION placement_out_of_step(hosts text[]) RETURNS void LANGUAGE sql AS $$
    UPDATE placement_sync
    SET wanted = wanted + 1, compare = false, try_at = NULL, since = coalesce(since, clock_timestamp())
    WHERE host = ANY(hosts)
$$;

CREATE FUNCTION placement_deployables_changed() RETURNS trigger LANGUAGE plpgsql AS $$
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

-- A handle that an instance gets by a bind, or gives back, is none of it: Placement gave it away, or takes it back.
CREATE FUNCTION placement_handles_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM placement_sync) THEN
        RETURN NULL;
    END IF;
    PERFORM placement_out_of_step(ARRAY(
        SELECT DISTINCT n.host FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid
        LEFT JOIN operations p ON p.id = coalesce(n.operation_id, o.operation_id)
        WHERE o.presence <> n.presence
           OR (o.holder_kind IS NULL) <> (n.holder_kind IS NULL)
              AND (coalesce(p.kind, '') <> 'bind' OR coalesce(n.holder_kind, o.holder_kind) <> 'instance')));
    RETURN NULL;
END $$;

-- Only what an operation claims that Placement must not give away meanwhile.
CREATE FUNCTION placement_claims_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM placement_sync) THEN
        RETURN NULL;
    END IF;
    PERFORM placement_out_of_step(ARRAY(
        SELECT DISTINCT d.host FROM rows_changed c JOIN operations p ON p.id = c.operation_id
        JOIN deployables d ON d.uuid = c.deployable_uuid WHERE p.kind IN ('program', 'retire')));
    RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER placement_inserted AFTER INSERT ON deployables
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION placement_deployables_changed();
CREATE TRIGGER placement_updated AFTER UPDATE ON deployables
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION placement_deployables_changed();
CREATE TRIGGER placement_deleted AFTER DELETE ON deployables
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION placement_deployables_changed();
CREATE TRIGGER placement_updated AFTER UPDATE ON attach_handles
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION placement_handles_changed();
CREATE TRIGGER placement_inserted AFTER INSERT ON claims
    REFERENCING NEW TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION placement_claims_changed();
CREATE TRIGGER placement_deleted AFTER DELETE ON claims
    REFERENCING OLD TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION placement_claims_changed();

-- +goose Down
DROP TRIGGER placement_inserted ON deployables;
DROP TRIGGER placement_updated ON deployables;
DROP TRIGGER placement_deleted ON deployables;
DROP TRIGGER placement_updated ON attach_handles;
DROP TRIGGER placement_inserted ON claims;
DROP TRIGGER placement_deleted ON claims;
DROP FUNCTION placement_deployables_changed, placement_handles_changed, placement_claims_changed, placement_out_of_step;
DROP TABLE placement_sync, placement_drift;
