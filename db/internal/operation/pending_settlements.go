package operation

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/ingest"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// A correction need not change anything in the records, so no trigger would write its
// event. Its host says what it has corrected, in an answer that may be lost. So each
// decision about something that the journal shows otherwise is written down before the
// host is asked, and ended by what comes first: the answer of the host, that of a later
// round, or a report whose journal agrees (ingest.queueCorrected).

// journalDiffers says that the host's journal shows the attachment otherwise than decided.
func (d *Disagreement) journalDiffers() bool {
	if d.Attach {
		return d.Journal != cyborg.AttachmentDone
	}
	return d.Journal != ""
}

// event is what the history says of the attachment once its host has corrected it.
func (d *Disagreement) event() map[string]any {
	now := "detached"
	if d.Attach {
		now = "attached"
	}
	return map[string]any{
		"identity": d.Handle.Identity, "deployable": d.Deployable, "now": now, "journal": d.Journal, "recorded": d.Recorded,
		"assignment": d.Assignment, "report": d.Report,
	}
}

// stillLeft says that the host has still to take the handle back, which it had prepared.
func (d *Disagreement) stillLeft() bool { return d.Recorded == unconfirmed && d.Handle.Prepared }

// queuePending queues the statement that writes down a decision, unless the host's
// journal shows nothing to correct. What the host has still to take back is always written
// down: nothing else would say that this has failed. The decision before, where it was not answered,
// may be the one that the host has heard of. See records.Queue.
func queuePending(tx pgx.Tx, d *Disagreement) {
	if !d.journalDiffers() && !d.stillLeft() {
		return
	}

	records.Queue(tx, `
		INSERT INTO pending_settlements AS p (host, backend, handle, deployable, accelerator, attach, first_assignment, assignment, event)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $7, $8)
		ON CONFLICT (host, backend, handle) DO UPDATE SET deployable = EXCLUDED.deployable, accelerator = EXCLUDED.accelerator, attach = EXCLUDED.attach,
		    first_assignment = CASE WHEN `+ingest.LaterOperation+` THEN EXCLUDED.assignment ELSE p.first_assignment END,
		    assignment = EXCLUDED.assignment, event = EXCLUDED.event, error = CASE WHEN p.attach = EXCLUDED.attach THEN p.error ELSE '' END`,
		d.Host, d.Backend, d.Handle.Identity, d.Deployable, zeronull.UUID(d.Accelerator), d.Attach, d.Assignment, d.event())
}

// tellSettled writes an event for each attachment that its host has corrected, and ends
// what was pending. Where the host had nothing to change, it has corrected the attachment
// after an earlier decision, if there was one that nobody has answered. The number of the
// decision keeps a repeat from telling it twice. Where an agent is too old to say whether
// it had to change anything, what its journal had said decides, and the number of the
// report keeps a later decision from telling it again that was made before the host has
// reported the correction.
func tellSettled(ctx context.Context, tx pgx.Tx, host string, settled []Disagreement) error {
	batch := &pgx.Batch{}
	for _, d := range settled {
		corrected := d.journalDiffers()
		if d.Changed != nil {
			corrected = *d.Changed
		}

		batch.Queue(`
			WITH pending AS (
				DELETE FROM pending_settlements WHERE host = $1 AND backend = $4 AND handle = $5 AND first_assignment <= $6
				RETURNING first_assignment)
			SELECT attachment_settled($1, $2, $3) WHERE $7 OR EXISTS (SELECT FROM pending WHERE first_assignment < $6)`,
			host, zeronull.UUID(d.Accelerator), d.event(), d.Backend, d.Handle.Identity, d.Assignment, corrected)
	}

	return tx.SendBatch(ctx, batch).Close()
}

// Unsettled is an attachment that a round of Reconcile could not settle, and why.
type Unsettled struct {
	Host        string
	Handle      string // its identity
	Accelerator string // its name; that of the driver where the records know none
	Error       string
}

// RecordUnsettled records why an attachment that was decided could not be settled. news
// says that this was not recorded before. What the host's journal shows as decided has
// no place for it; there the handle or its accelerator is fenced until it is settled.
// Nor has what was decided before something that another run has decided since: that
// run says what becomes of it.
func (s *Store) RecordUnsettled(ctx context.Context, d Disagreement, why string) (news bool, err error) {
	err = s.db.Change(ctx, records.Repairer(), uuid.Nil, func(tx pgx.Tx) error {
		// Reports and answers change these rows under this lock, too, and tell Placement.
		if err := records.LockHosts(ctx, tx, d.Host); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `
			UPDATE pending_settlements SET error = $4
			WHERE host = $1 AND backend = $2 AND handle = $3 AND error <> $4 AND ($5::bigint = 0 OR assignment <= $5)`,
			d.Host, d.Backend, d.Handle.Identity, why, d.Assignment)
		news = err == nil && tag.RowsAffected() > 0
		return err
	})
	return err == nil && news, err
}

// Unsettled lists the attachments that Reconcile could not settle. An operation on the
// accelerator may have changed the attachment since, and a card that is away has none.
func (s *Store) Unsettled(ctx context.Context, limit int) ([]Unsettled, error) {
	rows, err := s.db.Pool.Query(ctx, `
		SELECT p.host, p.handle, coalesce(d.accelerator, p.deployable), p.error
		FROM pending_settlements p LEFT JOIN deployables d ON d.uuid = p.accelerator
		WHERE p.error <> '' AND d.presence IS DISTINCT FROM 'missing' AND NOT `+ingest.LaterOperation+`
		ORDER BY p.host, p.handle, p.backend LIMIT $1`, records.Limit(limit))
	if err != nil {
		return nil, s.db.Failure(ctx, err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Unsettled])
	return found, s.db.Failure(ctx, err)
}
