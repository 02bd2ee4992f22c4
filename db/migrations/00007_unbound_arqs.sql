-- +goose Up

-- The quota counts a project's requests that are not bound at each creation. Most of a project's
-- requests are bound, and arqs_by_project has those, too.
CREATE INDEX arqs_unbound ON arqs (project) WHERE state <> 'Bound';
