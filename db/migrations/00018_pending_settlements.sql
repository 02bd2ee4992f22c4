-- +goose Up

-- What Reconcile has decided that a host corrects, because its journal showed it otherwise, until it is known whether the host
-- has: by its answer or, where that is lost, by its next report.
CREATE TABLE pending_settlements (
    host             text NOT NULL REFERENCES hosts ON DELETE CASCADE,
    backend          text NOT NULL,
    handle           text NOT NULL, -- its identity
    deployable       text NOT NULL, -- its local name
    accelerator      uuid,          -- null where the records know none
    attach           boolean NOT NULL,
    first_assignment bigint NOT NULL, -- of the first decision that was not answered
    assignment       bigint NOT NULL, -- of the last one
    event            jsonb NOT NULL,  -- what the history says of it
    PRIMARY KEY (host, backend, handle)
);
