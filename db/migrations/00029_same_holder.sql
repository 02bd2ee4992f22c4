-- +goose Up

-- What a deployable has in common with others of its host that only one holder can have together, such as an IOMMU group; empty for one
-- that can be given out whoever has the others.
ALTER TABLE deployables ADD COLUMN same_holder text NOT NULL DEFAULT '';
CREATE INDEX deployables_same_holder ON deployables (host, same_holder) WHERE same_holder <> '';

-- +goose StatementBegin
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
        (7, 'same_holder',    n.same_holder,    NULL::jsonb)) AS e (position, axis, value, data)
    WHERE e.value <> '' ORDER BY n.id, e.position;
    RETURN NULL;
END $$;

-- This event is written row by row, so that no other change of an accelerator pays for it.
CREATE FUNCTION same_holder_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value)
    VALUES ('accelerator', NEW.uuid::text, NEW.host, 'same_holder', OLD.same_holder, NEW.same_holder);
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER same_holder_changed AFTER UPDATE OF same_holder ON deployables FOR EACH ROW
    WHEN (OLD.same_holder <> NEW.same_holder) EXECUTE FUNCTION same_holder_changed();

-- Nobody gets a handle while somebody else has one, or may still have one, of a deployable with the same same_holder, or while Nova may
-- give such a deployable out; and Nova gets no deployable while somebody has, or may still have, a handle of another one. Only who gets
-- something is refused: a report may find that two which are held share a group since a boot, and that must be recorded.
--
-- Two binds for instances may give out handles of one host at the same time. So the group is locked first, and looked at in a statement of
-- its own, which sees what was committed while the lock was waited for. The seed keeps this lock apart from those that transactions take
-- before they read; whoever has it waits for none of these any more.
-- +goose StatementBegin
CREATE FUNCTION attach_handles_same_holder() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    taken  text;
    shared text;
    other  text;
    holder text;
    remedy text;
BEGIN
    SELECT accelerator, same_holder INTO taken, shared FROM deployables WHERE uuid = NEW.deployable_uuid AND same_holder <> '';
    IF NOT FOUND THEN
        RETURN NEW;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended(NEW.host || ' ' || shared, 2));
    SELECT d.accelerator, coalesce(h.holder_kind || ' ' || h.holder_id || ' has', h.unconfirmed_kind || ' ' || h.unconfirmed_id || ' may still have',
        'Nova may give out'), CASE WHEN h.holder_kind IS NOT NULL THEN 'Give both to the same holder, or detach that one first.'
        WHEN h.uuid IS NOT NULL THEN 'Reconcile asks the host as soon as it is heard.'
        ELSE 'Take that one out of Nova''s whitelist first, with cyborg host whitelist, and restart nova-compute.' END INTO other, holder, remedy
    FROM deployables d LEFT JOIN attach_handles h ON h.deployable_uuid = d.uuid AND h.uuid <> NEW.uuid
        AND (coalesce(h.holder_kind, h.unconfirmed_kind), coalesce(h.holder_id, h.unconfirmed_id)) <> (NEW.holder_kind, NEW.holder_id)
    WHERE d.host = NEW.host AND d.same_holder = shared AND d.same_holder <> '' AND (h.uuid IS NOT NULL OR d.nova_spec IS NOT NULL)
    LIMIT 1;
    IF FOUND THEN
        RAISE exclusion_violation USING TABLE = 'attach_handles', CONSTRAINT = 'attach_handles_same_holder', HINT = remedy, MESSAGE = format(
            'accelerator "%s" shares %s with "%s", which %s: they go to one holder', taken, shared, other, holder);
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION nova_spec_same_holder() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    other  text;
    holder text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(NEW.host || ' ' || NEW.same_holder, 2));
    SELECT d.accelerator, coalesce(h.holder_kind || ' ' || h.holder_id || ' has', h.unconfirmed_kind || ' ' || h.unconfirmed_id || ' may still have')
        INTO other, holder
    FROM deployables d JOIN attach_handles h ON h.deployable_uuid = d.uuid AND (h.holder_kind IS NOT NULL OR h.unconfirmed_kind IS NOT NULL)
    WHERE d.host = NEW.host AND d.same_holder = NEW.same_holder AND d.same_holder <> '' AND d.uuid <> NEW.uuid LIMIT 1;
    IF FOUND THEN
        RAISE exclusion_violation USING TABLE = 'deployables', CONSTRAINT = 'attach_handles_same_holder', HINT = 'Detach that one first.', MESSAGE = format(
            'accelerator "%s" shares %s with "%s", which %s: they go to one holder', NEW.accelerator, NEW.same_holder, other, holder);
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER nova_spec_same_holder BEFORE UPDATE OF nova_spec ON deployables FOR EACH ROW
    WHEN (OLD.nova_spec IS NULL AND NEW.nova_spec IS NOT NULL AND NEW.same_holder <> '') EXECUTE FUNCTION nova_spec_same_holder();
CREATE TRIGGER attach_handles_given_together BEFORE INSERT ON attach_handles FOR EACH ROW
    WHEN (NEW.holder_kind IS NOT NULL) EXECUTE FUNCTION attach_handles_same_holder();
CREATE TRIGGER attach_handles_same_holder BEFORE UPDATE OF holder_kind, holder_id ON attach_handles FOR EACH ROW
    WHEN (NEW.holder_kind IS NOT NULL AND (OLD.holder_kind, OLD.holder_id) IS DISTINCT FROM (NEW.holder_kind, NEW.holder_id))
    EXECUTE FUNCTION attach_handles_same_holder();

-- With which others it goes to one holder decides, too, what Placement may give away.
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
            WHERE (o.provider_uuid, o.name, o.specs -> 'num', o.attributes, o.attributes_set, o.lifecycle, o.administration, o.presence,
                   o.fence_reason IS NULL, o.protected = '', o.untouched, o.nova_spec IS NULL, o.same_holder)
               IS DISTINCT FROM
                  (n.provider_uuid, n.name, n.specs -> 'num', n.attributes, n.attributes_set, n.lifecycle, n.administration, n.presence,
                   n.fence_reason IS NULL, n.protected = '', n.untouched, n.nova_spec IS NULL, n.same_holder)));
    END CASE;
    RETURN NULL;
END $$;

-- A handle that an instance gets by a bind, or gives back, does not count, because Placement itself gave it away, or takes it back; but
-- what goes to one holder with it is then open to nobody else, or to all again. Where nothing does, as with a function that is alone in its
-- IOMMU group, such a handle changes nothing.
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
              AND EXISTS (
                  SELECT FROM deployables d WHERE d.uuid = n.deployable_uuid AND d.same_holder <> ''
                    AND (EXISTS (SELECT FROM deployables s WHERE s.host = d.host AND s.same_holder = d.same_holder AND s.same_holder <> '' AND s.uuid <> d.uuid)
                      OR EXISTS (SELECT FROM attach_handles h WHERE h.deployable_uuid = d.uuid AND h.uuid <> n.uuid)))));
    RETURN NULL;
END $$;
-- +goose StatementEnd
