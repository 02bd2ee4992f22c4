package operation

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// What Reconcile corrects about the run of an operation changes nothing else in the
// records. It is written down, and told with that, before Temporal is asked, because
// Temporal's answer may be lost. However often Temporal has to be asked until it has
// done it, it is told once.

// RecordStrayRun records that an open run is terminated which does not have the
// operation; the given one has it, and is closed. The error is of kind ErrChanged
// where the operation has another run by now, which may be that one.
func (s *Store) RecordStrayRun(ctx context.Context, run Run, stray string) error {
	return s.recordCorrection(ctx, run, "UPDATE operations SET stray_run = $3 WHERE id = $1 AND run_id = $2", stray)
}

// RecordLateCancel records that the run of an operation is told of a cancel of which
// it had not heard. The error is of kind ErrChanged where the operation has ended, or
// has another run by now.
func (s *Store) RecordLateCancel(ctx context.Context, run Run) error {
	return s.recordCorrection(ctx, run, `
		UPDATE operations SET cancel_repeated_at = coalesce(cancel_repeated_at, now())
		WHERE id = $1 AND run_id = $2 AND open AND cancel_at IS NOT NULL`)
}

// recordCorrection records a correction by an update of the operation, unless it is
// not called for any more. The parameters begin with the operation and the run. A
// trigger tells it the first time.
func (s *Store) recordCorrection(ctx context.Context, run Run, update string, values ...any) error {
	return s.db.Change(ctx, records.Repairer(), run.Operation, func(tx pgx.Tx) error {
		if err := lockHostOfOperation(ctx, tx, run.Operation); err != nil {
			return err
		}

		tag, err := tx.Exec(ctx, update, append([]any{run.Operation, run.ID}, values...)...)
		if err == nil && tag.RowsAffected() == 0 {
			err = cyborg.Errorf(cyborg.ErrChanged, "the run of the operation has changed").WithOperation(run.Operation)
		}
		return err
	})
}
