-- +goose Up

-- The unconfirmed handles of hosts that were forgotten. A host that comes back may still have them attached.
-- What the host itself has, its journal says; what an instance or a service has, only the records know.
CREATE TABLE forgotten_handles (
    host                  text NOT NULL,
    kind                  text NOT NULL,
    identity              text NOT NULL,
    unconfirmed_kind      text NOT NULL,
    unconfirmed_id        text NOT NULL,
    unconfirmed_operation uuid NOT NULL,
    PRIMARY KEY (host, kind, identity)
);
