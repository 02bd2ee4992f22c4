package inventory

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// An attachment is undone while the records have a handle attached on its host, and
// the host's journal says that it is not: a boot, or somebody on the host, has undone
// it. The handle keeps its holder, and Reconcile has the host attach it again. Until
// then the handle says why and since when, and its accelerator is fenced.

// The reasons for which an attachment is undone, which are also those of the fences.
const (
	UndoneByBoot    = "a boot of its host has undone an attachment"
	UndoneOnHost    = "it is no longer attached on its host, and no operation has detached it"
	UndoneUnknown   = "its host does not know of an attachment"
	undoneCondition = "EXISTS (SELECT FROM attach_handles WHERE deployable_uuid = d.uuid AND undone_at IS NOT NULL)"
)

// UndoneReasons lists the reasons of fences that undone attachments give.
func UndoneReasons() []string { return []string{UndoneByBoot, UndoneOnHost, UndoneUnknown} }

// isUndone says that a fence has this reason because of an undone attachment.
func isUndone(reason string) bool { return slices.Contains(UndoneReasons(), reason) }

// FencedAsUndone says that the accelerator is fenced because an attachment was undone.
func (a *Accelerator) FencedAsUndone() bool { return a.Fence != nil && isUndone(a.Fence.Reason) }

// EndedSince is an SQL condition about an entry j of a host's journal, with the column
// working: it was in doubt because a step was at work, and the operation of that step
// has ended since. Such an entry is of before, and says nothing. The host reports the
// one of afterwards at once.
const EndedSince = "coalesce((SELECT ended_at IS NOT NULL FROM operations WHERE id = j.working), false)"

// QueueMarkUndone queues statements that compare the attached handles of these hosts
// with the journals that they reported last: they mark what is undone, with its first
// reason, take the mark from what is attached again, and fence the accelerators
// accordingly. A journal that is older than what an operation has observed of the
// device says nothing. While an operation works on an accelerator, its host may be
// about to undo or to make the attachment, so nothing is marked then; see
// QueueMarkUndoneAfter.
func QueueMarkUndone(batch *pgx.Batch, hosts []string) { queueMarkUndone(batch, hosts, "true") }

// QueueMarkUndoneAfter is QueueMarkUndone once an operation has ended, for the handles that
// it has given and those of its targets: a report that came before had to leave them out.
// Unless the last report is newer than the steps of the operation, it can only say of a
// handle that the attachment which the records have is lost. An entry that it lacks may
// have come since. Undone is set where one of the handles is marked.
func QueueMarkUndoneAfter(batch *pgx.Batch, host string, operation uuid.UUID, targets []uuid.UUID, newer bool, undone *bool) {
	queueMarkUndone(batch, []string{host}, `
		(h.operation_id = $8 OR h.deployable_uuid = ANY($9)) AND ($10 OR j.operation_id = h.operation_id)`, operation, targets, newer).
		Query(func(rows pgx.Rows) error {
			marked, err := pgx.CollectRows(rows, pgx.RowTo[bool])
			*undone = slices.Contains(marked, true)
			return err
		})
}

// queueMarkUndone is QueueMarkUndone for the handles h and their entries j in the journal
// that meet a condition, whose own parameters begin at $8. It returns the first statement,
// which says of each handle that it changes whether that is undone now.
func queueMarkUndone(batch *pgx.Batch, hosts []string, condition string, values ...any) *pgx.QueuedQuery {
	marked := batch.Queue(`
		WITH journal AS MATERIALIZED (
			SELECT s.name AS host, j.deployable, j.handle, (array_agg(j.state ORDER BY j.state <> $2))[1] AS state,
			       (array_agg(j.operation_id ORDER BY j.state <> $2))[1] AS operation_id, bool_or(`+EndedSince+`) AS of_before
			FROM hosts s CROSS JOIN LATERAL jsonb_to_recordset(s.attachments) AS j (deployable text, handle text, state text, operation_id uuid, working uuid)
			WHERE s.name = ANY($1) GROUP BY s.name, j.deployable, j.handle),
		judged AS (
			SELECT h.uuid, CASE j.state WHEN $2 THEN NULL WHEN $3 THEN $5 WHEN $4 THEN $6 ELSE $7 END AS reason,
			       EXISTS (SELECT FROM claims c WHERE c.deployable_uuid = h.deployable_uuid) AS claimed
			FROM hosts s JOIN attach_handles h ON h.host = s.name
			JOIN deployables d ON d.uuid = h.deployable_uuid JOIN devices v ON v.uuid = d.device_uuid
			LEFT JOIN journal j ON j.host = s.name AND j.deployable = d.local_name AND j.handle = h.identity
			WHERE s.name = ANY($1) AND `+OnHost+` AND h.attached_at IS NOT NULL AND h.presence = 'present'
			  AND v.observed_seq <= s.report_seq AND NOT coalesce(j.of_before, false) AND (`+condition+`))
		UPDATE attach_handles h SET undone_reason = j.reason, undone_at = CASE WHEN j.reason IS NOT NULL THEN clock_timestamp() END
		FROM judged j WHERE h.uuid = j.uuid AND (h.undone_reason IS NULL) <> (j.reason IS NULL) AND NOT (j.claimed AND j.reason IS NOT NULL)
		RETURNING h.undone_at IS NOT NULL`, append([]any{
		hosts, string(cyborg.AttachmentDone), string(cyborg.AttachmentLost), string(cyborg.AttachmentInDoubt),
		UndoneByBoot, UndoneOnHost, UndoneUnknown,
	}, values...)...)
	batch.Queue(`
		UPDATE deployables d SET fence_reason = `+RemainingFence+`
		WHERE host = ANY($1) AND fence_operation IS NULL AND (fence_reason = ANY($2) OR fence_reason IS NULL AND `+undoneCondition+`)
		  AND fence_reason IS DISTINCT FROM `+RemainingFence, hosts, UndoneReasons())
	return marked
}

// QueueClearUndone takes the marks from these handles of the targets, which their host
// has attached again. See records.Queue.
func QueueClearUndone(tx pgx.Tx, targets, handles []uuid.UUID) {
	if len(handles) == 0 {
		return
	}

	records.Queue(tx, `
		UPDATE attach_handles SET undone_reason = NULL, undone_at = NULL
		WHERE uuid = ANY($1) AND deployable_uuid = ANY($2) AND undone_at IS NOT NULL`, handles, targets)
	QueueLiftOfHeld(tx, targets)
}

// comparedUndone is how many hosts CompareUndone compares at most. The next round
// compares others.
const comparedUndone = 200

// CompareUndone compares hosts once more that have a mark, or a fence of one, with the
// journals that they reported last. A report and an operation do that themselves,
// unless a server of an earlier release has recorded them.
func (s *Store) CompareUndone(ctx context.Context) error {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT host FROM (
			SELECT host FROM attach_handles WHERE undone_at IS NOT NULL
			UNION SELECT host FROM deployables WHERE fence_operation IS NULL AND fence_reason = ANY($1)) AS marked
		ORDER BY random() LIMIT $2`, UndoneReasons(), comparedUndone)
	if err != nil {
		return s.db.Failure(ctx, err)
	}
	hosts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return s.db.Failure(ctx, err)
	}

	for _, host := range hosts {
		err := s.db.Change(ctx, records.Repairer(), uuid.Nil, func(tx pgx.Tx) error {
			if err := records.LockHosts(ctx, tx, host); err != nil {
				return err
			}
			batch := &pgx.Batch{}
			QueueMarkUndone(batch, []string{host})
			records.QueueBatch(tx, batch)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
