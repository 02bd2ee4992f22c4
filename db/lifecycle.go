package db

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// setLifecycle takes accelerators to another lifecycle, but only those whose
// present lifecycle allows that, and returns how many those were.
func setLifecycle(ctx context.Context, tx pgx.Tx, targets []uuid.UUID, to cyborg.Lifecycle) (int, error) {
	tag, err := tx.Exec(ctx, `
		UPDATE deployables SET lifecycle = $2, reason = '', error_operation = NULL, error_kind = ''
		WHERE uuid = ANY($1) AND lifecycle = ANY($3)`,
		targets, string(to), texts(cyborg.Sources(cyborg.LifecycleTransitions(), to)))
	return int(tag.RowsAffected()), err
}

// markInError records that an operation could not undo what it had begun. It
// leaves accelerators that are out of service as they are: they have nothing to
// lose.
//
// The kind of the operation is recorded because it decides what cures the
// error. An error that a Provision or a Program has left keeps that kind where
// a later attach, detach or Retire fails: settling the later doubt must not
// cure it, and what cured it before still does.
func markInError(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	// The error of an accelerator that is in error already is replaced, too.
	var from []string
	for _, state := range append(cyborg.Sources(cyborg.LifecycleTransitions(), cyborg.LifecycleError), cyborg.LifecycleError) {
		if state != cyborg.LifecycleInactive {
			from = append(from, string(state))
		}
	}

	reason := fmt.Sprintf("%s %s needs an operator: %s", o.kind, o.id, outcome.Error.Message)
	_, err := tx.Exec(ctx, `
		UPDATE deployables SET lifecycle = $2, reason = $3, error_operation = $4,
		    error_kind = CASE WHEN $5 = ANY($7) AND lifecycle = $2 THEN error_kind ELSE $5 END
		WHERE uuid = ANY($1) AND lifecycle = ANY($6)`,
		ids(o.targets), string(cyborg.LifecycleError), reason, o.id, string(o.kind), from,
		append(doubtful(), string(cyborg.OperationRetire)))

	return err
}

// settle takes accelerators back into service that were in error only because
// an attach or a detach was in doubt, once none of their handles is in doubt or
// unconfirmed any more.
func settle(ctx context.Context, tx pgx.Tx, targets []uuid.UUID) error {
	_, err := tx.Exec(ctx, `
		UPDATE deployables d SET lifecycle = $2, reason = '', error_operation = NULL, error_kind = ''
		WHERE uuid = ANY($1) AND lifecycle = $3 AND error_kind = ANY($4) AND NOT EXISTS (
			SELECT FROM attach_handles
			WHERE deployable_uuid = d.uuid AND (holder_kind IS NOT NULL AND attached_at IS NULL OR unconfirmed_kind IS NOT NULL))`,
		targets, string(cyborg.LifecycleReady), string(cyborg.LifecycleError), doubtful())
	return err
}

// doubtful are the kinds of operations that leave a handle in doubt when they
// cannot be undone.
func doubtful() []string {
	var out []string
	for _, kind := range cyborg.OperationKinds() {
		if kind.Doubt() == cyborg.DoubtHandle {
			out = append(out, string(kind))
		}
	}

	return out
}

// release takes handles back from their holders, and lifts the fences of
// accelerators that had gone missing under these holders. In the condition the
// table is called h.
func release(ctx context.Context, tx pgx.Tx, condition string, values ...any) error {
	rows, err := tx.Query(ctx, `
		UPDATE attach_handles h SET holder_kind = NULL, holder_id = NULL, operation_id = NULL, attached_at = NULL
		WHERE holder_kind IS NOT NULL AND `+condition+` RETURNING deployable_uuid`, values...)
	if err != nil {
		return err
	}

	targets, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(targets) == 0 {
		return err
	}

	_, err = tx.Exec(ctx, `
		UPDATE deployables d SET fence_reason = NULL
		WHERE uuid = ANY($1) AND fence_operation IS NULL AND fence_reason = $2 AND NOT `+goneUnderHolder, targets, fenceVanished)
	return err
}
