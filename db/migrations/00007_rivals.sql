-- +goose Up

-- Which agent is the host's: it tells the agents apart that run at the same time. Empty for one of an earlier release.
ALTER TABLE hosts ADD COLUMN instance text NOT NULL DEFAULT '';
-- Where the host's agent was last heard from.
ALTER TABLE hosts ADD COLUMN agent_address text NOT NULL DEFAULT '';

-- Agents that spoke for a host while another one was its agent, and were refused.
CREATE TABLE rivals (
    host          text NOT NULL REFERENCES hosts ON DELETE CASCADE,
    instance      text NOT NULL CHECK (instance <> ''), -- the boot id of an agent of an earlier release
    boot_id       text NOT NULL,
    agent_version text NOT NULL,
    address       text NOT NULL,
    started_at    timestamptz NOT NULL DEFAULT now(),
    since         timestamptz NOT NULL DEFAULT now(), -- from when on it has been refused without a pause
    last_seen     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (host, instance)
);

-- +goose Down
DROP TABLE rivals;
ALTER TABLE hosts DROP COLUMN instance, DROP COLUMN agent_address;
