-- +goose Up

-- How long the host had been up when it was last seen; null where its agent does not say.
ALTER TABLE hosts ADD COLUMN uptime interval;

-- The keys of the processes that sign what operations may have hosts do. A process draws its key when it starts, and keeps
-- it to itself.
CREATE TABLE grant_keys (
    id text PRIMARY KEY CHECK (id <> ''),
    public bytea NOT NULL CHECK (length(public) = 32), -- Ed25519
    last_seen timestamptz NOT NULL DEFAULT clock_timestamp()
);
