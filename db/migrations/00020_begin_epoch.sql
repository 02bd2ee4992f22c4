-- +goose Up

-- Begins an epoch after a restore that nothing tells of: the tables are those of before, and PostgreSQL was not started again.
-- It may be called at any time, and again, also while others write. Whoever has written an event in the epoch before has ended
-- when the next one begins; otherwise a reader could pass over what he commits afterwards. The others wait until the commit.
-- +goose StatementBegin
CREATE FUNCTION begin_epoch() RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    LOCK TABLE feed_epochs IN EXCLUSIVE MODE;
    LOCK TABLE events IN SHARE MODE;
    PERFORM begin_feed_epoch();
    RETURN (SELECT max(epoch) FROM feed_epochs);
END $$;
-- +goose StatementEnd
