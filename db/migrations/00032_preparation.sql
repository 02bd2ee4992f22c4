-- +goose Up

-- What a host can choose when it prepares the handles of a deployable for whoever gets them, as cyborg.Preparation; null where
-- instances and services get them as they are.
ALTER TABLE deployables ADD COLUMN preparation jsonb CHECK (jsonb_typeof(preparation) = 'object');

-- The PCI addresses of the functions that go with a handle to its holder; whether its host attaches it for the holder, although that is
-- no host; and what was chosen for the holder. The last two stay while the handle is unconfirmed: its host has still to take it back.
ALTER TABLE attach_handles
    ADD COLUMN companions text[] NOT NULL DEFAULT '{}',
    ADD COLUMN prepared boolean NOT NULL DEFAULT false,
    ADD COLUMN parameters jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(parameters) = 'object');
CREATE INDEX attach_handles_prepared ON attach_handles (host) WHERE prepared;
ALTER TABLE forgotten_handles ADD COLUMN prepared boolean NOT NULL DEFAULT false;

-- +goose StatementBegin

-- Whoever frees a prepared handle says that its host has taken it back, with prepared. A server that does not know the columns does not say
-- so: then the handle is unconfirmed instead, with who had it. Who gets a handle next gets nothing of this.
CREATE FUNCTION attach_handles_freed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.prepared AND OLD.holder_kind IS NOT NULL THEN
        NEW.unconfirmed_kind := OLD.holder_kind;
        NEW.unconfirmed_id := OLD.holder_id;
        NEW.unconfirmed_operation := OLD.operation_id;
        RETURN NEW;
    END IF;
    NEW.prepared := false;
    NEW.parameters := '{}';
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
        (4, 'handle', n.uuid::text, 'undone', coalesce(o.undone_reason, ''), coalesce(n.undone_reason, ''), NULL)
        ) AS e (position, subject, subject_id, axis, old, new, data)
    WHERE e.old <> e.new ORDER BY n.id, e.position;
    RETURN NULL;
END $$;

-- This event is written row by row, so that no other change of an accelerator pays for it.
CREATE FUNCTION preparation_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    VALUES ('accelerator', NEW.uuid::text, NEW.host, 'reported', '', '', jsonb_build_object('preparation', NEW.preparation));
    RETURN NULL;
END $$;

-- While its host takes something back that it had prepared, that counts as free in Placement; not once that has failed, until it is over.
CREATE FUNCTION placement_settlement_failed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM placement_out_of_step(ARRAY[OLD.host]);
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER placement_settlement_over AFTER DELETE ON pending_settlements FOR EACH ROW
    WHEN (OLD.error <> '') EXECUTE FUNCTION placement_settlement_failed();
CREATE TRIGGER placement_settlement_failed AFTER UPDATE OF error ON pending_settlements FOR EACH ROW
    WHEN ((OLD.error = '') <> (NEW.error = '')) EXECUTE FUNCTION placement_settlement_failed();
CREATE TRIGGER attach_handles_freed BEFORE UPDATE ON attach_handles FOR EACH ROW
    WHEN (NEW.holder_kind IS NULL AND NEW.unconfirmed_kind IS NULL AND (NEW.prepared OR NEW.parameters <> '{}'))
    EXECUTE FUNCTION attach_handles_freed();
CREATE TRIGGER preparation_changed AFTER UPDATE OF preparation ON deployables FOR EACH ROW
    WHEN (OLD.preparation IS DISTINCT FROM NEW.preparation) EXECUTE FUNCTION preparation_changed();
