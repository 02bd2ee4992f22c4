-- +goose Up

-- The inventory: hosts, what their agents report of them, and what operators and operations have
-- made of that.

-- A host with an agent, or one that was adopted and has not had an agent yet: the instance and the
-- boot of that are empty, and it was last seen at the epoch. Rows are updated with every heartbeat;
-- the free space keeps those updates within their page and off the indexes.
CREATE TABLE hosts (
    name              text PRIMARY KEY CHECK (name <> ''),
    boot_id           text NOT NULL,
    registered_at     timestamptz NOT NULL DEFAULT now(),
    last_seen         timestamptz NOT NULL DEFAULT now(),
    -- its agent
    instance          text NOT NULL DEFAULT '',       -- tells apart the agents that run at the same time
    agent_version     text NOT NULL,
    agent_address     text NOT NULL DEFAULT '',       -- from which it was last heard
    agent_started_at  timestamptz NOT NULL DEFAULT now(),
    busy              boolean NOT NULL DEFAULT false, -- at the newest heartbeat all its slots were taken
    clock_offset      interval,                       -- of its clock ahead of the database's at the newest heartbeat
    -- its reports
    report_seq        bigint NOT NULL,                -- sequence of the newest report merged
    digest            text NOT NULL,                  -- of its content; empty where the records differ from it
    base              text NOT NULL DEFAULT '',       -- digest of the newest report that was recorded exactly as it
                                                      -- was, from which differences start; empty where it was not
    generation        bigint NOT NULL DEFAULT 1,      -- grows with each change of the recorded content
    attachments       jsonb NOT NULL DEFAULT '[]',    -- the agent's journal, as last reported
    -- the file of its Nova's whitelist
    whitelist         jsonb,                          -- as last reported; null where nothing was
    whitelist_written text                            -- checksum of what was written last; empty where nothing was,
                                                      -- null where nobody knows
) WITH (fillfactor = 60);
-- Reconcile compares journals with handles.
CREATE INDEX hosts_with_attachments ON hosts (name) WHERE attachments <> '[]';
-- Comparing the whitelists finds the few that differ.
CREATE INDEX hosts_whitelist_differs ON hosts (name) WHERE whitelist ->> 'sha256' <> coalesce(whitelist_written, '');

-- Agents that spoke for a host while another one was its agent, and were refused.
CREATE TABLE duplicate_agents (
    host          text NOT NULL REFERENCES hosts ON DELETE CASCADE,
    instance      text NOT NULL CHECK (instance <> ''),
    boot_id       text NOT NULL,
    agent_version text NOT NULL,
    address       text NOT NULL,
    started_at    timestamptz NOT NULL DEFAULT now(),
    since         timestamptz NOT NULL DEFAULT now(), -- from when on it has been refused without a pause
    last_seen     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (host, instance)
);

-- Running processes of the other roles; agents are seen through their hosts.
CREATE TABLE services (
    role       text NOT NULL,
    host       text NOT NULL,
    instance   text NOT NULL,
    version    text NOT NULL,
    started_at timestamptz NOT NULL,
    last_seen  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (role, host, instance)
);

-- A named instance of a driver on a host, as the agent reports it. One that is ok may still have
-- something to complain about, such as a handle that belongs to another device.
CREATE TABLE backends (
    host     text NOT NULL REFERENCES hosts,
    name     text NOT NULL CHECK (name <> ''),
    driver   text NOT NULL CHECK (driver <> ''),
    options  jsonb NOT NULL DEFAULT '{}',
    services text[] NOT NULL DEFAULT '{}',
    reported boolean NOT NULL DEFAULT true, -- false once the agent no longer has it
    state    text NOT NULL CHECK (state IN ('ok', 'failed', 'disabled')),
    error    text NOT NULL DEFAULT '',
    PRIMARY KEY (host, name),
    CONSTRAINT backends_failed_has_error CHECK (state <> 'failed' OR error <> ''),
    CONSTRAINT backends_disabled_has_none CHECK (state <> 'disabled' OR error = ''),
    CONSTRAINT backends_unreported_is_disabled CHECK (reported OR state = 'disabled')
);

CREATE TABLE devices (
    id                bigint GENERATED ALWAYS AS IDENTITY UNIQUE, -- the order in which they were found
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
    observed_seq      bigint NOT NULL DEFAULT 0, -- an older report changes nothing: an operation's result is newer
    presence          text NOT NULL DEFAULT 'present' CHECK (presence IN ('present', 'missing')),
    missing_since     timestamptz,
    created_at        timestamptz NOT NULL DEFAULT now(),
    updated_at        timestamptz NOT NULL DEFAULT now(),
    UNIQUE (host, identity),
    UNIQUE (uuid, host), -- to which its deployables refer, so that they are on its host
    FOREIGN KEY (host, backend) REFERENCES backends,
    CONSTRAINT devices_missing_since CHECK ((presence = 'missing') = (missing_since IS NOT NULL))
);
-- A backend is forgotten once no device refers to it.
CREATE INDEX devices_by_backend ON devices (host, backend);
-- Reconcile forgets what has been missing for long.
CREATE INDEX devices_missing ON devices (missing_since) WHERE presence = 'missing';

-- A part of a device that can be allocated; the same row is the accelerator.
CREATE TABLE deployables (
    id                  bigint GENERATED ALWAYS AS IDENTITY UNIQUE, -- the order in which they were found
    uuid                uuid PRIMARY KEY,
    device_uuid         uuid NOT NULL,
    host                text NOT NULL,
    local_name          text NOT NULL CHECK (local_name <> ''),         -- the driver's name for it
    name                text NOT NULL UNIQUE CHECK (name <> ''),        -- the resource provider's name; never changes
    provider_uuid       uuid NOT NULL UNIQUE,
    accelerator         text NOT NULL UNIQUE CHECK (accelerator <> ''), -- the accelerator's name
    -- what the driver reports, and beside it what was set: no report touches the latter
    specs               jsonb NOT NULL,
    specs_set           jsonb NOT NULL DEFAULT '{}', -- laid over specs
    specs_version       bigint NOT NULL DEFAULT 1,   -- grows with each change of specs_set
    attributes          jsonb NOT NULL DEFAULT '[]',
    attributes_set      jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(attributes_set) = 'array'),
    bitstream_id        text NOT NULL DEFAULT '',
    program_set         text NOT NULL,               -- the deployables of a device that are programmed together have the same
    protected           text NOT NULL DEFAULT '',    -- why nothing may be done to it: its host needs it
    presence            text NOT NULL DEFAULT 'present' CHECK (presence IN ('present', 'missing')),
    missing_since       timestamptz,
    -- how far it is in service
    untouched           boolean NOT NULL DEFAULT true, -- no Provision of it was ever admitted
    lifecycle           text NOT NULL DEFAULT 'inactive' CHECK (lifecycle IN ('inactive', 'installing', 'ready', 'error')),
    lifecycle_operation uuid,                          -- which brought it there; null where none did
    reason              text NOT NULL DEFAULT '',      -- of an error
    error_operation     uuid,                          -- which left it in error,
    error_kind          text NOT NULL DEFAULT '',      -- and of what kind that was
    administration      text NOT NULL DEFAULT 'enabled' CHECK (administration IN ('enabled', 'maintaining')),
    maintain_reason     text NOT NULL DEFAULT '',
    maintain_by         text NOT NULL DEFAULT '',
    maintain_until      timestamptz,
    fence_reason        text CHECK (fence_reason <> ''),
    fence_operation     uuid,
    -- what the whitelist of the host's Nova ([pci] device_spec) says of it besides its address;
    -- null where it is not in it
    nova_spec           jsonb CHECK (jsonb_typeof(nova_spec) = 'object'),
    -- the image that an operation has loaded last
    image               jsonb CHECK (jsonb_typeof(image) = 'object'), -- as it can be loaded again; null where nobody knows
    image_bitstream     text,                                         -- what was read back then
    image_boot          text,                                         -- the boot of the host in which it was looked at last
    image_lost_at       timestamptz,                                  -- since when it is not there although it should be
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now(),
    UNIQUE (host, local_name),
    UNIQUE (uuid, host), -- to which its handles refer, so that they are on its host
    FOREIGN KEY (device_uuid, host) REFERENCES devices (uuid, host),
    CONSTRAINT deployables_missing_since CHECK ((presence = 'missing') = (missing_since IS NOT NULL)),
    CONSTRAINT deployables_served_is_touched CHECK (lifecycle IN ('inactive', 'error') OR NOT untouched),
    CONSTRAINT deployables_error_has_reason CHECK ((lifecycle = 'error') = (reason <> '')),
    CONSTRAINT deployables_error_operation CHECK (lifecycle = 'error' OR (error_operation IS NULL AND error_kind = '')),
    CONSTRAINT deployables_maintenance_has_reason CHECK ((administration = 'maintaining') = (maintain_reason <> '')),
    CONSTRAINT deployables_maintenance CHECK (administration = 'maintaining' OR (maintain_by = '' AND maintain_until IS NULL)),
    CONSTRAINT deployables_fence_has_reason CHECK (fence_operation IS NULL OR fence_reason IS NOT NULL),
    -- What Nova gives out is not in service here.
    CONSTRAINT deployables_given_out_once CHECK (nova_spec IS NULL OR lifecycle IN ('inactive', 'error')),
    CONSTRAINT deployables_image_known CHECK (
        (image IS NULL) = (image_bitstream IS NULL) AND (image IS NULL) = (image_boot IS NULL)
        AND (image IS NOT NULL OR image_lost_at IS NULL))
);
CREATE INDEX deployables_by_device ON deployables (device_uuid);
-- Lists are in the order of the ids, of a host or in a lifecycle.
CREATE INDEX deployables_by_host ON deployables (host, id);
CREATE INDEX deployables_by_lifecycle ON deployables (lifecycle, id);
-- These find the few, of all accelerators, that are so.
CREATE INDEX deployables_missing ON deployables (id) WHERE presence = 'missing';
CREATE INDEX deployables_maintained ON deployables (maintain_until, id) WHERE administration = 'maintaining';
CREATE INDEX deployables_fenced ON deployables (id) WHERE fence_reason IS NOT NULL;
CREATE INDEX deployables_untouched ON deployables (id) WHERE untouched;
CREATE INDEX deployables_with_attributes_set ON deployables (id) WHERE attributes_set <> '[]';
CREATE INDEX deployables_whitelisted ON deployables (host) WHERE nova_spec IS NOT NULL;
CREATE INDEX deployables_image_lost ON deployables (host) WHERE image_lost_at IS NOT NULL;
-- What is put into service by itself, without what is never to be.
CREATE INDEX deployables_new ON deployables (id)
    WHERE untouched AND lifecycle = 'inactive' AND presence = 'present' AND protected = '';

-- What a consumer receives. One row is one handle, and it has room for one holder.
CREATE TABLE attach_handles (
    id                    bigint GENERATED ALWAYS AS IDENTITY UNIQUE, -- the order in which they were found
    uuid                  uuid PRIMARY KEY,
    deployable_uuid       uuid NOT NULL,
    host                  text NOT NULL,
    kind                  text NOT NULL CHECK (kind <> ''),
    identity              text NOT NULL CHECK (identity <> ''),
    info                  jsonb NOT NULL,
    presence              text NOT NULL DEFAULT 'present' CHECK (presence IN ('present', 'missing')),
    missing_since         timestamptz,
    -- who has it
    holder_kind           text CHECK (holder_kind IN ('instance', 'host', 'service')),
    holder_id             text CHECK (holder_id <> ''),
    operation_id          uuid,        -- took it
    attached_at           timestamptz, -- null while in progress or in doubt
    -- who may still have it on its host, though nobody has it in the records: it was taken back by
    -- force, or a host that had been forgotten came back with it. Nobody gets it until the host has
    -- settled that.
    unconfirmed_kind      text CHECK (unconfirmed_kind IN ('instance', 'host', 'service')),
    unconfirmed_id        text CHECK (unconfirmed_id <> ''),
    unconfirmed_operation uuid,        -- attached it
    UNIQUE (host, kind, identity), -- the same function is not offered twice
    -- An accelerator request refers to its handle and the operation that took it, so that it is its
    -- holder's for as long as it has it.
    CONSTRAINT attach_handles_taken UNIQUE (uuid, operation_id),
    FOREIGN KEY (deployable_uuid, host) REFERENCES deployables (uuid, host),
    CONSTRAINT attach_handles_missing_since CHECK ((presence = 'missing') = (missing_since IS NOT NULL)),
    CONSTRAINT attach_handles_whole_holder CHECK ((holder_kind IS NULL) = (holder_id IS NULL)),
    CONSTRAINT attach_handles_holder_has_operation CHECK ((holder_kind IS NULL) = (operation_id IS NULL)),
    CONSTRAINT attach_handles_attached_is_held CHECK (attached_at IS NULL OR holder_kind IS NOT NULL),
    CONSTRAINT attach_handles_whole_unconfirmed CHECK (num_nulls(unconfirmed_kind, unconfirmed_id, unconfirmed_operation) IN (0, 3)),
    CONSTRAINT attach_handles_unconfirmed_or_held CHECK (unconfirmed_kind IS NULL OR holder_kind IS NULL)
);
CREATE INDEX attach_handles_by_deployable ON attach_handles (deployable_uuid);
-- What an instance, a host or a service holds.
CREATE INDEX attach_handles_by_holder ON attach_handles (holder_kind, holder_id) WHERE holder_kind IS NOT NULL;
-- Reconcile asks their hosts.
CREATE INDEX attach_handles_unconfirmed ON attach_handles (host) WHERE unconfirmed_kind IS NOT NULL;
-- Reconcile forgets what has been missing for long.
CREATE INDEX attach_handles_missing ON attach_handles (missing_since) WHERE presence = 'missing';

-- +goose StatementBegin
CREATE FUNCTION note_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.updated_at := now();
    RETURN NEW;
END $$;

-- Whoever comes too late is told to which operation it lost: the one that brought the accelerator
-- to its lifecycle. There is none where it was found so, or where the repair that did it belongs to
-- no operation. A trigger writes it, so that no change can forget it.
CREATE FUNCTION note_lifecycle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.lifecycle_operation := nullif(current_setting('cyborg.operation', true), '')::uuid;
    RETURN NEW;
END $$;

-- Another image, or none, in a boot of the host in which ours was not seen was lost with the power.
-- In the boot in which ours was seen, somebody else has changed it, and knows why. While an
-- operation loads one, nothing is known. image_boot is for those to set who have looked; where an
-- operation's fence is lifted, its host has.
CREATE FUNCTION deployables_image() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.fence_operation IS NOT NULL OR NEW.presence <> 'present' THEN
        RETURN NEW;
    END IF;
    IF OLD.fence_operation IS NOT NULL THEN
        SELECT boot_id INTO NEW.image_boot FROM hosts WHERE name = NEW.host;
    END IF;
    IF NEW.bitstream_id = NEW.image_bitstream THEN
        NEW.image_lost_at := NULL;
    ELSIF NEW.image_lost_at IS NOT NULL THEN
        RETURN NEW;
    ELSIF NEW.image_boot = OLD.image_boot THEN
        NEW.image := NULL;
        NEW.image_bitstream := NULL;
        NEW.image_boot := NULL;
    ELSE
        NEW.image_lost_at := now();
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd

CREATE TRIGGER note_update BEFORE UPDATE ON devices FOR EACH ROW EXECUTE FUNCTION note_update();
CREATE TRIGGER note_update BEFORE UPDATE ON deployables FOR EACH ROW EXECUTE FUNCTION note_update();
CREATE TRIGGER note_lifecycle BEFORE UPDATE OF lifecycle ON deployables
    FOR EACH ROW WHEN (OLD.lifecycle <> NEW.lifecycle) EXECUTE FUNCTION note_lifecycle();
CREATE TRIGGER deployables_image BEFORE UPDATE ON deployables
    FOR EACH ROW WHEN (NEW.image IS NOT NULL) EXECUTE FUNCTION deployables_image();
