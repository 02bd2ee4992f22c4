package operation

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// queueGiven reads the handles that a running operation gives to instances and
// services into its work, by deployable: its host looks who uses them. It may be
// the handle of an accelerator that the operation has claimed, or of a request
// that it binds. Its own handles are found first, because the index of all held
// ones is as long as the cloud is large. See records.Queue.
func queueGiven(tx pgx.Tx, operation uuid.UUID, work *cyborg.Work) {
	work.Given = nil
	records.Queue(tx, `
		WITH own AS MATERIALIZED (
			SELECT h.id, h.uuid, h.identity, h.deployable_uuid, h.holder_kind, h.holder_id, h.operation_id, h.attached_at, h.prepared, h.parameters, h.cleaned
			FROM arqs q JOIN attach_handles h ON h.uuid = q.handle_uuid WHERE q.claimed_by = $1
			UNION SELECT h.id, h.uuid, h.identity, h.deployable_uuid, h.holder_kind, h.holder_id, h.operation_id, h.attached_at, h.prepared, h.parameters, h.cleaned
			FROM claims c JOIN attach_handles h ON h.deployable_uuid = c.deployable_uuid WHERE c.operation_id = $1)
		SELECT h.uuid, h.identity, h.holder_kind, h.holder_id, h.prepared, nullif(h.parameters, '{}'), coalesce(h.cleaned ? 'declared', false), d.uuid, v.backend, v.identity, v.fingerprint, d.local_name
		FROM own h JOIN deployables d ON d.uuid = h.deployable_uuid JOIN devices v ON v.uuid = d.device_uuid
		WHERE h.operation_id = $1 AND h.attached_at IS NULL AND h.holder_kind <> $2
		ORDER BY d.id, h.id`, operation, string(cyborg.HolderHost)).Query(func(rows pgx.Rows) error {
		var (
			handle     cyborg.WorkHandle
			parameters records.Parsed[map[string]string]
			target     cyborg.Target
		)

		_, err := pgx.ForEachRow(rows, []any{
			&handle.UUID, &handle.Identity, &handle.Holder.Kind, &handle.Holder.ID, &handle.Prepared, &parameters, &handle.DeclaredClean,
			&target.Accelerator, &target.Backend, &target.Device, &target.Fingerprint, &target.Deployable,
		}, func() error {
			last := len(work.Given) - 1
			if last < 0 || work.Given[last].Target != target {
				work.Given = append(work.Given, cyborg.GivenHandles{Target: target})
				last++
			}
			handle.Parameters = parameters.Value
			work.Given[last].Handles = append(work.Given[last].Handles, handle)
			return nil
		})
		return err
	})
}
