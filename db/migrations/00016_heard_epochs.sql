-- +goose Up

-- The epoch in which the host has last said what it has; null before it has. A database that was restored, or failed over, may
-- have lost to whom a handle was given, so a host's handles are given to nobody before it was heard in the present epoch.
ALTER TABLE hosts ADD COLUMN heard_epoch integer;

-- +goose StatementBegin

-- Returns the epoch in force. The first transaction that asks begins it, as in feed_base.
CREATE FUNCTION epoch_in_force() RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM feed_base();
    RETURN (SELECT max(epoch) FROM feed_epochs);
END $$;

-- For how long a host has been waited for in the present epoch: since the epoch began, or since the host's last message. Null
-- where the host has said in this epoch what it has.
CREATE FUNCTION unheard_for(heard_epoch integer, last_seen timestamptz) RETURNS interval LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT CASE
        WHEN server_started <> pg_postmaster_start_time() OR relation <> tableoid THEN interval '0' -- nobody has begun the epoch yet
        WHEN epoch IS DISTINCT FROM heard_epoch THEN clock_timestamp() - greatest(last_seen, began_at) END
    FROM feed_epochs ORDER BY epoch DESC LIMIT 1
$$;
-- +goose StatementEnd
