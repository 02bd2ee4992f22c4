-- +goose Up

-- Who the agents of hosts are, as far as the servers themselves give them certificates. A host need not
-- have reported yet. Its row stays when the host is forgotten: what was revoked stays revoked.
CREATE TABLE host_identities (
    host             text PRIMARY KEY,
    state            text NOT NULL CHECK (state IN ('invited', 'enrolled', 'revoked')),
    -- Only the hash of an invitation's token is kept, until somebody uses it.
    token_hash       bytea UNIQUE CHECK (octet_length(token_hash) = 32),
    token_expires_at timestamptz,
    -- The number of the last enrollment, which the certificates of it bear; 0 before the first. Those of a
    -- certificate that somebody else has made is 0, too.
    enrollment        bigint NOT NULL DEFAULT 0,
    -- Certificates of this enrollment, and of those before, count no more; -1 where all count.
    revoked_through  bigint NOT NULL DEFAULT -1 CHECK (revoked_through <= enrollment),
    revoke_reason    text NOT NULL DEFAULT '',
    CHECK ((state = 'invited') = (token_hash IS NOT NULL) AND (token_hash IS NULL) = (token_expires_at IS NULL))
);

-- +goose StatementBegin
CREATE FUNCTION host_identities_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO events (subject_kind, subject_id, host, axis, from_value, to_value, data)
    VALUES ('host', NEW.host, NEW.host, 'identity', coalesce(OLD.state, ''), NEW.state,
            CASE NEW.state WHEN 'revoked' THEN jsonb_build_object('reason', NEW.revoke_reason) END);
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER host_identities_changed AFTER INSERT OR UPDATE ON host_identities
    FOR EACH ROW EXECUTE FUNCTION host_identities_changed();
