-- +goose Up

-- The digest of the newest report that was recorded exactly as it was reported; empty where it was not. A report of what
-- differs from that one can be merged without the rest of the host's inventory.
ALTER TABLE hosts ADD COLUMN base text NOT NULL DEFAULT '';

-- Whether the agent said with its newest heartbeat that all its slots are taken.
ALTER TABLE hosts ADD COLUMN busy boolean NOT NULL DEFAULT false;

-- +goose Down

ALTER TABLE hosts DROP COLUMN base, DROP COLUMN busy;
