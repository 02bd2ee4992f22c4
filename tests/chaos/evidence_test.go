package chaos_test

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
)

// What an answer or an operation says was done has its event in the feed.

// eventsByOperation returns the events of each operation, in the order of the
// feed.
func eventsByOperation(events []event) map[string][]event {
	of := map[string][]event{}
	for _, e := range events {
		if e.operation != "" {
			of[e.operation] = append(of[e.operation], e)
		}
	}
	return of
}

// trace is the event that a change leaves in the feed, where that does not follow
// from its kind and its accelerator alone.
type trace struct {
	subject string
	axis    cyborg.EventAxis
	to      string
}

// withReports adds to the events of an operation those of a subject that name no
// operation and come after its admission: the host may have reported first what the
// operation has changed, and then its end changes nothing more.
func withReports(own, all []event, subject string) []event {
	if len(own) == 0 {
		return nil
	}
	out := slices.Clone(own)
	for _, e := range all {
		if e.operation == "" && e.subject == subject && e.cursor.Compare(own[0].cursor) > 0 {
			out = append(out, e)
		}
	}
	return out
}

// unevented returns an error where a client was told of a success, and no event
// of the operation says what has changed.
func (a answer) unevented(events []event) error {
	subject, holder := string(cyborg.SubjectAccelerator)+" "+a.accelerator.String(), ""
	if a.holder.ID != "" {
		holder = string(a.holder.Kind) + ":" + a.holder.ID
	}

	var what string
	var happened func(e event) bool

	switch a.kind {
	case cyborg.OperationAttach:
		what = "has it"
		happened = func(e event) bool { return e.axis == cyborg.AxisHolder && e.to == holder }
	case cyborg.OperationDetach:
		what = "has given it back"
		happened = func(e event) bool {
			had := strings.TrimSuffix(e.from, inDoubt)
			return e.axis == cyborg.AxisHolder && had != "" && e.to == "" && (holder == "" || had == holder)
		}
	case cyborg.OperationProvision:
		what = "is ready"
		happened = func(e event) bool { return e.axis == cyborg.AxisLifecycle && e.to == string(cyborg.LifecycleReady) }
	case cyborg.OperationRetire:
		what = "is inactive"
		happened = func(e event) bool {
			return e.axis == cyborg.AxisLifecycle && e.to == string(cyborg.LifecycleInactive)
		}
	case cyborg.OperationClean:
		holder, what = "a handle", "is clean"
		happened = func(e event) bool { return e.axis == cyborg.AxisUnclean && e.from != "" && e.to == "" }
	default:
		if a.trace == (trace{}) { // its events depend on what was there before
			return nil
		}
		subject, holder, what = a.trace.subject, a.trace.to, fmt.Sprintf("is the new %s of %s", a.trace.axis, a.trace.subject)
		happened = func(e event) bool { return e.axis == a.trace.axis && e.to == a.trace.to }
	}

	if slices.ContainsFunc(events, func(e event) bool { return e.subject == subject && happened(e) }) {
		return nil
	}
	return fmt.Errorf("the answer was a success, but no event of its operation says that %q %s", holder, what)
}

// inDoubt is the suffix that events give to a holder while the result of its
// attach on the host is not known.
const inDoubt = " (in doubt)"

// checkEvidence returns an error where an operation has ended without an event
// that says so, or where a change of accelerator requests that was answered
// with success is not in the feed.
func (k *checker) checkEvidence(ctx context.Context, changes []change, events []event) error {
	var operations []operation
	failed := map[string]bool{} // requests with an unbind that has not succeeded

	err := k.records(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT id, kind, state FROM operations")
		if err != nil {
			return err
		}

		operations, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (op operation, err error) {
			return op, row.Scan(&op.id, (*string)(&op.kind), (*string)(&op.state))
		})
		if err != nil {
			return err
		}

		rows, err = conn.Query(ctx, `
			SELECT s.subject_id FROM operation_subjects s JOIN operations o ON o.id = s.operation_id
			WHERE o.kind = $1 AND s.kind = $2 AND o.state <> $3`,
			string(cyborg.OperationUnbind), string(cyborg.SubjectARQ), string(cyborg.OperationSucceeded))
		if err != nil {
			return err
		}

		var id string
		_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
			failed[id] = true
			return nil
		})
		return err
	})
	if err != nil {
		return err
	}

	of := eventsByOperation(events)
	for _, op := range operations {
		subject := string(cyborg.SubjectOperation) + " " + op.id.String()
		said := slices.ContainsFunc(of[op.id.String()], func(e event) bool {
			return e.subject == subject && e.axis == cyborg.AxisState && e.to == string(op.state)
		})
		if !said {
			return fmt.Errorf("%s %s is %s, but no event says so", op.kind, op.id, op.state)
		}
	}

	return findUneventedChange(changes, failed, events)
}

// findUneventedChange returns an error where a change of accelerator requests
// that was answered with success is not in the feed. failed are the requests
// with an unbind that has not succeeded.
func findUneventedChange(changes []change, failed map[string]bool, events []event) error {
	states := map[string][]string{} // of each request, in the order of the feed
	for _, e := range events {
		if id, ok := strings.CutPrefix(e.subject, string(cyborg.SubjectARQ)+" "); ok && e.axis == cyborg.AxisState {
			states[id] = append(states[id], e.to)
		}
	}

	had := func(id uuid.UUID, wanted ...cyborg.ARQState) bool {
		return slices.ContainsFunc(states[id.String()], func(state string) bool { return slices.Contains(wanted, cyborg.ARQState(state)) })
	}

	for _, c := range changes {
		for _, id := range c.ids {
			var ok bool
			switch c.to {
			case wishBound:
				ok = had(id, cyborg.ARQBound, cyborg.ARQBindFailed, "") // a deletion may have come first
			case wishUnbound:
				ok = had(id, cyborg.ARQUnbound, cyborg.ARQUnbindFailed) || failed[id.String()]
			case wishGone:
				ok = had(id, "")
			default:
				ok = true
			}
			if !ok {
				return fmt.Errorf("the change of request %s to %s was answered with success, but its events are %q", id, c.to, states[id.String()])
			}
		}
	}
	return nil
}
