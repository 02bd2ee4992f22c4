-- +goose Up

-- Finds the few that are fenced.
CREATE INDEX deployables_fenced ON deployables (id) WHERE fence_reason IS NOT NULL;

-- +goose Down
DROP INDEX deployables_fenced;
