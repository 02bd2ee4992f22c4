-- +goose Up

-- An epoch is also that of one copy of the database: one that was restored from a dump into the same PostgreSQL, which goes on,
-- has other tables. The assignment numbers of an epoch are above all that were drawn before it, also by those that were lost:
-- they begin at the milliseconds since 1970 times 2^10, more than anybody can have drawn until then. If a clock was set back,
-- the words of the hosts still put the numbers above what these have seen.
ALTER TABLE feed_epochs ADD COLUMN relation oid; -- of this table
UPDATE feed_epochs SET relation = tableoid;
ALTER TABLE feed_epochs ALTER COLUMN relation SET NOT NULL;

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION begin_feed_epoch() RETURNS bigint LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtextextended('assignment_numbers', 1));
    SELECT setval('assignment_numbers', (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 10)
    FROM assignment_numbers WHERE last_value < (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 10;
    INSERT INTO feed_epochs (epoch, base, server_started, relation)
    SELECT coalesce(max(epoch), 0) + 1,
        greatest((extract(epoch FROM clock_timestamp()) * 1000)::bigint << 20,
            (SELECT transaction::text::bigint + 1 FROM events ORDER BY transaction DESC LIMIT 1)) - pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
        pg_postmaster_start_time(), 'feed_epochs'::regclass
    FROM feed_epochs RETURNING base
$$;

-- Returns the base of the epoch in force. The first transaction that asks begins it, and others wait until that one has ended.
CREATE FUNCTION feed_base() RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    in_force bigint := (SELECT CASE WHEN server_started = pg_postmaster_start_time() AND relation = tableoid THEN base END
        FROM feed_epochs ORDER BY epoch DESC LIMIT 1);
BEGIN
    IF in_force IS NULL THEN
        LOCK TABLE feed_epochs IN EXCLUSIVE MODE;
        in_force := (SELECT CASE WHEN server_started = pg_postmaster_start_time() AND relation = tableoid THEN base END
            FROM feed_epochs ORDER BY epoch DESC LIMIT 1);
        in_force := coalesce(in_force, begin_feed_epoch());
    END IF;
    RETURN in_force;
END $$;

CREATE OR REPLACE FUNCTION number_transaction() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    number text := set_config('cyborg.transaction', (feed_base() + pg_current_xact_id()::text::bigint)::text, true);
BEGIN
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION next_assignment() RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM feed_base();
    RETURN nextval('assignment_numbers');
END $$;

CREATE OR REPLACE FUNCTION unreadable_from() RETURNS xid8 LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT (CASE WHEN server_started = pg_postmaster_start_time() AND relation = tableoid OR pg_is_in_recovery()
        THEN base + pg_snapshot_xmin(pg_current_snapshot())::text::bigint
        ELSE 9223372036854775807 END)::text::xid8
    FROM feed_epochs ORDER BY epoch DESC LIMIT 1
$$;
-- +goose StatementEnd

-- The epoch goes on, but its numbers were drawn one by one so far.
SELECT setval('assignment_numbers', (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 10)
FROM assignment_numbers WHERE last_value < (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 10;
