-- +goose Up

-- The run of the operation's workflow that may change the operation: the first that asks gets it, and
-- another only in its place. Empty for an operation that has not begun, or began before this column was.
ALTER TABLE operations ADD COLUMN run_id text NOT NULL DEFAULT '';
