-- +goose Up

-- How far the journal of the host's agent had got in its last report: the process that had opened it, and how many writes this
-- one had made. A journal that does not hold this position was lost, or is an old copy.
ALTER TABLE hosts ADD COLUMN journal_opening uuid, ADD COLUMN journal_writes bigint NOT NULL DEFAULT 0;
