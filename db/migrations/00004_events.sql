-- +goose Up

-- The feed: one event for each change of one thing, written by triggers, so that no change of state
-- can be without one.

-- Commit order is not id order, so a reader's place is (transaction, id), and it reads only below
-- pg_snapshot_xmin(pg_current_snapshot()): everything there is committed or rolled back. The store
-- says with set_config(..., is_local => true) who acts, by which request and in which operation;
-- the defaults of these columns read that.
CREATE TABLE events (
    transaction  xid8 NOT NULL DEFAULT pg_current_xact_id(),
    id           bigint GENERATED ALWAYS AS IDENTITY,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- what has changed, and how
    subject_kind text NOT NULL,
    subject_id   text NOT NULL,
    host         text NOT NULL DEFAULT '',
    axis         text NOT NULL,
    from_value   text NOT NULL,
    to_value     text NOT NULL,
    data         jsonb,
    -- why, and for whom
    operation_id uuid DEFAULT nullif(current_setting('cyborg.operation', true), '')::uuid,
    actor        text NOT NULL DEFAULT coalesce(current_setting('cyborg.actor', true), ''),
    request_id   text NOT NULL DEFAULT coalesce(current_setting('cyborg.request_id', true), ''),
    PRIMARY KEY (transaction, id)
);
-- Histories are in the order of the feed: of a thing, of an operation, of a host.
CREATE INDEX events_by_subject ON events (subject_kind, subject_id, transaction, id);
CREATE INDEX events_by_operation ON events (operation_id, transaction, id) WHERE operation_id IS NOT NULL;
CREATE INDEX events_by_host ON events (host, transaction, id);
-- The oldest are pruned.
CREATE INDEX events_by_time ON events (at);

-- +goose StatementBegin
CREATE FUNCTION wake_readers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM new_rows) THEN
        PERFORM pg_notify('cyborg_events', '');
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER wake_readers AFTER INSERT ON events
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION wake_readers();

-- The triggers run once per statement, so that a thousand new devices cost one insert into the
-- feed. Where an insert and a delete have the same event, except that its values come from nothing
-- or go to nothing, one function serves both, and calls the rows rows_changed.

-- Hosts. This trigger runs per row, and only for updates of boot_id: heartbeats update all hosts,
-- but no boot id.
-- +goose StatementBegin
CREATE FUNCTION hosts_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed text := coalesce(NEW.name, OLD.name);
BEGIN
    IF OLD.boot_id IS DISTINCT FROM NEW.boot_id THEN
        INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
        VALUES ('host', changed, changed, 'boot', coalesce(OLD.boot_id, ''), coalesce(NEW.boot_id, ''));
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER hosts_changed AFTER INSERT OR DELETE OR UPDATE OF boot_id ON hosts FOR EACH ROW EXECUTE FUNCTION hosts_changed();

-- Backends.
-- +goose StatementBegin
CREATE FUNCTION backends_added_or_removed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'backend', c.host || '/' || c.name, c.host, e.axis, CASE TG_OP WHEN 'DELETE' THEN e.value ELSE '' END,
           CASE TG_OP WHEN 'INSERT' THEN e.value ELSE '' END, CASE TG_OP WHEN 'INSERT' THEN e.data END
    FROM rows_changed c CROSS JOIN LATERAL (VALUES
        (1, 'state',  c.state,  jsonb_build_object('error', c.error)),
        (2, 'driver', c.driver, NULL::jsonb)) AS e (position, axis, value, data)
    ORDER BY c.host, c.name, e.position;
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
-- +goose StatementEnd
CREATE TRIGGER backends_inserted AFTER INSERT ON backends
    REFERENCING NEW TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION backends_added_or_removed();
CREATE TRIGGER backends_updated AFTER UPDATE ON backends
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION backends_updated();
CREATE TRIGGER backends_deleted AFTER DELETE ON backends
    REFERENCING OLD TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION backends_added_or_removed();

-- Devices.
-- +goose StatementBegin
CREATE FUNCTION devices_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'device', n.uuid::text, n.host, e.axis, '', e.value, jsonb_build_object('identity', n.identity)
    FROM new_rows n CROSS JOIN LATERAL (VALUES
        (1, 'presence', n.presence),
        (2, 'backend',  n.backend)) AS e (position, axis, value)
    ORDER BY n.id, e.position;
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
-- +goose StatementEnd
CREATE TRIGGER devices_inserted AFTER INSERT ON devices
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION devices_inserted();
CREATE TRIGGER devices_updated AFTER UPDATE ON devices
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION devices_updated();
CREATE TRIGGER devices_deleted AFTER DELETE ON devices
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION devices_deleted();

-- Accelerators.
-- +goose StatementBegin
CREATE FUNCTION deployables_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
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
        (10, 'specs', o.specs_version::text, n.specs_version::text, n.specs_set, o.specs_version <> n.specs_version),
        (11, 'nova_whitelist', CASE WHEN o.nova_spec IS NOT NULL THEN 'in' ELSE '' END,
            CASE WHEN n.nova_spec IS NOT NULL THEN 'in' ELSE '' END, n.nova_spec, o.nova_spec IS DISTINCT FROM n.nova_spec),
        (12, 'health', CASE WHEN o.image_lost_at IS NULL THEN '' ELSE 'lost_image' END,
            CASE WHEN n.image_lost_at IS NULL THEN '' ELSE 'lost_image' END,
            jsonb_build_object('bitstream_id', coalesce(o.image_bitstream, n.image_bitstream)),
            (o.image_lost_at IS NULL) <> (n.image_lost_at IS NULL))
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

CREATE FUNCTION attributes_set_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    VALUES ('accelerator', NEW.uuid::text, NEW.host, 'attributes', '', '', jsonb_build_object('attributes', NEW.attributes_set));
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER deployables_inserted AFTER INSERT ON deployables
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION deployables_inserted();
CREATE TRIGGER deployables_updated AFTER UPDATE ON deployables
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION deployables_updated();
CREATE TRIGGER deployables_deleted AFTER DELETE ON deployables
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION deployables_deleted();
CREATE TRIGGER attributes_set_changed AFTER UPDATE OF attributes_set ON deployables
    FOR EACH ROW WHEN (OLD.attributes_set <> NEW.attributes_set) EXECUTE FUNCTION attributes_set_changed();

-- Handles.
-- +goose StatementBegin
CREATE FUNCTION holder_text(kind text, id text, attached_at timestamptz) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(kind || ':' || id || CASE WHEN attached_at IS NULL THEN ' (in doubt)' ELSE '' END, '')
$$;

CREATE FUNCTION attach_handles_added_or_removed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'handle', c.uuid::text, c.host, 'presence', CASE TG_OP WHEN 'DELETE' THEN c.presence ELSE '' END,
           CASE TG_OP WHEN 'INSERT' THEN c.presence ELSE '' END,
           jsonb_build_object('accelerator', c.deployable_uuid, 'identity', c.identity)
    FROM rows_changed c ORDER BY c.id;
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
-- +goose StatementEnd
CREATE TRIGGER attach_handles_inserted AFTER INSERT ON attach_handles
    REFERENCING NEW TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION attach_handles_added_or_removed();
CREATE TRIGGER attach_handles_updated AFTER UPDATE ON attach_handles
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION attach_handles_updated();
CREATE TRIGGER attach_handles_deleted AFTER DELETE ON attach_handles
    REFERENCING OLD TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION attach_handles_added_or_removed();

-- Operations, and their claims on accelerators.
-- +goose StatementBegin
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

CREATE FUNCTION claims_taken_or_released() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
    SELECT 'accelerator', c.deployable_uuid::text, d.host, 'claim', CASE TG_OP WHEN 'DELETE' THEN c.operation_id::text ELSE '' END,
           CASE TG_OP WHEN 'INSERT' THEN c.operation_id::text ELSE '' END
    FROM rows_changed c JOIN deployables d ON d.uuid = c.deployable_uuid ORDER BY d.id;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER operations_inserted AFTER INSERT ON operations
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION operations_inserted();
CREATE TRIGGER operations_updated AFTER UPDATE ON operations
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION operations_updated();
CREATE TRIGGER claims_inserted AFTER INSERT ON claims
    REFERENCING NEW TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION claims_taken_or_released();
CREATE TRIGGER claims_deleted AFTER DELETE ON claims
    REFERENCING OLD TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION claims_taken_or_released();

-- Device profiles.
-- +goose StatementBegin
CREATE FUNCTION device_profiles_added_or_removed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, axis, from_value, to_value, data)
    SELECT 'device_profile', c.uuid::text, 'name', CASE TG_OP WHEN 'DELETE' THEN c.name ELSE '' END,
           CASE TG_OP WHEN 'INSERT' THEN c.name ELSE '' END, CASE TG_OP WHEN 'INSERT' THEN jsonb_build_object('groups', c.groups) END
    FROM rows_changed c ORDER BY c.id;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER device_profiles_inserted AFTER INSERT ON device_profiles
    REFERENCING NEW TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION device_profiles_added_or_removed();
CREATE TRIGGER device_profiles_deleted AFTER DELETE ON device_profiles
    REFERENCING OLD TABLE AS rows_changed FOR EACH STATEMENT EXECUTE FUNCTION device_profiles_added_or_removed();

-- Accelerator requests: their states, why one failed, who has it, and that it may have been lost.
-- The loss is also an event of the handle, and so belongs to the history of the accelerator.
-- +goose StatementBegin
CREATE FUNCTION arqs_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
    SELECT 'arq', n.uuid::text, coalesce(n.host, ''), 'state', '', n.state FROM new_rows n ORDER BY n.id;
    RETURN NULL;
END $$;

CREATE FUNCTION arqs_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT e.subject, e.subject_id, coalesce(n.host, o.host, ''), e.axis, e.old, e.new, e.data
    FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid
    LEFT JOIN attach_handles h ON h.uuid = coalesce(n.handle_uuid, o.handle_uuid) AND n.lost_boot IS DISTINCT FROM o.lost_boot
    CROSS JOIN LATERAL (VALUES
        (1, 'arq', n.uuid::text, 'state', o.state, n.state, nullif(jsonb_strip_nulls(jsonb_build_object('reason', nullif(n.reason, ''),
            'instance', n.instance_uuid, 'service', n.service, 'handle', n.handle_uuid)), '{}'), o.state <> n.state),
        (2, 'arq', n.uuid::text, 'project', coalesce(o.project, ''), coalesce(n.project, ''), NULL,
            coalesce(o.project, '') <> coalesce(n.project, '')),
        (3, 'arq', n.uuid::text, 'health', CASE WHEN o.lost_at IS NULL THEN '' ELSE 'lost_at_boot' END,
            CASE WHEN n.lost_at IS NULL THEN '' ELSE 'lost_at_boot' END,
            jsonb_build_object('instance', coalesce(n.instance_uuid, o.instance_uuid), 'boot', coalesce(n.lost_boot, o.lost_boot),
                'booted_at', coalesce(n.lost_at, o.lost_at)),
            n.lost_boot IS DISTINCT FROM o.lost_boot),
        (4, 'handle', h.uuid::text, 'health', CASE WHEN o.lost_at IS NULL THEN '' ELSE 'lost_at_boot' END,
            CASE WHEN n.lost_at IS NULL THEN '' ELSE 'lost_at_boot' END,
            jsonb_build_object('instance', coalesce(n.instance_uuid, o.instance_uuid), 'boot', coalesce(n.lost_boot, o.lost_boot),
                'booted_at', coalesce(n.lost_at, o.lost_at), 'arq', n.uuid, 'accelerator', h.deployable_uuid, 'identity', h.identity),
            n.lost_boot IS DISTINCT FROM o.lost_boot AND h.uuid IS NOT NULL)
        ) AS e (position, subject, subject_id, axis, old, new, data, changed)
    WHERE e.changed ORDER BY n.id, e.position;
    RETURN NULL;
END $$;

CREATE FUNCTION arqs_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT e.subject, e.subject_id, coalesce(o.host, ''), e.axis, e.old, '', e.data
    FROM old_rows o LEFT JOIN attach_handles h ON h.uuid = o.handle_uuid AND o.lost_at IS NOT NULL CROSS JOIN LATERAL (VALUES
        (1, 'arq', o.uuid::text, 'state', o.state, NULL),
        (2, 'handle', h.uuid::text, 'health', 'lost_at_boot', jsonb_build_object('instance', o.instance_uuid, 'boot', o.lost_boot,
            'booted_at', o.lost_at, 'arq', o.uuid, 'accelerator', h.deployable_uuid, 'identity', h.identity))
        ) AS e (position, subject, subject_id, axis, old, data)
    WHERE e.subject_id IS NOT NULL ORDER BY o.id, e.position;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER arqs_inserted AFTER INSERT ON arqs
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION arqs_inserted();
CREATE TRIGGER arqs_updated AFTER UPDATE ON arqs
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION arqs_updated();
CREATE TRIGGER arqs_deleted AFTER DELETE ON arqs
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION arqs_deleted();

-- Drift. The value of the axis is the difference in words, and empty while there is none.
-- +goose StatementBegin

-- A difference that was repaired as soon as it was found is two events: its beginning and its end.
-- It counts as repaired only if the comparison that found it repaired it as well; otherwise it
-- ended by itself.
CREATE FUNCTION placement_drift_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    about    jsonb := jsonb_build_object('provider', NEW.provider_uuid, 'name', NEW.provider_name);
    repaired boolean := coalesce(NEW.repaired_at = NEW.last_found_at, false);
    was      text := '';
    is_now   text := CASE WHEN NEW.counts AND NEW.repaired_at IS NULL THEN NEW.detail ELSE '' END;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        was := CASE WHEN OLD.counts AND OLD.repaired_at IS NULL THEN OLD.detail ELSE '' END;
        repaired := repaired AND OLD.repaired_at IS DISTINCT FROM NEW.repaired_at;
    END IF;
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT NEW.subject_kind, NEW.subject_id, NEW.host, 'drift_' || NEW.class, e.old, e.new, e.data
    FROM (VALUES
        (1, '', NEW.detail, about, repaired AND was = ''),
        (2, CASE WHEN repaired AND was = '' THEN NEW.detail ELSE was END, is_now,
            CASE WHEN is_now = '' THEN about || jsonb_build_object('repaired', repaired) ELSE about END,
            repaired OR was <> is_now)) AS e (position, old, new, data, happened)
    WHERE e.happened ORDER BY e.position;
    RETURN NULL;
END $$;

-- There is one event for each accelerator of the instance, or one for the host where it has none.
CREATE FUNCTION instance_drift_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    was    text := '';
    is_now text := CASE WHEN NEW.counts AND NEW.repaired_at IS NULL THEN NEW.detail ELSE '' END;
    about  jsonb := jsonb_build_object('instance', NEW.instance_uuid);
BEGIN
    IF TG_OP = 'UPDATE' THEN
        was := CASE WHEN OLD.counts AND OLD.repaired_at IS NULL THEN OLD.detail ELSE '' END;
    END IF;
    IF was = is_now THEN
        RETURN NULL;
    END IF;
    IF is_now = '' THEN
        about := about || '{"repaired": false}';
    END IF;
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'accelerator', a::text, NEW.host, 'drift_' || NEW.class, was, is_now, about FROM unnest(NEW.accelerators) AS a
    UNION ALL
    SELECT 'host', NEW.host, NEW.host, 'drift_' || NEW.class, was, is_now, about WHERE NEW.accelerators = '{}';
    RETURN NULL;
END $$;

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
CREATE TRIGGER placement_drift_changed AFTER INSERT OR UPDATE ON placement_drift
    FOR EACH ROW EXECUTE FUNCTION placement_drift_changed();
CREATE TRIGGER instance_drift_changed AFTER INSERT OR UPDATE ON instance_drift
    FOR EACH ROW EXECUTE FUNCTION instance_drift_changed();
CREATE TRIGGER whitelist_drift_changed AFTER INSERT OR UPDATE ON whitelist_drift
    FOR EACH ROW EXECUTE FUNCTION whitelist_drift_changed();
