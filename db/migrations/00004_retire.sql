-- +goose Up
ALTER TABLE operations
    DROP CONSTRAINT operations_kind_check,
    ADD CONSTRAINT operations_kind_check CHECK (kind IN ('provision', 'program', 'attach', 'detach', 'configure', 'retire'));

-- +goose Down
DELETE FROM operations WHERE kind = 'retire';
ALTER TABLE operations
    DROP CONSTRAINT operations_kind_check,
    ADD CONSTRAINT operations_kind_check CHECK (kind IN ('provision', 'program', 'attach', 'detach', 'configure'));
