-- +goose Up
ALTER TABLE operations
    DROP CONSTRAINT operations_kind_check,
    ADD CONSTRAINT operations_kind_check
        CHECK (kind IN ('provision', 'program', 'attach', 'detach', 'configure', 'retire', 'bind', 'unbind', 'whitelist', 'rescue'));

-- The boot of its host since which a request's instance may be without its accelerator: Nova starts the instances of a host
-- that has booted again without asking for them. Null where nothing is known to be wrong.
ALTER TABLE arqs
    ADD COLUMN lost_boot text,
    ADD COLUMN lost_at   timestamptz, -- when the host booted, as well as is known
    ADD CONSTRAINT arqs_lost_check CHECK ((lost_at IS NULL) = (lost_boot IS NULL)
        AND (lost_at IS NULL OR (instance_uuid IS NOT NULL AND handle_uuid IS NOT NULL)));
CREATE INDEX arqs_lost ON arqs (host) WHERE lost_at IS NOT NULL;

-- Which operation had, or has, Nova reboot an instance because of a boot of its host: one for each.
CREATE TABLE rescues (
    instance_uuid uuid NOT NULL,
    boot_id       text NOT NULL,
    operation_id  uuid NOT NULL,
    asked_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (instance_uuid, boot_id)
);

-- In what Nova's instances and the accelerator requests that are bound to them differed.
CREATE TABLE instance_drift (
    instance_uuid uuid NOT NULL,
    class         text NOT NULL CHECK (class <> ''),
    host          text NOT NULL,
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

-- All drift; one without a resource provider, or without an instance, has the zero UUID for it.
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
    FROM arqs WHERE lost_at IS NOT NULL GROUP BY host, instance_uuid;

-- What is said of a request: why it failed, who has it, and that it may have been lost. The latter is said of its handle, too,
-- and so belongs to the history of the accelerator.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION arqs_updated() RETURNS trigger LANGUAGE plpgsql AS $$
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

CREATE OR REPLACE FUNCTION arqs_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
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

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION arqs_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
    SELECT 'arq', o.uuid::text, coalesce(o.host, ''), 'state', o.state, '' FROM old_rows o ORDER BY o.id;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION arqs_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'arq', n.uuid::text, coalesce(n.host, o.host, ''), e.axis, e.old, e.new, e.data
    FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid CROSS JOIN LATERAL (VALUES
        (1, 'state', o.state, n.state, nullif(jsonb_strip_nulls(jsonb_build_object('reason', nullif(n.reason, ''),
            'instance', n.instance_uuid, 'service', n.service, 'handle', n.handle_uuid)), '{}')),
        (2, 'project', coalesce(o.project, ''), coalesce(n.project, ''), NULL)) AS e (position, axis, old, new, data)
    WHERE e.old <> e.new ORDER BY n.id, e.position;
    RETURN NULL;
END $$;
-- +goose StatementEnd
DROP VIEW drift;
DROP TABLE instance_drift, rescues;
ALTER TABLE arqs DROP COLUMN lost_boot, DROP COLUMN lost_at;
DELETE FROM operations WHERE kind = 'rescue';
ALTER TABLE operations
    DROP CONSTRAINT operations_kind_check,
    ADD CONSTRAINT operations_kind_check
        CHECK (kind IN ('provision', 'program', 'attach', 'detach', 'configure', 'retire', 'bind', 'unbind', 'whitelist'));
