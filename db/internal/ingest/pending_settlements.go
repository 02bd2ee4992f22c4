package ingest

import (
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg/db/internal/records"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// LaterOperation is an SQL condition on a row p of pending_settlements: an operation on
// its accelerator was admitted after the last decision. That may have changed the
// attachment, so nobody knows any more who has. No operation can have got what a host
// has still to take back, while others get the handles beside it.
const LaterOperation = `(NOT ` + stillLeft + ` AND EXISTS (
	SELECT FROM operation_subjects s JOIN operations o ON o.id = s.operation_id
	WHERE s.kind = 'accelerator' AND s.subject_id = p.accelerator::text AND o.assignment > p.assignment))`

// stillLeft is an SQL condition on a row p of pending_settlements: its host has still to
// take the handle back, which it had prepared. Only the answer of the host ends that, also
// where its journal has no such entry: the hardware may have what the journal has lost.
const stillLeft = `EXISTS (
	SELECT FROM attach_handles t
	WHERE t.host = p.host AND t.identity = p.handle AND t.deployable_uuid = p.accelerator AND t.prepared AND t.unconfirmed_kind IS NOT NULL)`

// queueCorrected queues the statement that ends the pending settlements with which the
// journals of these hosts agree, as they have just been written, and tells them in the
// histories: the answer of the host was lost, or comes later. It tells nothing of a host
// that has heard of no decision about the attachment, or has lost its journal.
func queueCorrected(tx pgx.Tx, reports []agentapi.Report, which []int, known, written map[string]hostRow) {
	var (
		names       []string
		assignments []int64
		emptied     []bool
	)
	for _, i := range which {
		r := &reports[i]
		if _, ok := written[r.Host]; ok { // what says nothing new has the journal that was compared already
			names, assignments = append(names, r.Host), append(assignments, r.Assignment)
			emptied = append(emptied, hasForgotten(r, known[r.Host]))
		}
	}

	if len(names) == 0 {
		return
	}

	records.Queue(tx, `
		WITH ended AS (
			DELETE FROM pending_settlements p
			USING hosts h, unnest($1::text[], $2::bigint[], $3::boolean[]) AS r (host, assignment, emptied)
			WHERE p.host = r.host AND h.name = r.host AND NOT `+stillLeft+` AND (r.emptied OR `+LaterOperation+` OR p.attach = EXISTS (
				SELECT FROM jsonb_to_recordset(h.attachments) AS j (backend text, deployable text, handle text, state text)
				WHERE j.deployable = p.deployable AND j.handle = p.handle
				  AND CASE WHEN p.attach THEN j.state = 'attached' ELSE j.backend = p.backend END))
			RETURNING p.*, r.assignment >= p.first_assignment AND NOT r.emptied AND NOT `+LaterOperation+` AS corrected)
		SELECT attachment_settled(host, accelerator, event) FROM ended WHERE corrected`, names, assignments, emptied)
}
