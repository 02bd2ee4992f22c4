package operation

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
)

// markInError records that an operation could not undo what it had begun. It
// leaves accelerators that are out of service as they are: they have nothing to
// lose.
//
// The kind of the operation is recorded because it decides what cures the
// error. An error that another operation has left keeps that kind where a later
// attach, detach, Retire or Partition fails: settling the later doubt must not
// cure it, and what cured it before still does.
func markInError(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	// The error of an accelerator that is in error already is replaced, too.
	var from []string
	for _, state := range append(cyborg.Sources(cyborg.LifecycleTransitions(), cyborg.LifecycleError), cyborg.LifecycleError) {
		if state != cyborg.LifecycleInactive {
			from = append(from, string(state))
		}
	}

	_, err := tx.Exec(ctx, `
		UPDATE deployables SET lifecycle = $2, reason = $3, error_operation = $4,
		    error_kind = CASE WHEN $5 = ANY($7) AND lifecycle = $2 THEN error_kind ELSE $5 END
		WHERE uuid = ANY($1) AND lifecycle = ANY($6)`,
		inventory.UUIDs(o.targets), string(cyborg.LifecycleError), errorReason(o, outcome), o.id, string(o.kind), from,
		append(inventory.Doubtful(), string(cyborg.OperationRetire), string(cyborg.OperationPartition)))

	return err
}

// errorReason says why what the operation could not undo is in error.
func errorReason(o *running, outcome *cyborg.Outcome) string {
	return fmt.Sprintf("%s %s needs an operator: %s", o.kind, o.id, outcome.Error.Message)
}
