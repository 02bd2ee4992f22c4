-- +goose Up

-- How far the journal of the host's agent had got in its last report: the process that had opened it, and how many writes this
-- one had made. A journal that does not hold this position was lost, or is an old copy.
ALTER TABLE hosts ADD COLUMN journal_opening uuid, ADD COLUMN journal_writes bigint NOT NULL DEFAULT 0;

-- Nothing of the records changes when an agent forgets its journal, so no trigger would tell it.
-- +goose StatementBegin
CREATE FUNCTION journals_lost(of_hosts text[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    SELECT 'host', h.name AS id, h.name, 'journal', '', '', '{}' FROM unnest(of_hosts) AS h (name);
$$;
-- +goose StatementEnd
