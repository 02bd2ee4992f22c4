-- +goose Up

-- Assignment numbers. Each operation draws one with its admission, and each decision of Reconcile
-- about an attachment draws one, both while they hold the lock of the host. A later one about the same
-- accelerator is therefore greater, and a host refuses what comes with a lower one than it has seen.
CREATE SEQUENCE assignment_numbers;

-- The server may have a role of its own, which has rights on the tables alone. These functions run with
-- the rights of the role that migrates.
-- +goose StatementBegin
CREATE FUNCTION next_assignment() RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT nextval('assignment_numbers')
$$;

CREATE FUNCTION last_assignment() RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT last_value FROM assignment_numbers
$$;

-- Makes all further numbers greater than this one; false where they are already. The lock keeps two that
-- do so at the same time from setting the sequence back. Others can draw numbers between the read and the
-- write, and may pass the number meanwhile; far above it, the write does not set the sequence back. Half of
-- all numbers is out of reach, so that nobody who claims to have seen one can use them up.
CREATE FUNCTION exceed_assignment(number bigint) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('assignment_numbers', 1));
    PERFORM setval('assignment_numbers', number + (1 << 20)) FROM assignment_numbers
    WHERE last_value < number AND number < 1::bigint << 62;
    RETURN FOUND;
END $$;
-- +goose StatementEnd

ALTER TABLE operations ADD COLUMN assignment bigint NOT NULL DEFAULT 0;
UPDATE operations SET assignment = next_assignment() WHERE open;
ALTER TABLE operations ALTER COLUMN assignment SET DEFAULT next_assignment();

-- What a host has settled changes nothing in the records where these were right, so no trigger would
-- tell it. The subject is the host where only the host's journal knew the handle.
-- +goose StatementBegin
CREATE FUNCTION attachment_settled(of_host text, accelerator uuid, what jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    -- The same report asks for the same correction until the host has reported anew. A report without a
    -- number is that of a decision that release 0.1 has made.
    correction CONSTANT jsonb := jsonb_build_object('identity', what->'identity', 'deployable', what->'deployable',
        'now', what->'now', 'report', nullif(what->'report', '0'));
BEGIN
    IF EXISTS (
        SELECT FROM events WHERE subject_kind = CASE WHEN accelerator IS NULL THEN 'host' ELSE 'accelerator' END
            AND subject_id = coalesce(accelerator::text, of_host) AND axis = 'settled'
            AND (data->'assignment' = what->'assignment' OR data @> correction)) THEN
        RETURN; -- it was told already
    END IF;
    IF accelerator IS NULL THEN
        INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
        VALUES ('host', of_host, of_host, 'settled', '', '', what);
    ELSE
        INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
        VALUES ('accelerator', accelerator::text, of_host, 'settled', '', '', what);
    END IF;
END $$;
-- +goose StatementEnd
