-- +goose Up

-- Nova waits for what becomes of a bind, and has not been told. It is set with the admission, so that it is known of every bind
-- however its run ended; whoever has told Nova takes it back.
ALTER TABLE operations ADD COLUMN untold boolean NOT NULL DEFAULT false CHECK (kind = 'bind' OR NOT untold);
CREATE INDEX operations_untold ON operations (admitted_at, id) WHERE untold AND NOT open;

-- A request whose bind has failed keeps its handle only as long as the operation undoes what it did.
ALTER TABLE arqs ADD CONSTRAINT arqs_failed_check CHECK (state <> 'BindFailed' OR handle_uuid IS NULL OR claimed_by IS NOT NULL);

-- +goose Down
ALTER TABLE arqs DROP CONSTRAINT arqs_failed_check;
ALTER TABLE operations DROP COLUMN untold;
