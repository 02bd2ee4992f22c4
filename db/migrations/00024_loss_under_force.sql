-- +goose Up

-- While an operation's fence is around an accelerator, it may load an image there; only a detach, which has used force, loads none.
-- An operation that is forgotten counts as one that loads.
CREATE FUNCTION loads_image(fence_operation uuid) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT fence_operation IS NOT NULL AND NOT EXISTS (SELECT FROM operations WHERE id = fence_operation AND kind = 'detach')
$$;

-- Another image, or none, in a boot of the host in which ours was not seen was lost with the power.
-- In the boot in which ours was seen, somebody else has changed it, and knows why. While an
-- operation loads one, nothing is known. image_boot is for those to set who have looked; where the
-- fence of an operation that loads is lifted, its host has.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION deployables_image() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.presence <> 'present' OR loads_image(NEW.fence_operation) THEN
        RETURN NEW;
    END IF;
    IF loads_image(OLD.fence_operation) THEN
        SELECT boot_id INTO NEW.image_boot FROM hosts WHERE name = NEW.host;
    END IF;
    IF NEW.bitstream_id = NEW.image_bitstream THEN
        NEW.image_lost_at := NULL;
    ELSIF NEW.image_lost_at IS NOT NULL THEN
        RETURN NEW;
    ELSIF NEW.image_boot = OLD.image_boot THEN
        NEW.image := NULL;
        NEW.image_bitstream := NULL;
        NEW.image_boot := NULL;
    ELSE
        NEW.image_lost_at := now();
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
