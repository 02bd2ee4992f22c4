-- +goose Up

-- What Reconcile corrects about the run of an operation changes nothing else in the records, so it is written down of its own, and
-- told with that. It is written before Temporal is asked: the answer may be lost, and afterwards nobody could tell who did it.
ALTER TABLE operations
    ADD COLUMN stray_run text NOT NULL DEFAULT '', -- the last run that is terminated because it does not have the operation
    ADD COLUMN cancel_repeated_at timestamptz;     -- when it was found that the run had not heard of cancel_at

-- These events are written row by row, so that no other change of an operation pays for them.
-- +goose StatementBegin
CREATE FUNCTION run_corrected() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data, operation_id)
    SELECT 'operation', NEW.id::text, NEW.host, e.axis, e.old, e.new, e.data, NEW.id
    FROM (VALUES
        (1, 'stray_run', OLD.stray_run, NEW.stray_run, jsonb_build_object('run', NEW.run_id), OLD.stray_run <> NEW.stray_run),
        (2, 'cancel', 'requested', 'repeated', NULL::jsonb, OLD.cancel_repeated_at IS NULL AND NEW.cancel_repeated_at IS NOT NULL)
        ) AS e (position, axis, old, new, data, changed)
    WHERE e.changed ORDER BY e.position;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER run_corrected AFTER UPDATE OF stray_run, cancel_repeated_at ON operations
    FOR EACH ROW EXECUTE FUNCTION run_corrected();

-- Everybody may call the functions that run with the rights of the role that migrates. Those that change something ask whether
-- the caller may change the records at all: each change writes events. The caller is the role of the session, because within such
-- a function current_user is the one that migrates. The table is bound here, so that a temporary one of its name does not count.
-- +goose StatementBegin
CREATE FUNCTION may_write() RETURNS boolean LANGUAGE sql STABLE
    RETURN has_table_privilege(coalesce(nullif(current_setting('role'), 'none')::name, session_user), 'events'::regclass::oid, 'INSERT');

CREATE FUNCTION require_writer() RETURNS void LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT may_write() THEN
        RAISE insufficient_privilege USING MESSAGE = 'the role may read the records, and not change them';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION next_assignment() RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM require_writer();
    PERFORM feed_base();
    RETURN nextval('assignment_numbers');
END $$;

CREATE OR REPLACE FUNCTION exceed_assignment(number bigint) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM require_writer();
    PERFORM pg_advisory_xact_lock(hashtextextended('assignment_numbers', 1));
    PERFORM setval('assignment_numbers', number + (1 << 20)) FROM assignment_numbers
    WHERE last_value < number AND number < 1::bigint << 62;
    RETURN FOUND;
END $$;

-- The caller is asked before the locks: writers would wait behind them.
CREATE OR REPLACE FUNCTION begin_epoch() RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM require_writer();
    LOCK TABLE feed_epochs IN EXCLUSIVE MODE;
    LOCK TABLE events IN SHARE MODE;
    PERFORM begin_feed_epoch();
    RETURN (SELECT max(epoch) FROM feed_epochs);
END $$;

-- The other functions begin an epoch only where one is due, and ask nobody where none is.
CREATE FUNCTION writers_begin_epochs() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM require_writer();
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER writers_begin_epochs BEFORE INSERT ON feed_epochs
    FOR EACH STATEMENT EXECUTE FUNCTION writers_begin_epochs();

-- A revocation has a reason also where the records had lost it, and the host was enrolled later and stays so.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION host_identities_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    VALUES ('host', NEW.host, NEW.host, 'identity', coalesce(OLD.state, ''), NEW.state,
            CASE WHEN NEW.revoked_through > coalesce(OLD.revoked_through, -1) THEN jsonb_build_object('reason', NEW.revoke_reason) END);
    RETURN NULL;
END $$;
-- +goose StatementEnd
