-- +goose Up

-- How the handles of a deployable can be cleaned, and are after every holder, as cyborg.Cleaning; null where its driver cannot clean.
ALTER TABLE deployables ADD COLUMN cleaning jsonb CHECK (jsonb_typeof(cleaning) = 'object');

-- How a handle is cleaned after its holder; how it has still to be cleaned before somebody gets it, and since when; and how it was
-- cleaned last, as cyborg.Evidence.
ALTER TABLE attach_handles
    ADD COLUMN clean text NOT NULL DEFAULT '' CHECK (clean IN ('', 'reset', 'scrub')),
    ADD COLUMN unclean text NOT NULL DEFAULT '' CHECK (unclean IN ('', 'reset', 'scrub')),
    ADD COLUMN unclean_since timestamptz,
    ADD COLUMN cleaned jsonb CHECK (jsonb_typeof(cleaned) = 'object'),
    ADD CONSTRAINT attach_handles_clean_after_holder CHECK (clean = '' OR holder_kind IS NOT NULL),
    ADD CONSTRAINT attach_handles_unclean_is_free CHECK (unclean = '' OR holder_kind IS NULL),
    ADD CONSTRAINT attach_handles_unclean_has_time CHECK ((unclean = '') = (unclean_since IS NULL));
CREATE INDEX attach_handles_unclean ON attach_handles (host) WHERE unclean <> '';

-- The unclean handles that left the records, because their host was forgotten, or their card was missing for long or replaced. They are
-- unclean again when the same card shows them. Another card in its place has nothing of them.
CREATE TABLE forgotten_cleanings (
    host        text NOT NULL,
    kind        text NOT NULL,
    identity    text NOT NULL,
    fingerprint jsonb NOT NULL,
    unclean     text NOT NULL,
    since       timestamptz NOT NULL,
    PRIMARY KEY (host, kind, identity, fingerprint)
);

-- +goose StatementBegin

-- cleaning_strength orders the ways to clean, as cyborg.CleanMethod.Covers does.
CREATE FUNCTION cleaning_strength(method text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE method WHEN '' THEN 0 WHEN 'reset' THEN 1 ELSE 2 END;

CREATE FUNCTION stronger_cleaning(a text, b text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN cleaning_strength(a) >= cleaning_strength(b) THEN a ELSE b END;

-- cleaning_after is what the backend of a deployable demands after every holder. What only a newer release knows is the strongest way.
CREATE FUNCTION cleaning_after(deployable uuid) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
    RETURN (SELECT CASE coalesce(cleaning ->> 'after', '') WHEN '' THEN '' WHEN 'reset' THEN 'reset' ELSE 'scrub' END
            FROM deployables WHERE uuid = deployable);

-- A handle that its holder no longer has is unclean, whoever has recorded that, also a server that does not know the columns. What the
-- backend demands when the holder gets it and when he leaves it counts. Who takes a handle back that its holder never got says so by
-- clearing clean.
CREATE FUNCTION attach_handles_left() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    needed text := stronger_cleaning(OLD.clean, cleaning_after(OLD.deployable_uuid));
BEGIN
    IF NEW.clean = '' AND OLD.clean <> '' THEN
        RETURN NEW;
    END IF;
    NEW.clean := '';
    IF needed <> '' THEN
        NEW.unclean := needed;
        NEW.unclean_since := clock_timestamp();
    END IF;
    RETURN NEW;
END $$;

-- What a host has attached for somebody whom the records do not know, because they have lost or given up that operation, is unclean once
-- it is known: he may have had it.
CREATE FUNCTION attach_handles_doubted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.unclean := stronger_cleaning(NEW.unclean, cleaning_after(NEW.deployable_uuid));
    IF NEW.unclean <> '' THEN
        NEW.unclean_since := coalesce(NEW.unclean_since, clock_timestamp());
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION attach_handles_given() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM check_given(NEW.deployable_uuid, NEW.uuid, NEW.holder_kind, NEW.holder_id, 'attach_handles');
    NEW.clean := stronger_cleaning(NEW.clean, cleaning_after(NEW.deployable_uuid));
    RETURN NEW;
END $$;

CREATE FUNCTION attach_handles_forgotten() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO forgotten_cleanings (host, kind, identity, fingerprint, unclean, since)
    SELECT OLD.host, OLD.kind, OLD.identity, v.fingerprint, OLD.unclean, OLD.unclean_since
    FROM deployables d JOIN devices v ON v.uuid = d.device_uuid WHERE d.uuid = OLD.deployable_uuid
    ON CONFLICT (host, kind, identity, fingerprint) DO UPDATE SET since = least(forgotten_cleanings.since, EXCLUDED.since),
        unclean = stronger_cleaning(forgotten_cleanings.unclean, EXCLUDED.unclean);
    RETURN NULL;
END $$;

-- A card may show its serial number later than the rest. So several entries may be about it, and one that may be about another card stays.
CREATE FUNCTION attach_handles_shown_again() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    was forgotten_cleanings;
BEGIN
    FOR was IN SELECT f.* FROM forgotten_cleanings f, deployables d JOIN devices v ON v.uuid = d.device_uuid
        WHERE f.host = NEW.host AND f.kind = NEW.kind AND f.identity = NEW.identity AND d.uuid = NEW.deployable_uuid
          AND NOT other_card(f.fingerprint, v.fingerprint)
    LOOP
        NEW.unclean := stronger_cleaning(NEW.unclean, was.unclean);
        NEW.unclean_since := least(NEW.unclean_since, was.since);
        DELETE FROM forgotten_cleanings f USING deployables d, devices v
        WHERE (f.host, f.kind, f.identity, f.fingerprint) = (was.host, was.kind, was.identity, was.fingerprint)
          AND d.uuid = NEW.deployable_uuid AND v.uuid = d.device_uuid AND f.fingerprint ->> 'serial' IS NOT DISTINCT FROM v.fingerprint ->> 'serial';
    END LOOP;
    RETURN NEW;
END $$;

-- As in migration 31; but what is excluded, or goes to one holder with it, must not even be unclean: a part of a card has what was left on
-- the whole, and functions of one IOMMU group reach each other.
CREATE OR REPLACE FUNCTION check_given(given uuid, given_handle uuid, to_kind text, to_id text, relation text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    of_host text;
    taken   text;
    shared  text;
    other   text;
    apart   boolean;
    holder  text;
    remedy  text;
BEGIN
    SELECT host, accelerator, same_holder INTO of_host, taken, shared FROM deployables
    WHERE uuid = given AND (same_holder <> '' OR EXISTS (SELECT FROM excluded_with(given)));
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended(of_host, 2));
    SELECT d.accelerator, o.apart, coalesce(h.holder_kind || ' ' || h.holder_id || ' has', h.unconfirmed_kind || ' ' || h.unconfirmed_id || ' may still have',
        CASE WHEN h.uuid IS NOT NULL THEN 'has still to be cleaned' ELSE 'Nova may give out' END),
        CASE WHEN h.holder_kind IS NOT NULL AND NOT o.apart AND to_kind IS NOT NULL THEN 'Give both to the same holder, or detach that one first.'
        WHEN h.holder_kind IS NOT NULL THEN 'Detach that one first.' WHEN h.unconfirmed_kind IS NOT NULL THEN 'Reconcile asks the host as soon as it is heard.'
        WHEN h.uuid IS NOT NULL THEN 'A conductor has it cleaned; see its last operations.'
        ELSE 'Take that one out of Nova''s whitelist first, with cyborg host whitelist, and restart nova-compute.' END INTO other, apart, holder, remedy
    FROM (SELECT uuid, false AS apart FROM deployables WHERE host = of_host AND same_holder = shared AND same_holder <> ''
          UNION ALL SELECT e, true FROM excluded_with(given) AS e) AS o
    JOIN deployables d ON d.uuid = o.uuid
    LEFT JOIN attach_handles h ON h.deployable_uuid = d.uuid AND h.uuid IS DISTINCT FROM given_handle
        AND (coalesce(h.holder_kind, h.unconfirmed_kind) IS NOT NULL OR h.unclean <> '')
        AND (o.apart OR coalesce(h.holder_kind, h.unconfirmed_kind) IS NULL
             OR (coalesce(h.holder_kind, h.unconfirmed_kind), coalesce(h.holder_id, h.unconfirmed_id)) IS DISTINCT FROM (to_kind, to_id))
    WHERE (d.uuid <> given OR to_kind IS NOT NULL) AND (h.uuid IS NOT NULL OR d.nova_spec IS NOT NULL AND (o.apart OR to_kind IS NOT NULL))
    ORDER BY NOT o.apart, h.holder_kind IS NULL, h.unconfirmed_kind IS NULL, h.uuid IS NULL, d.id LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF apart THEN
        RAISE exclusion_violation USING TABLE = relation, CONSTRAINT = 'attach_handles_excludes', HINT = remedy, MESSAGE = format(
            'accelerators "%s" and "%s" exclude each other, and the latter %s', taken, other, holder);
    END IF;
    RAISE exclusion_violation USING TABLE = relation, CONSTRAINT = 'attach_handles_same_holder', HINT = remedy, MESSAGE = format(
        'accelerator "%s" shares %s with "%s", which %s: they go to one holder', taken, shared, other, holder);
END $$;

-- Nova asks nobody whether what is in its whitelist is clean.
CREATE OR REPLACE FUNCTION nova_spec_given() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM attach_handles WHERE deployable_uuid = NEW.uuid AND unclean <> '') THEN
        RAISE exclusion_violation USING TABLE = 'deployables', CONSTRAINT = 'attach_handles_excludes',
            HINT = 'A conductor has it cleaned; see its last operations.', MESSAGE = format('accelerator "%s" has still to be cleaned', NEW.accelerator);
    END IF;
    PERFORM check_given(NEW.uuid, NULL, NULL, NULL, 'deployables');
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION attach_handles_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT e.subject, e.subject_id, n.host, e.axis, e.old, e.new,
           jsonb_build_object('accelerator', n.deployable_uuid, 'handle', n.uuid, 'identity', n.identity) || coalesce(e.data, '{}')
    FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid CROSS JOIN LATERAL (VALUES
        (1, 'handle', n.uuid::text, 'accelerator', o.deployable_uuid::text, n.deployable_uuid::text, NULL::jsonb),
        (2, 'handle', n.uuid::text, 'presence', o.presence, n.presence, NULL),
        (3, 'accelerator', n.deployable_uuid::text, 'holder',
            holder_text(o.holder_kind, o.holder_id, o.attached_at), holder_text(n.holder_kind, n.holder_id, n.attached_at),
            CASE WHEN n.holder_kind IS NOT NULL AND n.parameters <> '{}' THEN jsonb_build_object('parameters', n.parameters) END),
        (4, 'handle', n.uuid::text, 'undone', coalesce(o.undone_reason, ''), coalesce(n.undone_reason, ''), NULL),
        (5, 'accelerator', n.deployable_uuid::text, 'unclean', o.unclean, n.unclean,
            CASE WHEN n.unclean = '' THEN jsonb_build_object('cleaned', n.cleaned) END)
        ) AS e (position, subject, subject_id, axis, old, new, data)
    WHERE e.old <> e.new ORDER BY n.id, e.position;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION attach_handles_added_or_removed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'handle', c.uuid::text, c.host, 'presence', CASE TG_OP WHEN 'DELETE' THEN c.presence ELSE '' END,
           CASE TG_OP WHEN 'INSERT' THEN c.presence ELSE '' END,
           jsonb_build_object('accelerator', c.deployable_uuid, 'identity', c.identity)
    FROM rows_changed c ORDER BY c.id;
    IF TG_OP = 'INSERT' THEN
        INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
        SELECT 'accelerator', c.deployable_uuid::text, c.host, 'unclean', '', c.unclean,
               jsonb_build_object('accelerator', c.deployable_uuid, 'handle', c.uuid, 'identity', c.identity)
        FROM rows_changed c WHERE c.unclean <> '' ORDER BY c.id;
    END IF;
    RETURN NULL;
END $$;

-- This event is written row by row, so that no other change of an accelerator pays for it.
CREATE FUNCTION cleaning_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    VALUES ('accelerator', NEW.uuid::text, NEW.host, 'reported', '', '', jsonb_build_object('cleaning', NEW.cleaning));
    RETURN NULL;
END $$;

-- What is unclean is reserved in Placement until it is clean. The trigger has no list of columns, because another trigger sets this one.
CREATE FUNCTION placement_unclean_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM placement_out_of_step(ARRAY[NEW.host]);
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER attach_handles_left BEFORE UPDATE ON attach_handles FOR EACH ROW
    WHEN (OLD.holder_kind IS NOT NULL AND NEW.holder_kind IS NULL) EXECUTE FUNCTION attach_handles_left();
CREATE TRIGGER attach_handles_doubted BEFORE UPDATE ON attach_handles FOR EACH ROW
    WHEN (OLD.holder_kind IS NULL AND OLD.unconfirmed_kind IS NULL AND NEW.unconfirmed_kind IS NOT NULL) EXECUTE FUNCTION attach_handles_doubted();
CREATE TRIGGER attach_handles_forgotten AFTER DELETE ON attach_handles FOR EACH ROW
    WHEN (OLD.unclean <> '') EXECUTE FUNCTION attach_handles_forgotten();
CREATE TRIGGER attach_handles_shown_again BEFORE INSERT ON attach_handles FOR EACH ROW WHEN (NEW.holder_kind IS NULL) EXECUTE FUNCTION attach_handles_shown_again();
CREATE TRIGGER placement_unclean AFTER UPDATE ON attach_handles FOR EACH ROW
    WHEN ((OLD.unclean = '') <> (NEW.unclean = '')) EXECUTE FUNCTION placement_unclean_changed();
CREATE TRIGGER cleaning_changed AFTER UPDATE OF cleaning ON deployables FOR EACH ROW
    WHEN (OLD.cleaning IS DISTINCT FROM NEW.cleaning) EXECUTE FUNCTION cleaning_changed();
