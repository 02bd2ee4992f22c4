-- +goose Up

-- By how much the agent's clock was ahead of this database's at its newest heartbeat; null where it did not tell.
ALTER TABLE hosts ADD COLUMN clock_offset interval;

-- +goose Down

ALTER TABLE hosts DROP COLUMN clock_offset;
