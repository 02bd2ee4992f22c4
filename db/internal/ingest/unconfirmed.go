package ingest

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/merge"
)

// queueUnconfirmed queues the statement that marks handles as unconfirmed where
// the journals of their hosts have them attached and the records call them free, or
// have added them only now. An observation, which comes without hosts, adds some;
// they are compared with the journal that their host reported last. Handles of a host
// that was forgotten are marked as they were then.
func queueUnconfirmed(batch *pgx.Batch, hosts []hostRow, added []merge.HandleRow) {
	var names []string
	for _, host := range hosts {
		if len(host.Attachments) > 0 {
			names = append(names, host.Name)
		}
	}

	condition := "true"
	if len(hosts) == 0 {
		names, condition = keys(added, func(r merge.HandleRow) string { return r.Host }), "h.uuid = ANY($2)"
	}

	uuids := keys(added, func(r merge.HandleRow) uuid.UUID { return r.UUID })
	if len(names) > 0 {
		inventory.QueueMarkUnconfirmed(batch, names, uuids, condition)
	}
	if len(added) > 0 {
		inventory.QueueMarkForgotten(batch, uuids)
	}
}
