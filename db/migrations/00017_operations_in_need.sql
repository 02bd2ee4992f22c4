-- +goose Up

-- Finds the few that need an operator among all that ever were.
CREATE INDEX operations_in_need ON operations (admitted_at DESC, id DESC) WHERE state = 'needs_operator';

-- +goose Down
DROP INDEX operations_in_need;
