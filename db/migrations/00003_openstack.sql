-- +goose Up

-- What OpenStack's users ask for, and how far Placement and Nova agree with the records.

CREATE TABLE device_profiles (
    id          bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    uuid        uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name        text NOT NULL UNIQUE CHECK (name <> '' AND length(name) <= 255),
    description text,
    groups      jsonb NOT NULL CHECK (jsonb_typeof(groups) = 'array' AND jsonb_array_length(groups) > 0),
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz
);

-- Accelerator requests.
CREATE TABLE arqs (
    id            bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    uuid          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    state         text NOT NULL DEFAULT 'Initial'
                  CHECK (state IN ('Initial', 'BindStarted', 'Bound', 'BindFailed', 'Unbound', 'UnbindFailed', 'Deleting')),
    reason        text NOT NULL DEFAULT '', -- of a failure
    project       text,
    -- what is asked for, copied at creation: later changes of the profile do not reach it
    profile_uuid  uuid NOT NULL REFERENCES device_profiles,
    profile_name  text NOT NULL,
    group_index   int NOT NULL CHECK (group_index >= 0),
    profile_group jsonb NOT NULL,
    -- what it is bound to, and for whom
    host          text,
    provider_uuid uuid,
    instance_uuid uuid,
    service       text CHECK (service <> ''), -- the holder, where that is no instance
    operation_id  uuid,                       -- bound it, or tried to
    handle_uuid   uuid UNIQUE,
    seen_at       timestamptz NOT NULL DEFAULT now(), -- when its instance was last known to exist
    -- The claim: the operation that works on it. It is a column of the row because each change of
    -- it comes with one of the row, and it cannot outlive its operation, as those on deployables
    -- cannot.
    claimed_by    uuid,
    claim_open    boolean GENERATED ALWAYS AS (CASE WHEN claimed_by IS NOT NULL THEN true END) STORED,
    -- The boot of its host since which its instance may be without its accelerator: Nova starts the
    -- instances of a host that has booted again without asking for them. Null where nothing is
    -- known to be wrong.
    lost_boot     text,
    lost_at       timestamptz, -- when the host booted, as well as is known
    -- Nova's id of the request for a hard reboot at which the instance was seen meanwhile: if that
    -- succeeds, it has its accelerators again. Nova's list of what was done does not tell a hard
    -- reboot from a soft one.
    hard_reboot   text,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz,
    CONSTRAINT arqs_handle_fkey FOREIGN KEY (handle_uuid, operation_id) REFERENCES attach_handles (uuid, operation_id),
    CONSTRAINT arqs_claim_fkey FOREIGN KEY (claimed_by, claim_open) REFERENCES operations (id, open),
    CONSTRAINT arqs_free_check CHECK (state NOT IN ('Initial', 'Unbound')
        OR num_nonnulls(host, provider_uuid, instance_uuid, service, operation_id, handle_uuid) = 0),
    CONSTRAINT arqs_bound_check CHECK (state <> 'Bound' OR handle_uuid IS NOT NULL),
    CONSTRAINT arqs_handle_check CHECK (handle_uuid IS NULL OR (operation_id IS NOT NULL AND num_nonnulls(instance_uuid, service) = 1)),
    CONSTRAINT arqs_reason_check CHECK ((state IN ('BindFailed', 'UnbindFailed')) = (reason <> '')),
    CONSTRAINT arqs_claim_check CHECK (claimed_by IS NOT NULL OR state NOT IN ('BindStarted', 'Deleting')),
    -- A request whose bind has failed keeps its handle only as long as the operation undoes what it
    -- did.
    CONSTRAINT arqs_failed_check CHECK (state <> 'BindFailed' OR handle_uuid IS NULL OR claimed_by IS NOT NULL),
    CONSTRAINT arqs_lost_check CHECK ((lost_at IS NULL) = (lost_boot IS NULL)
        AND (lost_at IS NULL OR (instance_uuid IS NOT NULL AND handle_uuid IS NOT NULL)))
);
-- Nova asks for those of an instance; a project's list is in the order of the ids.
CREATE INDEX arqs_by_instance ON arqs (instance_uuid);
CREATE INDEX arqs_by_project ON arqs (project, id);
CREATE INDEX arqs_by_host ON arqs (host, id) WHERE host IS NOT NULL;
-- Most are bound: the others by their state, and these by when Nova is to be asked about their
-- instances.
CREATE INDEX arqs_by_state ON arqs (state, id) WHERE state <> 'Bound';
CREATE INDEX arqs_bound ON arqs (seen_at) WHERE state = 'Bound';
-- A profile is deleted once no request refers to it.
CREATE INDEX arqs_by_profile ON arqs (profile_uuid);
-- An operation releases its claims when it ends.
CREATE INDEX arqs_claimed ON arqs (claimed_by) WHERE claimed_by IS NOT NULL;
CREATE INDEX arqs_lost ON arqs (host) WHERE lost_at IS NOT NULL;
-- A claim, or a question to Nova, must not change the updated_at that users of OpenStack see.
CREATE TRIGGER note_update BEFORE UPDATE OF state, project ON arqs FOR EACH ROW EXECUTE FUNCTION note_update();

-- Which operation had, or has, Nova reboot an instance because of a boot of its host: one for each.
CREATE TABLE rescues (
    instance_uuid uuid NOT NULL,
    boot_id       text NOT NULL,
    operation_id  uuid NOT NULL,
    asked_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (instance_uuid, boot_id)
);

-- What was adopted from another cloud's records, ever: it is not adopted again, whatever has become
-- of it since.
CREATE TABLE adopted_rows (
    kind       text NOT NULL CHECK (kind IN ('device_profile', 'device', 'deployable', 'attach_handle', 'accelerator_request')),
    uuid       uuid NOT NULL,
    adopted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, uuid)
);

-- Has its one row while Placement is told of the records. While it has, each new host gets a row in
-- placement_sync.
CREATE TABLE placement_following (
    one           boolean PRIMARY KEY DEFAULT true CHECK (one),
    compare_every interval NOT NULL -- new hosts are compared at times that are spread over it
);

-- How far Placement has been brought to what the records say, host by host. Rows are there only
-- where Placement is told: without them, the triggers below change nothing, and nothing piles up. A
-- row outlives its host until what Placement has of it is gone.
CREATE TABLE placement_sync (
    host        text PRIMARY KEY,
    wanted      bigint NOT NULL DEFAULT 1,      -- grows with each change of the records that Placement should know,
    asked       bigint NOT NULL DEFAULT 0,      -- up to which a run was asked for,
    done        bigint NOT NULL DEFAULT 0,      -- and up to which Placement is known to be so
    asked_at    timestamptz,
    since       timestamptz DEFAULT now(),      -- out of step since; null where it is in step
    try_at      timestamptz,                    -- when to try again what could not be done
    error       text NOT NULL DEFAULT '',       -- why it could not
    silent      boolean NOT NULL DEFAULT false, -- unheard for so long that nothing on the host may be scheduled
    compare     boolean NOT NULL DEFAULT false, -- nothing but a comparison is asked for: what differs is drift
    compared_at timestamptz NOT NULL DEFAULT now(),
    marks       jsonb NOT NULL DEFAULT '{}',    -- what was written of each provider, so that it can be taken back
    CONSTRAINT placement_sync_order CHECK (done <= wanted AND asked <= wanted),
    CONSTRAINT placement_sync_since CHECK ((done = wanted) = (since IS NULL))
) WITH (fillfactor = 70); -- as of hosts
-- What is to be written, what is to be compared next, and what may be heard again.
CREATE INDEX placement_sync_due ON placement_sync (host) WHERE done < wanted;
CREATE INDEX placement_sync_compared ON placement_sync (compared_at) WHERE done = wanted;
CREATE INDEX placement_sync_silent ON placement_sync (host) WHERE silent;

-- Drift: in what something differs from the records, as comparisons found it. Each kind has a
-- table, in which repaired_at is null for as long as it differs; these rows are counted, and the
-- others are pruned after a while.

-- In what Placement and the records differ.
CREATE TABLE placement_drift (
    host          text NOT NULL,
    class         text NOT NULL CHECK (class <> ''),
    provider_uuid uuid NOT NULL, -- zero where it is about the host
    provider_name text NOT NULL DEFAULT '',
    -- what it is about, for as long as it lasts, whatever becomes of that meanwhile; a trigger
    -- writes them
    subject_kind  text NOT NULL,
    subject_id    text NOT NULL,
    detail        text NOT NULL,
    found_at      timestamptz NOT NULL DEFAULT now(),
    last_found_at timestamptz NOT NULL DEFAULT now(),
    times         int NOT NULL DEFAULT 1,
    repaired_at   timestamptz,
    -- What may be so for a moment, while Nova is at work, counts from the second time on.
    counts        boolean NOT NULL GENERATED ALWAYS AS
        (times > 1 OR class NOT IN ('unknown_allocation', 'missing_allocation')) STORED,
    PRIMARY KEY (host, class, provider_uuid)
);
CREATE INDEX placement_drift_open ON placement_drift (class) WHERE repaired_at IS NULL;
CREATE INDEX placement_drift_repaired ON placement_drift (repaired_at) WHERE repaired_at IS NOT NULL;

-- In what Nova's instances and the accelerator requests that are bound to them differ.
CREATE TABLE instance_drift (
    instance_uuid uuid NOT NULL,
    class         text NOT NULL CHECK (class <> ''),
    host          text NOT NULL,
    -- those that the instance has when it is found, for as long as it lasts, whatever becomes of
    -- them meanwhile; a trigger writes them
    accelerators  uuid[] NOT NULL,
    detail        text NOT NULL,
    found_at      timestamptz NOT NULL DEFAULT now(),
    last_found_at timestamptz NOT NULL DEFAULT now(),
    times         int NOT NULL DEFAULT 1,
    repaired_at   timestamptz,
    -- What may be so for a moment, while Nova is at work, counts from the second time on.
    counts        boolean NOT NULL GENERATED ALWAYS AS (times > 1 OR class = 'instance_error') STORED,
    PRIMARY KEY (instance_uuid, class)
);
CREATE INDEX instance_drift_open ON instance_drift (class) WHERE repaired_at IS NULL;
CREATE INDEX instance_drift_repaired ON instance_drift (repaired_at) WHERE repaired_at IS NOT NULL;

-- Hosts on which the file of Nova's whitelist is not as it was written last.
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

-- All drift, and what was lost at a boot. What is without a resource provider, or without an
-- instance, has the zero UUID for it.
CREATE VIEW drift AS
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

-- The triggers below raise the version that is wanted of a host in Placement with each change of
-- the records that it should know.
-- +goose StatementBegin

-- The hosts' locks are held by whoever changes something of them, so that no two transactions wait
-- for each other here.
CREATE FUNCTION placement_out_of_step(hosts text[]) RETURNS void LANGUAGE sql AS $$
    UPDATE placement_sync
    SET wanted = wanted + 1, compare = false, try_at = NULL, since = coalesce(since, clock_timestamp())
    WHERE host = ANY(hosts)
$$;

CREATE FUNCTION placement_hosts_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO placement_sync (host, compared_at)
    SELECT n.name, now() - random() * f.compare_every FROM new_rows n CROSS JOIN placement_following f ORDER BY n.name
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;

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
                   o.fence_reason IS NULL, o.protected = '', o.untouched, o.nova_spec IS NULL)
               IS DISTINCT FROM
                  (n.provider_uuid, n.name, n.specs -> 'num', n.attributes, n.attributes_set, n.lifecycle, n.administration, n.presence,
                   n.fence_reason IS NULL, n.protected = '', n.untouched, n.nova_spec IS NULL)));
    END CASE;
    RETURN NULL;
END $$;

-- A handle that an instance gets by a bind, or gives back, does not count: Placement itself gave it
-- away, or takes it back.
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
        JOIN operation_kinds k ON k.kind = p.kind AND k.closes_placement
        JOIN deployables d ON d.uuid = c.deployable_uuid));
    RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER placement_inserted AFTER INSERT ON hosts
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION placement_hosts_inserted();
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

-- A trigger finds the subjects when drift is found, also when it is found again after a repair.
-- +goose StatementBegin

-- The accelerator that has the provider when it is found, else the provider, else the host.
CREATE FUNCTION placement_drift_found() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    SELECT 'accelerator', uuid::text INTO NEW.subject_kind, NEW.subject_id FROM deployables WHERE provider_uuid = NEW.provider_uuid;
    IF NOT FOUND AND NEW.provider_uuid = '00000000-0000-0000-0000-000000000000' THEN
        NEW.subject_kind := 'host';
        NEW.subject_id := NEW.host;
    ELSIF NOT FOUND THEN
        NEW.subject_kind := 'resource_provider';
        NEW.subject_id := NEW.provider_uuid::text;
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION instance_drift_found() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.accelerators := ARRAY(
        SELECT DISTINCT h.deployable_uuid FROM arqs a JOIN attach_handles h ON h.uuid = a.handle_uuid
        WHERE a.instance_uuid = NEW.instance_uuid ORDER BY h.deployable_uuid);
    RETURN NEW;
END $$;
-- +goose StatementEnd

CREATE TRIGGER placement_drift_inserted BEFORE INSERT ON placement_drift
    FOR EACH ROW EXECUTE FUNCTION placement_drift_found();
CREATE TRIGGER placement_drift_found BEFORE UPDATE ON placement_drift
    FOR EACH ROW WHEN (OLD.repaired_at IS NOT NULL) EXECUTE FUNCTION placement_drift_found();
CREATE TRIGGER instance_drift_inserted BEFORE INSERT ON instance_drift
    FOR EACH ROW EXECUTE FUNCTION instance_drift_found();
CREATE TRIGGER instance_drift_found BEFORE UPDATE ON instance_drift
    FOR EACH ROW WHEN (OLD.repaired_at IS NOT NULL) EXECUTE FUNCTION instance_drift_found();
