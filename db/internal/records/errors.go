package records

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cyborg-project/cyborg"
)

// SQLSTATE codes (PostgreSQL manual, appendix A).
const (
	uniqueViolation      = "23505"
	exclusionViolation   = "23P01"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	queryCanceled        = "57014"
	readOnly             = "25006" // the server is a standby, or became one by a failover

	// The server has ended the session, and with it a transaction for which nobody
	// did anything for too long, or that took too long. So it does as well where it
	// was the server that stood still.
	idleInTransaction  = "25P03"
	transactionTimeout = "25P04"
)

// holderRuleTable are the names under which the triggers of the schema refuse what goes to
// one holder, and what nobody may have while somebody has something else.
var holderRuleTable = []string{"attach_handles_same_holder", "attach_handles_excludes"}

// refusesHolder reports whether the schema has refused to give something out because of
// what somebody has already.
func refusesHolder(pg *pgconn.PgError) bool {
	return pg.Code == exclusionViolation && slices.Contains(holderRuleTable, pg.ConstraintName)
}

// transientCodeTable lists the codes outside of transientClassTable that say the same.
var transientCodeTable = []string{readOnly, idleInTransaction, transactionTimeout}

// transientClassTable lists the classes of SQLSTATE that say nothing about the
// statement, only that the server takes no work now: connection exception,
// insufficient resources (a full disk or memory, too many connections),
// operator intervention (shutdown, crash, start), system error (an I/O error).
var transientClassTable = []string{"08", "53", "57", "58"}

// transient reports whether the server may take the same work later.
func transient(pg *pgconn.PgError) bool {
	return slices.Contains(transientCodeTable, pg.Code) || slices.ContainsFunc(transientClassTable, func(class string) bool { return strings.HasPrefix(pg.Code, class) })
}

// collided reports whether the same transaction can succeed when it runs again.
func collided(err error) bool {
	if errors.Is(err, ErrCollision) {
		return true
	}
	// A guard that looks again says who has what keeps this from being given out.
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == serializationFailure || pg.Code == deadlockDetected || refusesHolder(pg))
}

// Violates reports whether err is the violation of the unique constraint of
// that name.
func Violates(err error, constraint string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == uniqueViolation && pg.ConstraintName == constraint
}

// Failure turns an error of the database into one with a kind, for callers. The
// details only concern whoever runs the database, and go to the log.
func (d *DB) Failure(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if refused, ok := errors.AsType[*noTurn](err); ok {
		return refused.error
	}
	if known, ok := errors.AsType[*cyborg.Error](err); ok { // a refusal, which needs no explanation
		return known
	}

	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == readOnly {
		// After a failover the URL leads to the new primary, but open connections still
		// lead to the old one. Without the reset they would keep failing.
		d.Pool.Connections.Reset()
	}

	out := Explain(err)
	level := out.Kind.LogLevel()

	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		// The caller has gone away, and nothing is wrong.
		level = slog.LevelDebug
	}

	d.Log.LogAttrs(ctx, level, "database call failed",
		slog.String("kind", string(out.Kind)), slog.String("error", err.Error()))

	return out
}

// Explain chooses the kind and the message for an error of the database or of
// the connection to it.
func Explain(err error) *cyborg.Error {
	pg, isPg := errors.AsType[*pgconn.PgError](err)
	_, isNet := errors.AsType[net.Error](err)
	_, isConnect := errors.AsType[*pgconn.ConnectError](err)

	// Several cases may apply to one error. The first that does names its cause
	// best.
	switch {
	case errors.Is(err, context.DeadlineExceeded), isPg && pg.Code == queryCanceled:
		return cyborg.Errorf(cyborg.ErrTimeout, "the database did not answer in time")
	case errors.Is(err, context.Canceled):
		return cyborg.Errorf(cyborg.ErrUnavailable, "the call ended before the database answered: %w", context.Canceled)
	case isPg && refusesHolder(pg):
		return cyborg.Errorf(cyborg.ErrInUse, "%s", pg.Message).WithHint("%s", pg.Hint)
	case collided(err):
		return cyborg.Errorf(cyborg.ErrBusy, "too many others change the same records now").WithHint("Try again in a moment.")
	case isPg && transient(pg):
		return cyborg.Errorf(cyborg.ErrUnavailable, "the database takes no work now: %s", pg.Message)
	case isPg:
		return cyborg.Errorf(cyborg.ErrInternal, "the database refused a change (SQLSTATE %s); the server's log has the details", pg.Code)
	case isNet, isConnect, pgconn.SafeToRetry(err), pgconn.Timeout(err), errors.Is(err, net.ErrClosed), isBroken(err):
		return cyborg.Errorf(cyborg.ErrUnavailable, "the database does not answer")
	default:
		return cyborg.Errorf(cyborg.ErrInternal, "the store failed; the server's log has the details")
	}
}

// isBroken recognizes broken connections by their text, where the error has no
// type of its own.
func isBroken(err error) bool {
	for _, text := range []string{"unexpected EOF", "conn closed", "closed pool", "broken pipe", "connection reset"} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}
