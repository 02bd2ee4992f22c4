-- +goose Up

-- Assignment numbers. Each operation draws one with its admission, and each decision of Reconcile
-- about an attachment draws one, both while they hold the lock of the host. A later one about the same
-- accelerator is therefore greater, and a host refuses what comes with a lower one than it has seen.
CREATE SEQUENCE assignment_numbers;

ALTER TABLE operations ADD COLUMN assignment bigint NOT NULL DEFAULT 0;
UPDATE operations SET assignment = nextval('assignment_numbers') WHERE open;
ALTER TABLE operations ALTER COLUMN assignment SET DEFAULT nextval('assignment_numbers');

-- What a host has settled changes nothing in the records where these were right, so no trigger would
-- tell it. The subject is the host where only the host's journal knew the handle.
-- +goose StatementBegin
CREATE FUNCTION attachment_settled(of_host text, accelerator uuid, what jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF accelerator IS NULL THEN
        INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
        VALUES ('host', of_host, of_host, 'settled', '', '', what);
    ELSE
        INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
        VALUES ('accelerator', accelerator::text, of_host, 'settled', '', '', what);
    END IF;
END $$;
-- +goose StatementEnd
