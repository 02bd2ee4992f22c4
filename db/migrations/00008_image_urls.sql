-- +goose Up

-- One-time URLs of images in Glance: what the holder of the secret, of which only the hash is here, may fetch for an
-- operation that runs. Every conductor serves them. Rows go when their host has the image, else when they are over.
CREATE TABLE image_urls (
    operation_id    uuid NOT NULL REFERENCES operations ON DELETE CASCADE,
    deployable_uuid uuid NOT NULL,
    secret          bytea NOT NULL UNIQUE CHECK (length(secret) = 32), -- its SHA-256
    host            text NOT NULL CHECK (host <> ''),
    image           jsonb NOT NULL,
    size            bigint NOT NULL CHECK (size >= 0), -- bytes
    valid           interval NOT NULL CHECK (valid > interval '0'), -- after each use
    expires_at      timestamptz NOT NULL,
    PRIMARY KEY (operation_id, deployable_uuid)
);
CREATE INDEX image_urls_by_end ON image_urls (expires_at);

-- +goose Down
DROP TABLE image_urls;
