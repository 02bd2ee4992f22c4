-- +goose Up

-- The numbers of an epoch were above those that were lost only while the clock went on. If it was set back, they began just behind
-- what was stored, at numbers that lost events had, and a reader of those was sent into the midst of new events. Now they
-- begin further behind than an epoch has ever come. If a whole epoch was lost, too, its numbers may still be above these: by the
-- first number of the epoch in force, readers of lost numbers above it are known. Chance keeps the two apart.
ALTER TABLE feed_epochs ADD COLUMN first bigint; -- its first number; NULL in those of before

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION begin_feed_epoch() RETURNS bigint LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtextextended('assignment_numbers', 1));
    SELECT setval('assignment_numbers', (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 10)
    FROM assignment_numbers WHERE last_value < (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 10;
    INSERT INTO feed_epochs (epoch, base, first, server_started, relation)
    SELECT next.epoch, next.first - pg_snapshot_xmin(pg_current_snapshot())::text::bigint, next.first, pg_postmaster_start_time(), 'feed_epochs'::regclass
    FROM (
        SELECT coalesce(max(epoch), 0) + 1 AS epoch,
            greatest((extract(epoch FROM clock_timestamp()) * 1000)::bigint << 20,
                (SELECT transaction::text::bigint FROM events ORDER BY transaction DESC LIMIT 1)
                + ((1 + floor(random() * 1024)::bigint) << 30)) AS first
        FROM feed_epochs) next
    RETURNING base
$$;

-- Returns the first number of the epoch in force, where a number is above all that the epoch has given so far: it is of an epoch that was
-- lost, and who has read it has read nothing of this one. Otherwise it returns the greatest number.
CREATE FUNCTION read_before(transaction xid8) RETURNS xid8 LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT coalesce(CASE
        WHEN server_started = pg_postmaster_start_time() AND relation = tableoid AND NOT pg_is_in_recovery()
            AND $1 >= (base + pg_snapshot_xmax(pg_current_snapshot())::text::bigint)::text::xid8 THEN first END,
        9223372036854775807)::text::xid8
    FROM feed_epochs ORDER BY epoch DESC LIMIT 1
$$;
-- +goose StatementEnd
