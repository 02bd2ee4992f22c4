-- +goose Up

-- Who does what, on whose behalf, in which operation: the store sets these for the transaction
-- (set_config(..., is_local => true)), and the triggers below write them into every event.
-- +goose StatementBegin
CREATE FUNCTION write_event(subject_kind text, subject_id text, host text, axis text, from_value text, to_value text, data jsonb)
RETURNS void LANGUAGE sql AS $$
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data, operation_id, actor, request_id)
    VALUES (subject_kind, subject_id, host, axis, coalesce(from_value, ''), coalesce(to_value, ''), data,
            nullif(current_setting('cyborg.operation', true), '')::uuid,
            coalesce(current_setting('cyborg.actor', true), ''),
            coalesce(current_setting('cyborg.request_id', true), ''))
$$;
-- +goose StatementEnd

CREATE TABLE hosts (
    name          text PRIMARY KEY CHECK (name <> ''),
    boot_id       text NOT NULL,
    agent_version text NOT NULL,
    report_seq    bigint NOT NULL,           -- sequence of the newest report merged
    digest        text NOT NULL,             -- of that report's content
    generation    bigint NOT NULL DEFAULT 1, -- grows with each change of the content
    attachments   jsonb NOT NULL DEFAULT '[]', -- the agent's journal, as last reported
    registered_at timestamptz NOT NULL DEFAULT now(),
    last_seen     timestamptz NOT NULL DEFAULT now()
);

-- A named instance of a driver on a host, as the agent reports it.
CREATE TABLE backends (
    host     text NOT NULL REFERENCES hosts,
    name     text NOT NULL,
    driver   text NOT NULL,
    options  jsonb NOT NULL DEFAULT '{}',
    state    text NOT NULL CHECK (state IN ('ok', 'failed', 'disabled')),
    error    text NOT NULL DEFAULT '',
    services text[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (host, name),
    CHECK ((state = 'failed') = (error <> ''))
);

CREATE TABLE devices (
    id                bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    uuid              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    host              text NOT NULL REFERENCES hosts,
    backend           text NOT NULL,
    driver            text NOT NULL,
    identity          text NOT NULL,
    type              text NOT NULL,
    vendor_id         text NOT NULL,
    product_id        text NOT NULL,
    vendor            text NOT NULL,
    model             text NOT NULL,
    numa_node         int,
    board_info        jsonb NOT NULL DEFAULT '{}',
    control_path_kind text NOT NULL,
    control_path_info jsonb NOT NULL,
    presence          text NOT NULL DEFAULT 'present' CHECK (presence IN ('present', 'missing')),
    missing_since     timestamptz,
    created_at        timestamptz NOT NULL DEFAULT now(),
    updated_at        timestamptz NOT NULL DEFAULT now(),
    UNIQUE (host, identity),
    FOREIGN KEY (host, backend) REFERENCES backends,
    CHECK ((presence = 'missing') = (missing_since IS NOT NULL))
);
CREATE INDEX devices_by_backend ON devices (host, backend);

-- A deployable, which is also the seed API's accelerator.
CREATE TABLE deployables (
    id             bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    uuid           uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    device_uuid    uuid NOT NULL REFERENCES devices,
    host           text NOT NULL REFERENCES hosts,
    name           text NOT NULL UNIQUE CHECK (name <> ''),         -- the resource provider's name; never changes
    local_name     text NOT NULL,                                   -- the driver's name for it
    provider_uuid  uuid NOT NULL UNIQUE,
    accelerator    text NOT NULL UNIQUE CHECK (accelerator <> ''),  -- the accelerator's name
    specs          jsonb NOT NULL,                                  -- as the driver reports
    specs_set      jsonb NOT NULL DEFAULT '{}',                     -- as an operator set; laid over specs
    specs_version  bigint NOT NULL DEFAULT 1,
    attributes     jsonb NOT NULL DEFAULT '[]',
    bitstream_id   text NOT NULL DEFAULT '',
    program_set    text NOT NULL,
    protected      text NOT NULL DEFAULT '',
    observed_seq   bigint NOT NULL, -- a report older than this does not change the row: an operation's result is newer
    lifecycle      text NOT NULL DEFAULT 'inactive' CHECK (lifecycle IN ('inactive', 'installing', 'ready', 'error')),
    reason         text NOT NULL DEFAULT '',
    administration text NOT NULL DEFAULT 'enabled' CHECK (administration IN ('enabled', 'maintaining')),
    maintain_reason text NOT NULL DEFAULT '',
    maintain_by    text NOT NULL DEFAULT '',
    maintain_until timestamptz,
    presence       text NOT NULL DEFAULT 'present' CHECK (presence IN ('present', 'missing')),
    missing_since  timestamptz,
    fence_reason   text CHECK (fence_reason <> ''),
    fence_operation uuid,
    created_at     timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now(),
    UNIQUE (host, local_name),
    CHECK ((lifecycle = 'error') = (reason <> '')),
    CHECK ((administration = 'maintaining') = (maintain_reason <> '')),
    CHECK (administration = 'maintaining' OR (maintain_by = '' AND maintain_until IS NULL)),
    CHECK ((presence = 'missing') = (missing_since IS NOT NULL)),
    CHECK (fence_operation IS NULL OR fence_reason IS NOT NULL)
);
CREATE INDEX deployables_by_device ON deployables (device_uuid);
CREATE INDEX deployables_by_host ON deployables (host, uuid);

CREATE TABLE operations (
    id              uuid PRIMARY KEY,
    kind            text NOT NULL,
    state           text NOT NULL DEFAULT 'admitted'
                    CHECK (state IN ('admitted', 'running', 'succeeded', 'failed', 'needs_operator', 'cancelled')),
    open            boolean NOT NULL GENERATED ALWAYS AS (state IN ('admitted', 'running')) STORED,
    host            text REFERENCES hosts,
    first_subject   int NOT NULL DEFAULT 0 CHECK (first_subject = 0),
    input           jsonb NOT NULL,
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
    admitted_at     timestamptz NOT NULL DEFAULT now(),
    started_at      timestamptz,
    ended_at        timestamptz,
    UNIQUE (id, open),
    CHECK (open = (ended_at IS NULL)),
    CHECK ((idempotency_key IS NULL) = (fingerprint IS NULL)),
    CHECK (state <> 'running' OR started_at IS NOT NULL),
    CHECK ((state IN ('failed', 'needs_operator', 'cancelled')) = (error IS NOT NULL))
);
CREATE UNIQUE INDEX operations_by_idempotency_key ON operations (actor, project, idempotency_key);
CREATE INDEX operations_open ON operations (admitted_at) WHERE open;
CREATE INDEX operations_newest ON operations (admitted_at DESC, id DESC);
CREATE INDEX operations_by_host ON operations (host, admitted_at DESC, id DESC);

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

-- One row is one handle, and it has room for one holder.
CREATE TABLE attach_handles (
    id              bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    uuid            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    deployable_uuid uuid NOT NULL REFERENCES deployables,
    host            text NOT NULL REFERENCES hosts,
    kind            text NOT NULL,
    info            jsonb NOT NULL,
    identity        text NOT NULL,
    presence        text NOT NULL DEFAULT 'present' CHECK (presence IN ('present', 'missing')),
    holder_kind     text CHECK (holder_kind IN ('instance', 'host', 'service')),
    holder_id       text CHECK (holder_id <> ''),
    operation_id    uuid,        -- took it
    attached_at     timestamptz, -- null while in progress or in doubt
    UNIQUE (host, kind, identity), -- the same function is not offered twice
    CHECK ((holder_kind IS NULL) = (holder_id IS NULL)),
    CHECK ((holder_kind IS NULL) = (operation_id IS NULL)),
    CHECK (attached_at IS NULL OR holder_kind IS NOT NULL)
);
CREATE INDEX attach_handles_by_deployable ON attach_handles (deployable_uuid);
CREATE INDEX attach_handles_by_holder ON attach_handles (holder_kind, holder_id) WHERE holder_kind IS NOT NULL;

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

-- The feed. Commit order is not id order, so a reader's place is (transaction, id), and it reads only below
-- pg_snapshot_xmin(pg_current_snapshot()): everything there is committed or gone.
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
    operation_id uuid,
    actor        text NOT NULL,
    request_id   text NOT NULL,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (transaction, id)
);
CREATE INDEX events_by_subject ON events (subject_kind, subject_id, transaction, id);
CREATE INDEX events_by_operation ON events (operation_id, transaction, id) WHERE operation_id IS NOT NULL;
CREATE INDEX events_by_time ON events (at);

-- +goose StatementBegin
CREATE FUNCTION notify_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('cyborg_events', '');
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER events_wake AFTER INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION notify_events();

-- The triggers that write the events: no change of state can be without one.
-- +goose StatementBegin
CREATE FUNCTION hosts_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM write_event('host', NEW.name, NEW.name, 'registered', '', NEW.boot_id, NULL);
    ELSIF OLD.boot_id <> NEW.boot_id THEN
        PERFORM write_event('host', NEW.name, NEW.name, 'boot', OLD.boot_id, NEW.boot_id, NULL);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION backends_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM write_event('backend', OLD.host || '/' || OLD.name, OLD.host, 'state', OLD.state, '', NULL);
    ELSIF TG_OP = 'INSERT' THEN
        PERFORM write_event('backend', NEW.host || '/' || NEW.name, NEW.host, 'state', '', NEW.state,
                            jsonb_build_object('driver', NEW.driver, 'error', NEW.error));
    ELSE
        IF OLD.state <> NEW.state OR OLD.error <> NEW.error THEN
            PERFORM write_event('backend', NEW.host || '/' || NEW.name, NEW.host, 'state', OLD.state, NEW.state,
                                jsonb_build_object('driver', NEW.driver, 'error', NEW.error));
        END IF;
        IF OLD.options <> NEW.options OR OLD.driver <> NEW.driver THEN
            PERFORM write_event('backend', NEW.host || '/' || NEW.name, NEW.host, 'options', OLD.driver, NEW.driver, NULL);
        END IF;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION devices_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM write_event('device', OLD.uuid::text, OLD.host, 'presence', OLD.presence, '', jsonb_build_object('identity', OLD.identity));
    ELSIF TG_OP = 'INSERT' THEN
        PERFORM write_event('device', NEW.uuid::text, NEW.host, 'presence', '', NEW.presence, jsonb_build_object('identity', NEW.identity));
    ELSIF OLD.presence <> NEW.presence THEN
        PERFORM write_event('device', NEW.uuid::text, NEW.host, 'presence', OLD.presence, NEW.presence, jsonb_build_object('identity', NEW.identity));
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION deployables_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM write_event('accelerator', OLD.uuid::text, OLD.host, 'presence', OLD.presence, '', jsonb_build_object('name', OLD.name));
        RETURN NULL;
    END IF;
    IF TG_OP = 'INSERT' THEN
        PERFORM write_event('accelerator', NEW.uuid::text, NEW.host, 'presence', '', NEW.presence, jsonb_build_object('name', NEW.name));
        PERFORM write_event('accelerator', NEW.uuid::text, NEW.host, 'name', '', NEW.accelerator, NULL);
        PERFORM write_event('accelerator', NEW.uuid::text, NEW.host, 'lifecycle', '', NEW.lifecycle, NULL);
        IF NEW.bitstream_id <> '' THEN
            PERFORM write_event('accelerator', NEW.uuid::text, NEW.host, 'bitstream', '', NEW.bitstream_id, NULL);
        END IF;
        RETURN NULL;
    END IF;
    IF OLD.presence <> NEW.presence THEN
        PERFORM write_event('accelerator', NEW.uuid::text, NEW.host, 'presence', OLD.presence, NEW.presence, NULL);
    END IF;
    IF OLD.accelerator <> NEW.accelerator THEN
        PERFORM write_event('accelerator', NEW.uuid::text, NEW.host, 'name', OLD.accelerator, NEW.accelerator, NULL);
    END IF;
    IF OLD.lifecycle <> NEW.lifecycle OR OLD.reason <> NEW.reason THEN
        PERFORM write_event('accelerator', NEW.uuid::text, NEW.host, 'lifecycle', OLD.lifecycle, NEW.lifecycle, jsonb_build_object('reason', NEW.reason));
    END IF;
    IF (OLD.administration, OLD.maintain_reason, OLD.maintain_by, OLD.maintain_until)
        IS DISTINCT FROM (NEW.administration, NEW.maintain_reason, NEW.maintain_by, NEW.maintain_until) THEN
        PERFORM write_event('accelerator', NEW.uuid::text, NEW.host, 'administration', OLD.administration, NEW.administration,
                            jsonb_build_object('reason', NEW.maintain_reason, 'until', NEW.maintain_until));
    END IF;
    IF (OLD.fence_reason, OLD.fence_operation) IS DISTINCT FROM (NEW.fence_reason, NEW.fence_operation) THEN
        PERFORM write_event('accelerator', NEW.uuid::text, NEW.host, 'fence', OLD.fence_reason, NEW.fence_reason, NULL);
    END IF;
    IF OLD.bitstream_id <> NEW.bitstream_id THEN
        PERFORM write_event('accelerator', NEW.uuid::text, NEW.host, 'bitstream', OLD.bitstream_id, NEW.bitstream_id, NULL);
    END IF;
    IF OLD.protected <> NEW.protected THEN
        PERFORM write_event('accelerator', NEW.uuid::text, NEW.host, 'protected', OLD.protected, NEW.protected, NULL);
    END IF;
    IF OLD.specs <> NEW.specs OR OLD.attributes <> NEW.attributes THEN
        PERFORM write_event('accelerator', NEW.uuid::text, NEW.host, 'reported', '', '', jsonb_build_object('specs', NEW.specs, 'attributes', NEW.attributes));
    END IF;
    IF OLD.specs_version <> NEW.specs_version THEN
        PERFORM write_event('accelerator', NEW.uuid::text, NEW.host, 'specs', OLD.specs_version::text, NEW.specs_version::text, NEW.specs_set);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION attach_handles_events() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    old_holder text; new_holder text; details jsonb;
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.holder_kind IS NOT NULL THEN
        old_holder := OLD.holder_kind || ':' || OLD.holder_id || CASE WHEN OLD.attached_at IS NULL THEN ' (in progress)' ELSE '' END;
    END IF;
    IF TG_OP = 'DELETE' THEN
        PERFORM write_event('handle', OLD.uuid::text, OLD.host, 'presence', OLD.presence, '',
                            jsonb_build_object('accelerator', OLD.deployable_uuid, 'identity', OLD.identity));
        RETURN NULL;
    END IF;
    IF NEW.holder_kind IS NOT NULL THEN
        new_holder := NEW.holder_kind || ':' || NEW.holder_id || CASE WHEN NEW.attached_at IS NULL THEN ' (in progress)' ELSE '' END;
    END IF;
    details := jsonb_build_object('handle', NEW.uuid, 'identity', NEW.identity);
    IF TG_OP = 'INSERT' THEN
        PERFORM write_event('handle', NEW.uuid::text, NEW.host, 'presence', '', NEW.presence,
                            jsonb_build_object('accelerator', NEW.deployable_uuid, 'identity', NEW.identity));
    ELSIF OLD.presence <> NEW.presence THEN
        PERFORM write_event('handle', NEW.uuid::text, NEW.host, 'presence', OLD.presence, NEW.presence,
                            jsonb_build_object('accelerator', NEW.deployable_uuid, 'identity', NEW.identity));
    END IF;
    IF old_holder IS DISTINCT FROM new_holder THEN
        PERFORM write_event('accelerator', NEW.deployable_uuid::text, NEW.host, 'holder', old_holder, new_holder, details);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION claims_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM write_event('accelerator', OLD.deployable_uuid::text, d.host, 'claim', OLD.operation_id::text, '', NULL)
        FROM deployables d WHERE d.uuid = OLD.deployable_uuid;
    ELSE
        PERFORM write_event('accelerator', NEW.deployable_uuid::text, d.host, 'claim', '', NEW.operation_id::text, NULL)
        FROM deployables d WHERE d.uuid = NEW.deployable_uuid;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION operations_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM write_event('operation', NEW.id::text, coalesce(NEW.host, ''), 'state', '', NEW.state, jsonb_build_object('kind', NEW.kind));
        RETURN NULL;
    END IF;
    IF OLD.state <> NEW.state THEN
        PERFORM write_event('operation', NEW.id::text, coalesce(NEW.host, ''), 'state', OLD.state, NEW.state,
                            jsonb_build_object('kind', NEW.kind, 'error', NEW.error));
    END IF;
    IF OLD.cancel_at IS NULL AND NEW.cancel_at IS NOT NULL THEN
        PERFORM write_event('operation', NEW.id::text, coalesce(NEW.host, ''), 'cancel', '', 'requested', NULL);
    END IF;
    IF OLD.steps <> NEW.steps AND OLD.state = NEW.state THEN
        PERFORM write_event('operation', NEW.id::text, coalesce(NEW.host, ''), 'step', '', '', jsonb_build_object('steps', NEW.steps));
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION arqs_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM write_event('arq', OLD.uuid::text, coalesce(OLD.host, ''), 'state', OLD.state, '', NULL);
    ELSIF TG_OP = 'INSERT' THEN
        PERFORM write_event('arq', NEW.uuid::text, coalesce(NEW.host, ''), 'state', '', NEW.state, NULL);
    ELSIF OLD.state <> NEW.state THEN
        PERFORM write_event('arq', NEW.uuid::text, coalesce(NEW.host, ''), 'state', OLD.state, NEW.state, NULL);
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER hosts_events AFTER INSERT OR UPDATE OF boot_id ON hosts FOR EACH ROW EXECUTE FUNCTION hosts_events();
CREATE TRIGGER backends_events AFTER INSERT OR UPDATE OR DELETE ON backends FOR EACH ROW EXECUTE FUNCTION backends_events();
CREATE TRIGGER devices_events AFTER INSERT OR UPDATE OR DELETE ON devices FOR EACH ROW EXECUTE FUNCTION devices_events();
CREATE TRIGGER deployables_events AFTER INSERT OR UPDATE OR DELETE ON deployables FOR EACH ROW EXECUTE FUNCTION deployables_events();
CREATE TRIGGER attach_handles_events AFTER INSERT OR UPDATE OR DELETE ON attach_handles FOR EACH ROW EXECUTE FUNCTION attach_handles_events();
CREATE TRIGGER claims_events AFTER INSERT OR DELETE ON claims FOR EACH ROW EXECUTE FUNCTION claims_events();
CREATE TRIGGER operations_events AFTER INSERT OR UPDATE ON operations FOR EACH ROW EXECUTE FUNCTION operations_events();
CREATE TRIGGER arqs_events AFTER INSERT OR UPDATE OR DELETE ON arqs FOR EACH ROW EXECUTE FUNCTION arqs_events();

-- +goose Down
DROP TABLE arqs, device_profiles, claims, attach_handles, deployables, devices, backends, services CASCADE;
DROP TABLE operation_subjects, operations CASCADE;
DROP TABLE hosts, events CASCADE;
DROP FUNCTION write_event, notify_events, hosts_events, backends_events, devices_events, deployables_events,
    attach_handles_events, claims_events, operations_events, arqs_events;
