-- +goose Up

-- Why and since when a host no longer has an attachment of the records, as its journal says. The handle
-- keeps its holder: Reconcile has the host attach it again.
ALTER TABLE attach_handles ADD COLUMN undone_reason text CHECK (undone_reason <> ''), ADD COLUMN undone_at timestamptz,
    ADD CONSTRAINT attach_handles_undone_has_reason CHECK ((undone_reason IS NULL) = (undone_at IS NULL)),
    ADD CONSTRAINT attach_handles_undone_was_attached CHECK (undone_reason IS NULL OR attached_at IS NOT NULL);
CREATE INDEX attach_handles_undone ON attach_handles (host) WHERE undone_at IS NOT NULL;

-- Whoever takes the handle back from its holder ends this, too.
-- +goose StatementBegin
CREATE FUNCTION attach_handles_released() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.undone_reason := NULL;
    NEW.undone_at := NULL;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER attach_handles_released BEFORE UPDATE ON attach_handles FOR EACH ROW
    WHEN (OLD.undone_at IS NOT NULL AND NEW.attached_at IS NULL) EXECUTE FUNCTION attach_handles_released();

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION attach_handles_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT e.subject, e.subject_id, n.host, e.axis, e.old, e.new,
           jsonb_build_object('accelerator', n.deployable_uuid, 'handle', n.uuid, 'identity', n.identity) || coalesce(e.data, '{}')
    FROM new_rows n JOIN old_rows o ON o.uuid = n.uuid CROSS JOIN LATERAL (VALUES
        (1, 'handle', n.uuid::text, 'accelerator', o.deployable_uuid::text, n.deployable_uuid::text, NULL::jsonb),
        (2, 'handle', n.uuid::text, 'presence', o.presence, n.presence, NULL),
        (3, 'accelerator', n.deployable_uuid::text, 'holder',
            holder_text(o.holder_kind, o.holder_id, o.attached_at), holder_text(n.holder_kind, n.holder_id, n.attached_at), NULL),
        (4, 'handle', n.uuid::text, 'health', CASE WHEN o.undone_at IS NULL THEN '' ELSE 'undone' END,
            CASE WHEN n.undone_at IS NULL THEN '' ELSE 'undone' END, jsonb_build_object('reason', coalesce(n.undone_reason, o.undone_reason)))
        ) AS e (position, subject, subject_id, axis, old, new, data)
    WHERE e.old <> e.new ORDER BY n.id, e.position;
    RETURN NULL;
END $$;
-- +goose StatementEnd
