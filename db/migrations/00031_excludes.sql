-- +goose Up

-- The names, as its driver uses them, of deployables of its host that nobody may have while somebody has this one, and the other way round,
-- such as the parts of a card that is offered whole as well. Names that nobody reports exclude nothing.
ALTER TABLE deployables ADD COLUMN excludes text[] NOT NULL DEFAULT '{}';
CREATE INDEX deployables_excludes ON deployables (host) WHERE excludes <> '{}';

-- +goose StatementBegin

-- excluded_with lists what nobody may have while somebody has the deployable, whichever of the two names the other one.
CREATE FUNCTION excluded_with(deployable uuid) RETURNS SETOF uuid LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT o.uuid FROM deployables d JOIN deployables o ON o.host = d.host AND o.local_name = ANY(d.excludes) AND o.uuid <> d.uuid
    WHERE d.uuid = deployable
    UNION
    SELECT o.uuid FROM deployables d JOIN deployables o ON o.host = d.host AND o.excludes <> '{}' AND d.local_name = ANY(o.excludes) AND o.uuid <> d.uuid
    WHERE d.uuid = deployable
$$;

CREATE OR REPLACE FUNCTION deployables_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
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
        (6, 'protected',      n.protected,      NULL::jsonb),
        (7, 'same_holder',    n.same_holder,    NULL::jsonb),
        (8, 'excludes',       array_to_string(n.excludes, ', '), NULL::jsonb),
        (9, 'conditions',     conditions_named(n.conditions), jsonb_build_object('conditions', n.conditions))) AS e (position, axis, value, data)
    WHERE e.value <> '' ORDER BY n.id, e.position;
    RETURN NULL;
END $$;

-- This event is written row by row, so that no other change of an accelerator pays for it.
CREATE FUNCTION excludes_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
    VALUES ('accelerator', NEW.uuid::text, NEW.host, 'excludes', array_to_string(OLD.excludes, ', '), array_to_string(NEW.excludes, ', '));
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER excludes_changed AFTER UPDATE OF excludes ON deployables FOR EACH ROW
    WHEN (OLD.excludes <> NEW.excludes) EXECUTE FUNCTION excludes_changed();

-- One check for whoever gives something out, of what migration 29 has checked and of what excludes each other, so that no order of
-- triggers decides under which lock something is looked at.
DROP TRIGGER attach_handles_given_together ON attach_handles;
DROP TRIGGER attach_handles_same_holder ON attach_handles;
DROP TRIGGER nova_spec_same_holder ON deployables;
DROP FUNCTION attach_handles_same_holder, nova_spec_same_holder;

-- +goose StatementBegin

-- check_given refuses to give out a handle of a deployable, or the deployable itself to Nova, which may give it to anybody (there is no holder then):
--
-- While somebody else has a handle, or may still have one, of a deployable with the same same_holder, or while Nova may give such a
-- deployable out, nobody gets another one. While anybody has, or may still have, or Nova may give out, what is excluded with a deployable,
-- nobody gets that, not even the same holder. Only who gets something is refused: a report may find that what is held already belongs
-- together since a boot, or excludes each other, and an adoption adds the handles that instances have. That must be recorded.
--
-- Two binds for instances may give out handles of one host at the same time. So a lock is taken first, and what is given out is looked at in
-- a statement of its own, which sees what was committed while the lock was waited for. It is one lock for all of a host: two transactions
-- that took locks of what their handles have in common, in the order of their handles, could wait for each other, and a transaction gives
-- out things of one host only. The seed keeps this lock apart from those that transactions take before they read; whoever has it waits
-- for none of these any more.
CREATE FUNCTION check_given(given uuid, given_handle uuid, to_kind text, to_id text, relation text) RETURNS void LANGUAGE plpgsql AS $$
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
        'Nova may give out'), CASE WHEN h.holder_kind IS NOT NULL AND NOT o.apart AND to_kind IS NOT NULL THEN 'Give both to the same holder, or detach that one first.'
        WHEN h.holder_kind IS NOT NULL THEN 'Detach that one first.' WHEN h.uuid IS NOT NULL THEN 'Reconcile asks the host as soon as it is heard.'
        ELSE 'Take that one out of Nova''s whitelist first, with cyborg host whitelist, and restart nova-compute.' END INTO other, apart, holder, remedy
    FROM (SELECT uuid, false AS apart FROM deployables WHERE host = of_host AND same_holder = shared AND same_holder <> ''
          UNION ALL SELECT e, true FROM excluded_with(given) AS e) AS o
    JOIN deployables d ON d.uuid = o.uuid
    LEFT JOIN attach_handles h ON h.deployable_uuid = d.uuid AND h.uuid IS DISTINCT FROM given_handle AND coalesce(h.holder_kind, h.unconfirmed_kind) IS NOT NULL
        AND (o.apart OR (coalesce(h.holder_kind, h.unconfirmed_kind), coalesce(h.holder_id, h.unconfirmed_id)) IS DISTINCT FROM (to_kind, to_id))
    WHERE (d.uuid <> given OR to_kind IS NOT NULL) AND (h.uuid IS NOT NULL OR d.nova_spec IS NOT NULL AND (o.apart OR to_kind IS NOT NULL))
    ORDER BY NOT o.apart, h.holder_kind IS NULL, h.uuid IS NULL, d.id LIMIT 1;
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

CREATE FUNCTION attach_handles_given() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM check_given(NEW.deployable_uuid, NEW.uuid, NEW.holder_kind, NEW.holder_id, 'attach_handles');
    RETURN NEW;
END $$;

CREATE FUNCTION nova_spec_given() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM check_given(NEW.uuid, NULL, NULL, NULL, 'deployables');
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER nova_spec_given BEFORE UPDATE OF nova_spec ON deployables FOR EACH ROW
    WHEN (OLD.nova_spec IS NULL AND NEW.nova_spec IS NOT NULL) EXECUTE FUNCTION nova_spec_given();
CREATE TRIGGER attach_handles_given BEFORE UPDATE OF holder_kind, holder_id ON attach_handles FOR EACH ROW
    WHEN (NEW.holder_kind IS NOT NULL AND (OLD.holder_kind, OLD.holder_id) IS DISTINCT FROM (NEW.holder_kind, NEW.holder_id))
    EXECUTE FUNCTION attach_handles_given();

-- What is excluded by something that is held is closed in Placement.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION placement_deployables_changed() RETURNS trigger LANGUAGE plpgsql AS $$
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
            WHERE (o.provider_uuid, o.name, o.local_name, o.specs -> 'num', o.attributes, o.attributes_set, o.lifecycle, o.administration, o.presence,
                   o.fence_reason IS NULL, o.protected = '', o.untouched, o.nova_spec IS NULL, o.same_holder, o.unready, o.excludes)
               IS DISTINCT FROM
                  (n.provider_uuid, n.name, n.local_name, n.specs -> 'num', n.attributes, n.attributes_set, n.lifecycle, n.administration, n.presence,
                   n.fence_reason IS NULL, n.protected = '', n.untouched, n.nova_spec IS NULL, n.same_holder, n.unready, n.excludes)));
    END CASE;
    RETURN NULL;
END $$;

-- A handle that an instance gets by a bind, or gives back, does not count, because Placement itself gave it away, or takes it back; but
-- what goes to one holder with it, or is excluded with it, is then open to nobody else, or to all again. Where there is nothing of that
-- kind, as with a function that is alone in its IOMMU group, such a handle changes nothing.
CREATE OR REPLACE FUNCTION placement_handles_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM placement_sync) THEN
        RETURN NULL;
    END IF;
    PERFORM placement_out_of_step(ARRAY(
        SELECT DISTINCT n.host FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid
        LEFT JOIN operations p ON p.id = coalesce(n.operation_id, o.operation_id)
        WHERE o.presence <> n.presence
           OR (o.holder_kind IS NULL) <> (n.holder_kind IS NULL)
              AND (coalesce(p.kind, '') <> 'bind' OR coalesce(n.holder_kind, o.holder_kind) <> 'instance')
           OR (o.holder_kind IS NULL, o.unconfirmed_kind IS NULL) <> (n.holder_kind IS NULL, n.unconfirmed_kind IS NULL)
              AND (EXISTS ( -- this other was not closed before, or is so no longer
                  SELECT FROM excluded_with(n.deployable_uuid) AS e WHERE NOT EXISTS (
                      SELECT FROM excluded_with(e) AS x JOIN attach_handles h ON h.deployable_uuid = x
                      WHERE h.uuid <> n.uuid AND coalesce(h.holder_kind, h.unconfirmed_kind) IS NOT NULL
                        AND NOT EXISTS (SELECT FROM old_rows b WHERE b.uuid = h.uuid AND coalesce(b.holder_kind, b.unconfirmed_kind) IS NULL))) OR EXISTS (
                  SELECT FROM deployables d WHERE d.uuid = n.deployable_uuid AND d.same_holder <> ''
                    AND (EXISTS (SELECT FROM deployables s WHERE s.host = d.host AND s.same_holder = d.same_holder AND s.same_holder <> '' AND s.uuid <> d.uuid)
                      OR EXISTS (SELECT FROM attach_handles h WHERE h.deployable_uuid = d.uuid AND h.uuid <> n.uuid))))));
    RETURN NULL;
END $$;
-- +goose StatementEnd
