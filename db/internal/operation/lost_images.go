package operation

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// queueBitstream records which image a deployable has loaded and has in effect. See
// records.Queue.
func queueBitstream(tx pgx.Tx, deployable uuid.UUID, bitstream string) {
	records.Queue(tx, `
		UPDATE deployables SET bitstream_id = $2, pending_image = NULL
		WHERE uuid = $1 AND (bitstream_id <> $2 OR pending_image IS NOT NULL)`, deployable, bitstream)
}

// loadedLast is an SQL expression: the id of the image that was loaded last into the
// deployable d, whether or not it is in effect yet; NULL where nobody knows.
const loadedLast = "coalesce(d.pending_image ->> 'bitstream_id', nullif(d.bitstream_id, ''))"

// queueImages records the images that an operation has loaded, so that they can
// be loaded again: for its targets, and for the other deployables that an image
// changed, which now have the same one. When a later boot of the host shows
// another image, a trigger records that the image is lost. See records.Queue.
//
// The query of an image's URL is not in it: the host keeps an image that is
// loaded, so a reload need not fetch it.
//
// A reload is recorded only for its target: the image that other deployables
// have lost still has to be loaded into them.
func queueImages(tx pgx.Tx, o *running, outcome *cyborg.Outcome, reload bool) {
	for loaded, image := range outcome.Images {
		var changed []uuid.UUID
		for i := range o.targets {
			if reload && o.targets[i].UUID != loaded {
				continue
			}

			if o.disturbs(loaded, &o.targets[i], image.WholeDevice) {
				changed = append(changed, o.targets[i].UUID)
			}
		}

		// Where the driver reads no bitstream back, or a later report shows another
		// one, no image is recorded. Neither is one of which the records do not know
		// which it was. Where it is pending, what was lost is not there again yet.
		records.Queue(tx, `
			UPDATE deployables d SET image_lost_at = CASE WHEN d.pending_image IS NOT NULL AND $3 THEN d.image_lost_at END,
			    image = CASE WHEN `+loadedLast+` IS NOT NULL AND $3 THEN $2::jsonb END,
			    image_bitstream = CASE WHEN $3 THEN `+loadedLast+` END,
			    image_boot = CASE WHEN `+loadedLast+` IS NOT NULL AND $3 THEN h.boot_id END
			FROM hosts h WHERE d.uuid = ANY($1) AND h.name = d.host`, changed, image, !o.replaced[loaded] && image.Source != "")
	}
}

// disturbs reports whether loading an image into one target changes another.
func (o *running) disturbs(one uuid.UUID, other *inventory.Accelerator, wholeDevice bool) bool {
	for i := range o.targets {
		if t := &o.targets[i]; t.UUID == one {
			return t.DeviceUUID == other.DeviceUUID && (wholeDevice || t.ProgramSet == other.ProgramSet)
		}
	}
	return false
}

// LostImages lists accelerators that have lost their image since their host booted and
// that can have it again: they are in service and not in maintenance, their host is
// neither silent nor revoked, nobody holds a handle that loading the image would
// change, and no Program of them was admitted since. One that was loaded again and is
// pending has nothing more to be done. Images of whole devices come first, because they
// may bring back the others.
func (s *Store) LostImages(ctx context.Context, limit int) ([]cyborg.Accelerator, error) {
	return s.lostImages(ctx, `
		WHERE d.image_lost_at IS NOT NULL AND d.lifecycle = 'ready' AND d.presence = 'present' AND d.fence_reason IS NULL AND NOT `+inventory.Maintained+`
		  AND c.operation_id IS NULL AND d.pending_image ->> 'bitstream_id' IS DISTINCT FROM d.image_bitstream
		  AND NOT EXISTS (
			SELECT FROM deployables changed JOIN attach_handles held ON held.deployable_uuid = changed.uuid
			WHERE changed.device_uuid = d.device_uuid AND held.holder_kind IS NOT NULL
			  AND (changed.program_set = d.program_set OR (d.image -> 'whole_device')::boolean))
		  AND d.host IN (SELECT name FROM hosts h WHERE `+records.Within("last_seen", "$2::interval")+` AND NOT `+inventory.RevokedSQL("h")+`)
		  AND NOT EXISTS (
			SELECT FROM operation_subjects s JOIN operations tried ON tried.id = s.operation_id
			WHERE s.kind = 'accelerator' AND s.subject_id = d.uuid::text AND tried.kind = 'program'
			  AND tried.input ->> 'accelerator' = d.uuid::text AND tried.admitted_at > d.image_lost_at)
		ORDER BY coalesce((d.image -> 'whole_device')::boolean, false) DESC, d.id LIMIT $1`, records.Limit(limit), s.db.Options.SilentAfter)
}

// LostImagesOf lists the accelerators of an instance on a host that have lost
// their images since the host booted, those with images of whole devices first. An
// image that was loaded again and is pending is still lost.
func (s *Store) LostImagesOf(ctx context.Context, instance uuid.UUID, host string) ([]cyborg.Accelerator, error) {
	return s.lostImages(ctx, `
		WHERE d.image_lost_at IS NOT NULL AND d.host = $2 AND d.uuid IN (
			SELECT held.deployable_uuid FROM arqs a JOIN attach_handles held ON held.uuid = a.handle_uuid
			WHERE a.instance_uuid = $1 AND a.state = 'Bound')
		ORDER BY coalesce((d.image -> 'whole_device')::boolean, false) DESC, d.id`, instance, host)
}

// lostImages reads accelerators in their public form.
func (s *Store) lostImages(ctx context.Context, rest string, values ...any) ([]cyborg.Accelerator, error) {
	found, err := inventory.ReadAccelerators(ctx, s.db.Pool, rest, values...)
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}

	out := make([]cyborg.Accelerator, len(found))
	for i := range found {
		out[i] = found[i].Accelerator
	}

	return out, nil
}
