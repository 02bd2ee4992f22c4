-- +goose Up

-- An operation asks for its transaction's number at each of its ten events, and four times whether the host was heard. PostgreSQL
-- planned the second question anew each time, because it keeps no plan of a function in SQL that it cannot inline.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION unheard_for(heard_epoch integer, last_seen timestamptz) RETURNS interval
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (SELECT CASE
        WHEN server_started <> pg_postmaster_start_time() OR relation <> tableoid THEN interval '0' -- nobody has begun the epoch yet
        WHEN epoch IS DISTINCT FROM heard_epoch THEN clock_timestamp() - greatest(last_seen, began_at) END
    FROM feed_epochs ORDER BY epoch DESC LIMIT 1);
END $$;

-- The number of a transaction stays as it is once it has written an event: no epoch begins before it has ended (begin_epoch). A
-- setting that is local to the transaction is gone with it, and with a savepoint that is rolled back.
CREATE OR REPLACE FUNCTION number_transaction() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF coalesce(current_setting('cyborg.transaction', true), '') = '' THEN
        PERFORM set_config('cyborg.transaction', (feed_base() + pg_current_xact_id()::text::bigint)::text, true);
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
