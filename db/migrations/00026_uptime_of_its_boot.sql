-- +goose Up

-- The uptime of a host is that of its present boot. A server of an earlier release records another boot and leaves the uptime as it was.
-- +goose StatementBegin
CREATE FUNCTION forget_uptime() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.uptime := NULL;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER forget_uptime BEFORE UPDATE OF boot_id ON hosts FOR EACH ROW
    WHEN (NEW.boot_id <> OLD.boot_id AND NEW.uptime IS NOT DISTINCT FROM OLD.uptime) EXECUTE FUNCTION forget_uptime();
