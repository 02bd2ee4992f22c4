-- +goose Up

-- The partition after which nobody knows how a device is divided, because it could not be undone; null where somebody does. What appears
-- on the device meanwhile is not taken into service by itself.
ALTER TABLE devices ADD COLUMN layout_doubt_operation uuid;
UPDATE devices v SET layout_doubt_operation = d.error_operation
    FROM (SELECT DISTINCT ON (device_uuid) device_uuid, error_operation FROM deployables
          WHERE lifecycle = 'error' AND error_kind = 'partition' AND error_operation IS NOT NULL ORDER BY device_uuid, error_operation) d
    WHERE d.device_uuid = v.uuid;

-- A device that cannot be divided is whole: it is divided otherwise only where it should have parts.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION devices_layout() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.layout_differs_since := CASE WHEN NEW.wanted_layout IS NOT NULL AND NEW.wanted_layout <> coalesce(NEW.partitioning -> 'layout', '{}')
        THEN coalesce(OLD.layout_differs_since, clock_timestamp()) END;
    RETURN NEW;
END $$;
-- +goose StatementEnd
UPDATE devices SET layout_differs_since = NULL WHERE layout_differs_since IS NOT NULL AND wanted_layout = '{}' AND partitioning IS NULL;
