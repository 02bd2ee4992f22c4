-- +goose Up

-- The store wakes the readers of the feed after its commits; no trigger does so any more. NOTIFY
-- takes a lock that all databases of the server share, and keeps it until the transaction is on the
-- disk and on the standbys. In the transactions that write events, it let commits only pass one by
-- one.
DROP TRIGGER wake_readers ON events;
DROP FUNCTION wake_readers();
