-- +goose Up

-- What was adopted from another cloud's records, ever: it is not adopted again, whatever has become of it since.
CREATE TABLE adopted_rows (
    kind       text NOT NULL CHECK (kind IN ('device_profile', 'device', 'deployable', 'attach_handle', 'accelerator_request')),
    uuid       uuid NOT NULL,
    adopted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, uuid)
);

-- +goose Down
DROP TABLE adopted_rows;
