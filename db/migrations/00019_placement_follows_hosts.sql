-- +goose Up

-- That Placement is told of the records: then there is one row, and every host is in the books from its first report on.
CREATE TABLE placement_following (
    one           boolean PRIMARY KEY DEFAULT true CHECK (one),
    compare_every interval NOT NULL -- new hosts are compared at times that are spread over it
);
INSERT INTO placement_following (compare_every) SELECT interval '1 hour' WHERE EXISTS (SELECT FROM placement_sync);

-- +goose StatementBegin
CREATE FUNCTION placement_hosts_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO placement_sync (host, compared_at)
    SELECT n.name, now() - random() * f.compare_every FROM new_rows n CROSS JOIN placement_following f ORDER BY n.name
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER placement_inserted AFTER INSERT ON hosts
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION placement_hosts_inserted();

CREATE INDEX placement_sync_silent ON placement_sync (host) WHERE silent;
-- What admission takes into service, without what is never to be.
CREATE INDEX deployables_new ON deployables (id) WHERE untouched AND lifecycle = 'inactive' AND presence = 'present' AND protected = '';

-- +goose Down
DROP INDEX deployables_new, placement_sync_silent;
DROP TRIGGER placement_inserted ON hosts;
DROP FUNCTION placement_hosts_inserted;
DROP TABLE placement_following;
