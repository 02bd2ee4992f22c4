-- +goose Up

-- PostgreSQL numbers transactions upwards for as long as one server runs. A server that was restored
-- from a backup, or promoted before it had every commit, begins below the ids that events have, or
-- gives ids once more that readers know from events that were lost. So events have numbers of our own:
-- the id, and a base that changes with each start of a PostgreSQL, which is an epoch. The numbers of an
-- epoch are above all numbers that were ever given before, whether their events are still there or not.
CREATE TABLE feed_epochs (
    epoch          integer PRIMARY KEY, -- the last one is in force
    base           bigint NOT NULL,     -- what is added to a transaction's id
    server_started timestamptz NOT NULL, -- the start of the PostgreSQL whose ids these are
    began_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- +goose StatementBegin

-- Begins an epoch, and returns its base. The numbers begin at the milliseconds since 1970 times 2^20: more than a PostgreSQL
-- that ran until now can have reached. If a clock was set back, they are at least above all that is stored. The first number
-- is that of the oldest transaction that runs, because it may write later than the one that begins the epoch.
CREATE FUNCTION begin_feed_epoch() RETURNS bigint LANGUAGE sql AS $$
    INSERT INTO feed_epochs (epoch, base, server_started)
    SELECT coalesce(max(epoch), 0) + 1,
        greatest((extract(epoch FROM clock_timestamp()) * 1000)::bigint << 20,
            (SELECT transaction::text::bigint + 1 FROM events ORDER BY transaction DESC LIMIT 1)) - pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
        pg_postmaster_start_time()
    FROM feed_epochs RETURNING base
$$;

-- Numbers the transaction that is about to write events. Where PostgreSQL was started since the last
-- one, the first transaction begins the epoch, and others wait until it has ended. No transaction of the
-- epoch before can still run, because it would be of a server that is gone.
-- The server may have a role of its own, which had its rights on the tables before there was this one. So this function,
-- and the one that readers call, run with the rights of the role that migrates.
CREATE FUNCTION number_transaction() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    own    bigint := pg_current_xact_id()::text::bigint;
    number bigint := (SELECT CASE WHEN server_started = pg_postmaster_start_time() THEN base + own END
        FROM feed_epochs ORDER BY epoch DESC LIMIT 1);
BEGIN
    IF number IS NULL THEN
        LOCK TABLE feed_epochs IN EXCLUSIVE MODE;
        number := (SELECT CASE WHEN server_started = pg_postmaster_start_time() THEN base + own END
            FROM feed_epochs ORDER BY epoch DESC LIMIT 1);
        number := coalesce(number, begin_feed_epoch() + own);
    END IF;

    number := set_config('cyborg.transaction', number::text, true);
    RETURN NULL;
END $$;

-- Events from this number on cannot be read yet: one below it may still appear. Everything can be read
-- where PostgreSQL was started since the last event, because the transactions of before are gone. A
-- standby has another start than its primary, and the primary's ids.
CREATE FUNCTION unreadable_from() RETURNS xid8 LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT (CASE WHEN server_started = pg_postmaster_start_time() OR pg_is_in_recovery()
        THEN base + pg_snapshot_xmin(pg_current_snapshot())::text::bigint
        ELSE 9223372036854775807 END)::text::xid8
    FROM feed_epochs ORDER BY epoch DESC LIMIT 1
$$;
-- +goose StatementEnd

-- The ids themselves are the numbers of the first epoch. If there are ids that this PostgreSQL has not
-- reached yet, the database was restored before this migration.
INSERT INTO feed_epochs (epoch, base, server_started) VALUES (0, 0, pg_postmaster_start_time());
SELECT begin_feed_epoch()
WHERE EXISTS (SELECT FROM events WHERE transaction > pg_current_xact_id());

-- Defaults are evaluated for each event, this trigger once for each statement, and before them.
CREATE TRIGGER number_transaction BEFORE INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION number_transaction();
ALTER TABLE events ALTER COLUMN transaction SET DEFAULT current_setting('cyborg.transaction')::xid8;
