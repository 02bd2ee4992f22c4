-- +goose Up

-- What a host is made of, as cyborg.HostFacts; null where its agent has not told it.
ALTER TABLE hosts ADD COLUMN facts jsonb CHECK (jsonb_typeof(facts) = 'object');
