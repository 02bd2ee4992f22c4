-- +goose Up

-- The boot of its host, and for how long that was up, as the host had last said when the request was bound: what the host has said
-- since tells that the bind was before the next boot. Null where the request is not bound, or where nobody knows.
ALTER TABLE arqs ADD COLUMN bound_boot text, ADD COLUMN bound_uptime interval;
