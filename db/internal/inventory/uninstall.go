package inventory

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// rememberInstalls is a statement that remembers what of the host $1 may be
// installed there, before it is forgotten; the condition chooses among its
// deployables d.
func rememberInstalls(condition string) string {
	return `
		INSERT INTO forgotten_installs (host, local_name, fingerprint)
		SELECT d.host, d.local_name, (SELECT fingerprint FROM devices WHERE uuid = d.device_uuid) FROM deployables d
		WHERE d.host = $1 AND (d.lifecycle <> 'inactive' OR d.uninstall_pending_since IS NOT NULL) AND ` + condition + `
		ON CONFLICT (host, local_name) DO UPDATE SET fingerprint = EXCLUDED.fingerprint`
}

// QueueMarkForgottenInstalls queues a statement that marks those of the
// deployables, which the transaction has added, as still to be uninstalled that may
// have been installed when they were forgotten. What was so on another card is not on
// this one.
func QueueMarkForgottenInstalls(batch *pgx.Batch, added []uuid.UUID) {
	batch.Queue(`
		WITH back AS (
			DELETE FROM forgotten_installs f USING deployables d JOIN devices v ON v.uuid = d.device_uuid
			WHERE d.uuid = ANY($1) AND f.host = d.host AND f.local_name = d.local_name
			RETURNING d.uuid, other_card(f.fingerprint, v.fingerprint) AS on_another)
		UPDATE deployables SET uninstall_pending_since = now() WHERE uuid IN (SELECT uuid FROM back WHERE NOT on_another)`, added)
}
