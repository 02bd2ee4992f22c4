-- +goose Up

-- The feed. Commit order is not id order, so a reader's place is (transaction, id), and it reads only below
-- pg_snapshot_xmin(pg_current_snapshot()): everything there is committed or gone. Who does what, on whose behalf and in
-- which operation, the store says with set_config(..., is_local => true); each event takes it from there.
CREATE TABLE events (
    transaction  xid8 NOT NULL DEFAULT pg_current_xact_id(),
    id           bigint GENERATED ALWAYS AS IDENTITY,
    subject_kind text NOT NULL,
    subject_id   text NOT NULL,
    host         text NOT NULL DEFAULT '',
    axis         text NOT NULL,
    from_value   text NOT NULL,
    to_value     text NOT NULL,
    data         jsonb,
    operation_id uuid DEFAULT nullif(current_setting('cyborg.operation', true), '')::uuid,
    actor        text NOT NULL DEFAULT coalesce(current_setting('cyborg.actor', true), ''),
    request_id   text NOT NULL DEFAULT coalesce(current_setting('cyborg.request_id', true), ''),
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (transaction, id)
);
CREATE INDEX events_by_subject ON events (subject_kind, subject_id, transaction, id);
CREATE INDEX events_by_operation ON events (operation_id, transaction, id) WHERE operation_id IS NOT NULL;
CREATE INDEX events_by_host ON events (host, transaction, id);
CREATE INDEX events_by_time ON events (at);

-- Rows are updated with every heartbeat; the free space keeps those updates within their page and off the indexes.
CREATE TABLE hosts (
    name             text PRIMARY KEY CHECK (name <> ''),
    boot_id          text NOT NULL,
    agent_version    text NOT NULL,
    agent_started_at timestamptz NOT NULL DEFAULT now(),
    report_seq       bigint NOT NULL,             -- sequence of the newest report merged
    digest           text NOT NULL,               -- of that report's content; empty where the records differ from it
    generation       bigint NOT NULL DEFAULT 1,   -- grows with each change of the recorded content
    attachments      jsonb NOT NULL DEFAULT '[]', -- the agent's journal, as last reported
    registered_at    timestamptz NOT NULL DEFAULT now(),
    last_seen        timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 60);
CREATE INDEX hosts_with_attachments ON hosts (name) WHERE attachments <> '[]';

-- A named instance of a driver on a host, as the agent reports it. One that is ok may still have something to complain
-- about, such as a handle that belongs to another device.
CREATE TABLE backends (
    host     text NOT NULL REFERENCES hosts,
    name     text NOT NULL CHECK (name <> ''),
    driver   text NOT NULL CHECK (driver <> ''),
    options  jsonb NOT NULL DEFAULT '{}',
    state    text NOT NULL CHECK (state IN ('ok', 'failed', 'disabled')),
    error    text NOT NULL DEFAULT '',
    services text[] NOT NULL DEFAULT '{}',
    reported boolean NOT NULL DEFAULT true, -- false once the agent no longer has it
    PRIMARY KEY (host, name),
    CHECK (state <> 'failed' OR error <> ''),
    CHECK (state <> 'disabled' OR error = ''),
    CHECK (reported OR state = 'disabled')
);

CREATE TABLE devices (
    id                bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    uuid              uuid PRIMARY KEY,
    host              text NOT NULL,
    backend           text NOT NULL,
    driver            text NOT NULL,
    identity          text NOT NULL CHECK (identity <> ''),
    type              text NOT NULL,
    vendor_id         text NOT NULL,
    product_id        text NOT NULL,
    vendor            text NOT NULL,
    model             text NOT NULL,
    numa_node         int,
    board_info        jsonb NOT NULL DEFAULT '{}',
    control_path_kind text NOT NULL,
    control_path_info jsonb NOT NULL,
    observed_seq      bigint NOT NULL DEFAULT 0, -- a report older than this changes nothing of the device: an operation's result is newer
    presence          text NOT NULL DEFAULT 'present' CHECK (presence IN ('present', 'missing')),
    missing_since     timestamptz,
    created_at        timestamptz NOT NULL DEFAULT now(),
    updated_at        timestamptz NOT NULL DEFAULT now(),
    UNIQUE (host, identity),
    UNIQUE (uuid, host),
    FOREIGN KEY (host, backend) REFERENCES backends,
    CHECK ((presence = 'missing') = (missing_since IS NOT NULL))
);
CREATE INDEX devices_by_backend ON devices (host, backend);
CREATE INDEX devices_missing ON devices (missing_since) WHERE presence = 'missing';

-- A deployable, which is also the seed API's accelerator.
CREATE TABLE deployables (
    id              bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    uuid            uuid PRIMARY KEY,
    device_uuid     uuid NOT NULL,
    host            text NOT NULL,
    name            text NOT NULL UNIQUE CHECK (name <> ''),        -- the resource provider's name; never changes
    local_name      text NOT NULL CHECK (local_name <> ''),         -- the driver's name for it
    provider_uuid   uuid NOT NULL UNIQUE,
    accelerator     text NOT NULL UNIQUE CHECK (accelerator <> ''), -- the accelerator's name
    specs           jsonb NOT NULL,                                 -- as the driver reports
    specs_set       jsonb NOT NULL DEFAULT '{}',                    -- as an operator set; laid over specs
    specs_version   bigint NOT NULL DEFAULT 1,
    attributes      jsonb NOT NULL DEFAULT '[]',
    bitstream_id    text NOT NULL DEFAULT '',
    program_set     text NOT NULL,
    protected       text NOT NULL DEFAULT '',
    untouched       boolean NOT NULL DEFAULT true,                  -- no Provision of it was ever admitted
    lifecycle       text NOT NULL DEFAULT 'inactive' CHECK (lifecycle IN ('inactive', 'installing', 'ready', 'error')),
    reason          text NOT NULL DEFAULT '',
    error_operation uuid,                                           -- which left it in error,
    error_kind      text NOT NULL DEFAULT '',                       -- and of what kind that was
    administration  text NOT NULL DEFAULT 'enabled' CHECK (administration IN ('enabled', 'maintaining')),
    maintain_reason text NOT NULL DEFAULT '',
    maintain_by     text NOT NULL DEFAULT '',
    maintain_until  timestamptz,
    presence        text NOT NULL DEFAULT 'present' CHECK (presence IN ('present', 'missing')),
    missing_since   timestamptz,
    fence_reason    text CHECK (fence_reason <> ''),
    fence_operation uuid,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    UNIQUE (host, local_name),
    UNIQUE (uuid, host),
    FOREIGN KEY (device_uuid, host) REFERENCES devices (uuid, host),
    CHECK ((lifecycle = 'error') = (reason <> '')),
    CHECK (lifecycle = 'error' OR (error_operation IS NULL AND error_kind = '')),
    CHECK (lifecycle IN ('inactive', 'error') OR NOT untouched),
    CHECK ((administration = 'maintaining') = (maintain_reason <> '')),
    CHECK (administration = 'maintaining' OR (maintain_by = '' AND maintain_until IS NULL)),
    CHECK ((presence = 'missing') = (missing_since IS NOT NULL)),
    CHECK (fence_operation IS NULL OR fence_reason IS NOT NULL)
);
CREATE INDEX deployables_by_device ON deployables (device_uuid);
CREATE INDEX deployables_by_host ON deployables (host, id);
CREATE INDEX deployables_by_lifecycle ON deployables (lifecycle, id);
CREATE INDEX deployables_missing ON deployables (id) WHERE presence = 'missing';
CREATE INDEX deployables_maintained ON deployables (maintain_until, id) WHERE administration = 'maintaining';
CREATE INDEX deployables_untouched ON deployables (id) WHERE untouched;

-- One row is one handle, and it has room for one holder.
CREATE TABLE attach_handles (
    id              bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    uuid            uuid PRIMARY KEY,
    deployable_uuid uuid NOT NULL,
    host            text NOT NULL,
    kind            text NOT NULL CHECK (kind <> ''),
    info            jsonb NOT NULL,
    identity        text NOT NULL CHECK (identity <> ''),
    presence        text NOT NULL DEFAULT 'present' CHECK (presence IN ('present', 'missing')),
    missing_since   timestamptz,
    holder_kind     text CHECK (holder_kind IN ('instance', 'host', 'service')),
    holder_id       text CHECK (holder_id <> ''),
    operation_id    uuid,        -- took it
    attached_at     timestamptz, -- null while in progress or in doubt
    UNIQUE (host, kind, identity), -- the same function is not offered twice
    FOREIGN KEY (deployable_uuid, host) REFERENCES deployables (uuid, host),
    CHECK ((presence = 'missing') = (missing_since IS NOT NULL)),
    CHECK ((holder_kind IS NULL) = (holder_id IS NULL)),
    CHECK ((holder_kind IS NULL) = (operation_id IS NULL)),
    CHECK (attached_at IS NULL OR holder_kind IS NOT NULL)
);
CREATE INDEX attach_handles_by_deployable ON attach_handles (deployable_uuid);
CREATE INDEX attach_handles_by_holder ON attach_handles (holder_kind, holder_id) WHERE holder_kind IS NOT NULL;
CREATE INDEX attach_handles_missing ON attach_handles (missing_since) WHERE presence = 'missing';

CREATE TABLE operations (
    id              uuid PRIMARY KEY,
    kind            text NOT NULL CHECK (kind IN ('provision', 'program', 'attach', 'detach', 'configure')),
    state           text NOT NULL DEFAULT 'admitted'
                    CHECK (state IN ('admitted', 'running', 'succeeded', 'failed', 'needs_operator', 'cancelled')),
    open            boolean NOT NULL GENERATED ALWAYS AS (state IN ('admitted', 'running')) STORED,
    host            text NOT NULL REFERENCES hosts,
    first_subject   int NOT NULL DEFAULT 0 CHECK (first_subject = 0),
    input           jsonb NOT NULL,
    before          jsonb NOT NULL DEFAULT '{}', -- what an undo brings back: names, fences
    result          jsonb,
    error           jsonb,
    steps           jsonb NOT NULL DEFAULT '[]',
    actor           text NOT NULL,
    project         text NOT NULL DEFAULT '',
    request_id      text NOT NULL DEFAULT '',
    idempotency_key text CHECK (idempotency_key <> ''),
    fingerprint     text,                -- of the request that carried the key
    retry_of        uuid REFERENCES operations ON DELETE SET NULL,
    cancel_at       timestamptz,
    admitted_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at      timestamptz,
    ended_at        timestamptz,
    UNIQUE (id, open),
    CHECK (open = (ended_at IS NULL)),
    CHECK ((idempotency_key IS NULL) = (fingerprint IS NULL)),
    CHECK (state NOT IN ('running', 'succeeded', 'needs_operator') OR started_at IS NOT NULL),
    CHECK ((state IN ('failed', 'needs_operator', 'cancelled')) = (error IS NOT NULL))
);
CREATE UNIQUE INDEX operations_by_idempotency_key ON operations (actor, project, idempotency_key);
CREATE INDEX operations_idempotent ON operations (admitted_at) WHERE idempotency_key IS NOT NULL;
CREATE INDEX operations_open ON operations (admitted_at) WHERE open;
CREATE INDEX operations_ended ON operations (ended_at) WHERE NOT open;
CREATE INDEX operations_newest ON operations (admitted_at DESC, id DESC);
CREATE INDEX operations_by_host ON operations (host, admitted_at DESC, id DESC);
CREATE INDEX operations_by_retry ON operations (retry_of) WHERE retry_of IS NOT NULL;

CREATE TABLE operation_subjects (
    operation_id uuid NOT NULL REFERENCES operations ON DELETE CASCADE,
    position     int NOT NULL CHECK (position >= 0),
    kind         text NOT NULL,
    subject_id   text NOT NULL CHECK (subject_id <> ''),
    PRIMARY KEY (operation_id, position)
);
CREATE INDEX operation_subjects_by_subject ON operation_subjects (kind, subject_id, operation_id);
-- No operation without a subject: its subject 0 must exist when the transaction commits.
ALTER TABLE operations ADD CONSTRAINT operations_have_a_subject
    FOREIGN KEY (id, first_subject) REFERENCES operation_subjects (operation_id, position) DEFERRABLE INITIALLY DEFERRED;

-- The claim is the lock. One per deployable, and none of an operation that has ended: the generated column "open" of
-- the operation turns false with its terminal state, and this reference then refuses the update while a claim is left.
CREATE TABLE claims (
    deployable_uuid uuid PRIMARY KEY REFERENCES deployables,
    operation_id    uuid NOT NULL,
    operation_open  boolean NOT NULL DEFAULT true CHECK (operation_open),
    claimed_at      timestamptz NOT NULL DEFAULT now(),
    FOREIGN KEY (operation_id, operation_open) REFERENCES operations (id, open)
);
CREATE INDEX claims_by_operation ON claims (operation_id);

CREATE TABLE device_profiles (
    id          bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    uuid        uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name        text NOT NULL UNIQUE CHECK (name <> '' AND length(name) <= 255),
    description text,
    groups      jsonb NOT NULL CHECK (jsonb_typeof(groups) = 'array' AND jsonb_array_length(groups) > 0),
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz
);

CREATE TABLE arqs (
    id               bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    uuid             uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    state            text NOT NULL DEFAULT 'Initial'
                     CHECK (state IN ('Initial', 'BindStarted', 'Bound', 'BindFailed', 'Unbound', 'UnbindFailed', 'Deleting')),
    project          text,
    profile_uuid     uuid NOT NULL REFERENCES device_profiles,
    profile_name     text NOT NULL,
    group_index      int NOT NULL CHECK (group_index >= 0),
    profile_group    jsonb NOT NULL, -- copied at creation; later changes of the profile do not reach it
    host             text,
    provider_uuid    uuid,
    instance_uuid    uuid,
    handle_uuid      uuid UNIQUE REFERENCES attach_handles,
    created_at       timestamptz NOT NULL DEFAULT now(),
    updated_at       timestamptz,
    CHECK (state <> 'Bound' OR (handle_uuid IS NOT NULL AND instance_uuid IS NOT NULL))
);
CREATE INDEX arqs_by_instance ON arqs (instance_uuid);
CREATE INDEX arqs_by_profile ON arqs (profile_uuid);

-- Running processes of roles without a host inventory (agents are seen through hosts).
CREATE TABLE services (
    role       text NOT NULL,
    host       text NOT NULL,
    instance   text NOT NULL,
    version    text NOT NULL,
    started_at timestamptz NOT NULL,
    last_seen  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (role, host, instance)
);

-- The triggers that write the events: no change of state can be without one. They run once per statement, so that a
-- thousand new devices cost one insert into the feed.
-- +goose StatementBegin
CREATE FUNCTION wake_readers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM new_rows) THEN
        PERFORM pg_notify('cyborg_events', '');
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION hosts_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
        VALUES ('host', NEW.name, NEW.name, 'boot', '', NEW.boot_id);
    ELSIF OLD.boot_id <> NEW.boot_id THEN
        INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
        VALUES ('host', NEW.name, NEW.name, 'boot', OLD.boot_id, NEW.boot_id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION note_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.updated_at := now();
    RETURN NEW;
END $$;

CREATE FUNCTION backends_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'backend', n.host || '/' || n.name, n.host, e.axis, '', e.value, e.data
    FROM new_rows n CROSS JOIN LATERAL (VALUES
        (1, 'state',  n.state,  jsonb_build_object('error', n.error)),
        (2, 'driver', n.driver, NULL::jsonb)) AS e (position, axis, value, data)
    ORDER BY n.host, n.name, e.position;
    RETURN NULL;
END $$;

CREATE FUNCTION backends_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'backend', n.host || '/' || n.name, n.host, e.axis, e.old, e.new, e.data
    FROM new_rows n JOIN old_rows o ON o.host = n.host AND o.name = n.name CROSS JOIN LATERAL (VALUES
        (1, 'state',   o.state,  n.state,  jsonb_build_object('error', n.error), (o.state, o.error) <> (n.state, n.error)),
        (2, 'driver',  o.driver, n.driver, NULL::jsonb, o.driver <> n.driver),
        (3, 'options', '', '', NULL::jsonb, o.options <> n.options)) AS e (position, axis, old, new, data, changed)
    WHERE e.changed ORDER BY n.host, n.name, e.position;
    RETURN NULL;
END $$;

CREATE FUNCTION backends_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
    SELECT 'backend', o.host || '/' || o.name, o.host, e.axis, e.value, ''
    FROM old_rows o CROSS JOIN LATERAL (VALUES (1, 'state', o.state), (2, 'driver', o.driver)) AS e (position, axis, value)
    ORDER BY o.host, o.name, e.position;
    RETURN NULL;
END $$;

CREATE FUNCTION devices_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'device', n.uuid::text, n.host, 'presence', '', n.presence, jsonb_build_object('identity', n.identity)
    FROM new_rows n ORDER BY n.id;
    RETURN NULL;
END $$;

CREATE FUNCTION devices_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'device', n.uuid::text, n.host, e.axis, e.old, e.new, jsonb_build_object('identity', n.identity)
    FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid CROSS JOIN LATERAL (VALUES
        (1, 'presence', o.presence, n.presence),
        (2, 'backend',  o.backend,  n.backend)) AS e (position, axis, old, new)
    WHERE e.old <> e.new ORDER BY n.id, e.position;
    RETURN NULL;
END $$;

CREATE FUNCTION devices_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'device', o.uuid::text, o.host, 'presence', o.presence, '', jsonb_build_object('identity', o.identity)
    FROM old_rows o ORDER BY o.id;
    RETURN NULL;
END $$;

CREATE FUNCTION deployables_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
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

CREATE FUNCTION deployables_updated() RETURNS trigger LANGUAGE plpgsql AS $$
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

CREATE FUNCTION deployables_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'accelerator', o.uuid::text, o.host, 'presence', o.presence, '', jsonb_build_object('deployable', o.name)
    FROM old_rows o ORDER BY o.id;
    RETURN NULL;
END $$;

CREATE FUNCTION holder_text(kind text, id text, attached_at timestamptz) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(kind || ':' || id || CASE WHEN attached_at IS NULL THEN ' (unconfirmed)' ELSE '' END, '')
$$;

CREATE FUNCTION attach_handles_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'handle', n.uuid::text, n.host, 'presence', '', n.presence,
           jsonb_build_object('accelerator', n.deployable_uuid, 'identity', n.identity)
    FROM new_rows n ORDER BY n.id;
    RETURN NULL;
END $$;

-- Who holds a handle belongs to the history of its accelerator.
CREATE FUNCTION attach_handles_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT e.subject, e.subject_id, n.host, e.axis, e.old, e.new,
           jsonb_build_object('accelerator', n.deployable_uuid, 'handle', n.uuid, 'identity', n.identity)
    FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid CROSS JOIN LATERAL (VALUES
        (1, 'handle', n.uuid::text, 'accelerator', o.deployable_uuid::text, n.deployable_uuid::text),
        (2, 'handle', n.uuid::text, 'presence', o.presence, n.presence),
        (3, 'accelerator', n.deployable_uuid::text, 'holder',
            holder_text(o.holder_kind, o.holder_id, o.attached_at), holder_text(n.holder_kind, n.holder_id, n.attached_at))
        ) AS e (position, subject, subject_id, axis, old, new)
    WHERE e.old <> e.new ORDER BY n.id, e.position;
    RETURN NULL;
END $$;

CREATE FUNCTION attach_handles_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'handle', o.uuid::text, o.host, 'presence', o.presence, '',
           jsonb_build_object('accelerator', o.deployable_uuid, 'identity', o.identity)
    FROM old_rows o ORDER BY o.id;
    RETURN NULL;
END $$;

CREATE FUNCTION claims_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
    SELECT 'accelerator', n.deployable_uuid::text, d.host, 'claim', '', n.operation_id::text
    FROM new_rows n JOIN deployables d ON d.uuid = n.deployable_uuid ORDER BY d.id;
    RETURN NULL;
END $$;

CREATE FUNCTION claims_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
    SELECT 'accelerator', o.deployable_uuid::text, d.host, 'claim', o.operation_id::text, ''
    FROM old_rows o JOIN deployables d ON d.uuid = o.deployable_uuid ORDER BY d.id;
    RETURN NULL;
END $$;

CREATE FUNCTION refuse_handover() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a claim is taken and released, never handed over' USING ERRCODE = 'integrity_constraint_violation';
END $$;

CREATE FUNCTION operations_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data, operation_id)
    SELECT 'operation', n.id::text, n.host, 'state', '', n.state, jsonb_build_object('kind', n.kind), n.id
    FROM new_rows n ORDER BY n.id;
    RETURN NULL;
END $$;

CREATE FUNCTION operations_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data, operation_id)
    SELECT 'operation', n.id::text, n.host, e.axis, e.old, e.new, e.data, n.id
    FROM new_rows n JOIN old_rows o ON o.id = n.id CROSS JOIN LATERAL (VALUES
        (1, 'cancel', '', 'requested', NULL::jsonb, o.cancel_at IS NULL AND n.cancel_at IS NOT NULL),
        (2, 'steps', '', '', jsonb_build_object('steps', n.steps), o.steps <> n.steps),
        (3, 'state', o.state, n.state, jsonb_strip_nulls(jsonb_build_object('kind', n.kind, 'error', n.error, 'result', n.result)),
            o.state <> n.state)) AS e (position, axis, old, new, data, changed)
    WHERE e.changed ORDER BY n.id, e.position;
    RETURN NULL;
END $$;

CREATE FUNCTION arqs_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
    SELECT 'arq', n.uuid::text, coalesce(n.host, ''), 'state', '', n.state FROM new_rows n ORDER BY n.id;
    RETURN NULL;
END $$;

CREATE FUNCTION arqs_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
    SELECT 'arq', n.uuid::text, coalesce(n.host, ''), 'state', o.state, n.state
    FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid WHERE o.state <> n.state ORDER BY n.id;
    RETURN NULL;
END $$;

CREATE FUNCTION arqs_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
    SELECT 'arq', o.uuid::text, coalesce(o.host, ''), 'state', o.state, '' FROM old_rows o ORDER BY o.id;
    RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER wake_readers AFTER INSERT ON events
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION wake_readers();
-- Per row and for this column only: a heartbeat updates every host and none of their boot ids.
CREATE TRIGGER hosts_changed AFTER INSERT OR UPDATE OF boot_id ON hosts FOR EACH ROW EXECUTE FUNCTION hosts_changed();
CREATE TRIGGER note_update BEFORE UPDATE ON devices FOR EACH ROW EXECUTE FUNCTION note_update();
CREATE TRIGGER note_update BEFORE UPDATE ON deployables FOR EACH ROW EXECUTE FUNCTION note_update();
CREATE TRIGGER refuse_handover BEFORE UPDATE ON claims FOR EACH STATEMENT EXECUTE FUNCTION refuse_handover();
CREATE TRIGGER backends_inserted AFTER INSERT ON backends
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION backends_inserted();
CREATE TRIGGER backends_updated AFTER UPDATE ON backends
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION backends_updated();
CREATE TRIGGER backends_deleted AFTER DELETE ON backends
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION backends_deleted();
CREATE TRIGGER devices_inserted AFTER INSERT ON devices
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION devices_inserted();
CREATE TRIGGER devices_updated AFTER UPDATE ON devices
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION devices_updated();
CREATE TRIGGER devices_deleted AFTER DELETE ON devices
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION devices_deleted();
CREATE TRIGGER deployables_inserted AFTER INSERT ON deployables
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION deployables_inserted();
CREATE TRIGGER deployables_updated AFTER UPDATE ON deployables
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION deployables_updated();
CREATE TRIGGER deployables_deleted AFTER DELETE ON deployables
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION deployables_deleted();
CREATE TRIGGER attach_handles_inserted AFTER INSERT ON attach_handles
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION attach_handles_inserted();
CREATE TRIGGER attach_handles_updated AFTER UPDATE ON attach_handles
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION attach_handles_updated();
CREATE TRIGGER attach_handles_deleted AFTER DELETE ON attach_handles
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION attach_handles_deleted();
CREATE TRIGGER claims_inserted AFTER INSERT ON claims
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION claims_inserted();
CREATE TRIGGER claims_deleted AFTER DELETE ON claims
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION claims_deleted();
CREATE TRIGGER operations_inserted AFTER INSERT ON operations
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION operations_inserted();
CREATE TRIGGER operations_updated AFTER UPDATE ON operations
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION operations_updated();
CREATE TRIGGER arqs_inserted AFTER INSERT ON arqs
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION arqs_inserted();
CREATE TRIGGER arqs_updated AFTER UPDATE ON arqs
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION arqs_updated();
CREATE TRIGGER arqs_deleted AFTER DELETE ON arqs
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION arqs_deleted();

-- +goose Down
DROP TABLE arqs, device_profiles, claims, operation_subjects, operations, attach_handles, deployables, devices, backends,
    services, hosts, events CASCADE;
DROP FUNCTION wake_readers, note_update, refuse_handover, hosts_changed, holder_text, backends_inserted, backends_updated, backends_deleted,
    devices_inserted, devices_updated, devices_deleted, deployables_inserted, deployables_updated,
    deployables_deleted, attach_handles_inserted, attach_handles_updated, attach_handles_deleted, claims_inserted,
    claims_deleted, operations_inserted, operations_updated, arqs_inserted, arqs_updated, arqs_deleted;
