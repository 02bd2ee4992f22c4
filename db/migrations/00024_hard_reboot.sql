-- +goose Up
-- Nova's id of the request for a hard reboot at which it was seen, of an instance that may be without its accelerators: if that
-- succeeds, it has them again. Nova's list of what was done does not tell a hard reboot from a soft one.
ALTER TABLE arqs ADD COLUMN hard_reboot text;

-- +goose Down
ALTER TABLE arqs DROP COLUMN hard_reboot;
