package chaos_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/workflows"
)

const (
	// restLimit is how long the system may take to come to rest after everything is
	// healed.
	restLimit = 10 * time.Minute

	// mostConnections is how many connections to PostgreSQL all processes together
	// may keep: each of four servers 16, one that listens and one that wakes; each of
	// Temporal's four services 20 for its records and 10 for its lists of runs; and one
	// that has Temporal's lock. They stay open once they were needed, as by what had
	// waited while PostgreSQL stood still.
	mostConnections = 4*(16+2) + 4*(20+10) + 1
)

// checker compares the records with the hardware, with the answers that clients
// got, and with the services of the cloud.
type checker struct {
	c        *harness.Cluster
	temporal client.Client
	driver   *driver
	cloud    *cloud
	foreign  map[uuid.UUID]bool // providers to which others have added something
	told     map[uuid.UUID]bool // operations that need an operator and were logged

	judged       map[cyborg.Cursor]bool // events of lost journals that were judged
	before, last int                    // how many faults there were before the last round, and with it
}

// rest waits until nothing is under way and everything agrees. When it takes
// too long, it returns the last disagreement.
func (k *checker) rest(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, restLimit)
	defer cancel()

	var last error
	told := time.Now()
	for {
		err := k.c.Unready(ctx)
		if err == nil {
			err = k.c.Unsound(ctx)
		}
		if err == nil {
			err = k.checkOpenRuns(ctx)
		}
		if err == nil {
			err = k.checkPollers(ctx)
		}
		if err == nil {
			err = k.checkAgreement(ctx)
		}
		if err == nil {
			return nil
		}

		if last == nil || ctx.Err() == nil {
			last = err
		}
		if time.Since(told) > time.Minute {
			k.driver.t.Logf("not at rest yet: %v", last)
			told = time.Now()
		}

		if clock.Sleep(ctx, 300*time.Millisecond) != nil {
			return fmt.Errorf("not at rest and sound within %s: %w", restLimit, last)
		}
	}
}

// checkOpenRuns returns an error where a run is open in Temporal although every
// operation has ended.
func (k *checker) checkOpenRuns(ctx context.Context) error {
	open, err := k.temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
		Namespace: temporalclient.DefaultNamespace, Query: "ExecutionStatus = 'Running'",
	})
	if err != nil {
		return err
	}

	for _, run := range open.GetExecutions() {
		id := run.GetExecution().GetWorkflowId()
		if !strings.HasPrefix(id, "reconcile") && !strings.HasPrefix(id, "temporal-sys-") {
			return fmt.Errorf("run %s is open, but every operation has ended", id)
		}
	}
	return nil
}

// checkPollers returns an error while an agent does not poll its task queue.
// After Temporal was away, agents come back within the pause between their
// attempts to connect, of up to 15 seconds.
func (k *checker) checkPollers(ctx context.Context) error {
	for _, host := range k.c.Hosts {
		queue, err := k.temporal.DescribeTaskQueue(ctx, workflows.AgentQueue(host), enumspb.TASK_QUEUE_TYPE_ACTIVITY)
		if err != nil {
			return err
		}

		if len(queue.GetPollers()) == 0 {
			return fmt.Errorf("the agent of %s does not poll its task queue", host)
		}
	}
	return nil
}

// records calls read with a connection to the database, past the API.
func (k *checker) records(ctx context.Context, read func(conn *pgx.Conn) error) error {
	address, err := k.c.DatabaseURL()
	if err != nil {
		return err
	}

	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	return read(conn)
}

// event is one event of the feed, as the database holds it.
type event struct {
	cursor            cyborg.Cursor
	subject           string
	axis              cyborg.EventAxis
	from, to          string
	handle, operation string
}

// feed returns the whole feed in its order. It returns an error where an event
// does not begin with the value at which the event before it on the same axis
// ended.
func (k *checker) feed(ctx context.Context) (events []event, err error) {
	err = k.records(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `
			SELECT transaction::text::bigint, id, subject_kind || ' ' || subject_id, axis, from_value, to_value,
			       coalesce(data->>'handle', ''), coalesce(operation_id::text, '')
			FROM events ORDER BY transaction, id`)
		if err != nil {
			return err
		}
		var e event
		_, err = pgx.ForEachRow(rows, []any{
			&e.cursor.Transaction, &e.cursor.Event, &e.subject, &e.axis, &e.from, &e.to, &e.handle, &e.operation,
		}, func() error {
			events = append(events, e)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}

	now := map[string]string{}
	for _, e := range events {
		if e.from == "" && e.to == "" || e.axis == cyborg.AxisCancel { // these carry no state in from and to
			continue
		}

		axis := e.subject + " " + string(e.axis)
		if e.axis == cyborg.AxisHolder || e.axis == cyborg.AxisUnclean { // each handle of an accelerator has its own
			axis += " " + e.handle
		}

		was, known := now[axis]
		if was != e.from && (known || e.axis != cyborg.AxisSpecs && e.axis != cyborg.AxisProject) { // the first event of these does not begin at ""
			return nil, fmt.Errorf("event %s changes %s from %q to %q, but it was %q before", e.cursor, axis, e.from, e.to, was)
		}

		now[axis] = e.to
	}
	return events, nil
}

// operation is the recorded end of an operation.
type operation struct {
	id    uuid.UUID
	kind  cyborg.OperationKind
	state cyborg.OperationState

	bitstream string    // that a program has loaded
	admitted  time.Time // at the latest; the zero value where nobody asked
}

// ends counts the operations by how they ended.
func (k *checker) ends(ctx context.Context) (ends map[string]int, err error) {
	ends = map[string]int{}
	return ends, k.records(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT kind || ' ' || state, count(*)::int FROM operations GROUP BY 1")
		if err != nil {
			return err
		}
		var (
			what string
			n    int
		)
		_, err = pgx.ForEachRow(rows, []any{&what, &n}, func() error {
			ends[what] = n
			return nil
		})
		return err
	})
}

// answers compares the answers that clients got with the recorded operations,
// and with the events of these. What an answer says may have been lost.
func (k *checker) answers(ctx context.Context, given []answer, events []event, losses []loss, shifts []shift) error {
	byKey := map[string]operation{}
	err := k.records(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT idempotency_key, id, kind, state, admitted_at FROM operations WHERE idempotency_key IS NOT NULL")
		if err != nil {
			return err
		}

		var (
			key string
			op  operation
		)

		_, err = pgx.ForEachRow(rows, []any{&key, &op.id, (*string)(&op.kind), (*string)(&op.state), &op.admitted}, func() error {
			_, op.admitted = wasAt(shifts, op.admitted)
			byKey[key] = op
			return nil
		})
		return err
	})
	if err != nil {
		return err
	}

	byOperation := eventsByOperation(events)
	for _, a := range given {
		op, recorded := byKey[a.key]
		own := byOperation[op.id.String()]
		if a.trace != (trace{}) {
			own = withReports(own, events, a.trace.subject)
		}
		if err := contradiction(a, op, recorded, own); err != nil && !lostAnswer(losses, a) {
			return fmt.Errorf("request %s, %s of accelerator %s: %w", a.key, a.what, a.accelerator, err)
		}
	}
	return nil
}

// mayFindNothing lists the kinds of operations that may have nothing to do: nobody holds any
// more what is to be detached, what is to be cleaned is clean, and a card is divided like
// that already.
func mayFindNothing() []cyborg.OperationKind {
	return []cyborg.OperationKind{cyborg.OperationDetach, cyborg.OperationClean, cyborg.OperationPartition}
}

// contradiction returns an error where the records contradict an answer. events
// are those of the operation that is recorded for it, and what its host has reported
// meanwhile.
func contradiction(a answer, op operation, recorded bool, events []event) error {
	switch {
	case a.unanswered:
		return nil // it may have had any outcome
	case a.err != nil:
		if cyborg.ErrorKindOf(a.err) == cyborg.ErrInternal {
			return fmt.Errorf("the answer is an internal error: %w", a.err)
		}

		refused := !recorded || cyborg.AsError(a.err).Operation != op.id
		if refused && recorded && a.hung && op.admitted.After(a.asked) {
			return nil // an API that stood still has taken the earlier try after the other had answered the last one
		}
		if refused && recorded {
			return fmt.Errorf("it was refused (%w), but operation %s is recorded for it, which is %s", a.err, op.id, op.state)
		}

		if !refused && op.state == cyborg.OperationSucceeded {
			return fmt.Errorf("the answer was a failure (%w), but operation %s has succeeded", a.err, op.id)
		}
		return nil
	case !recorded && slices.Contains(mayFindNothing(), a.kind) && a.operation == uuid.Nil:
		return nil
	case !recorded:
		return fmt.Errorf("the answer was %d, but no operation is recorded for it", a.status)
	case a.status == http.StatusAccepted && a.operation != op.id:
		return fmt.Errorf("the answer named operation %s, but operation %s is recorded for it", a.operation, op.id)
	case a.status != http.StatusAccepted && op.state != cyborg.OperationSucceeded:
		return fmt.Errorf("the answer was %d, but its operation %s is %s", a.status, op.id, op.state)
	case op.state != cyborg.OperationSucceeded:
		return nil // it was accepted, and said later how it has ended
	}
	return a.unevented(events)
}

// connections returns an error where the processes keep too many connections to
// PostgreSQL or leave transactions open. It waits, because PostgreSQL notices
// only after a while that the other end of a connection is gone.
func (k *checker) connections(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, restLimit)
	defer cancel()
	var last error
	for {
		err := k.connected(ctx)
		if err == nil {
			return nil
		}

		if last == nil || ctx.Err() == nil { // the error of an ended ctx hides the cause
			last = err
		}

		if clock.Sleep(ctx, 300*time.Millisecond) != nil {
			return last
		}
	}
}

// connected checks the present connections once.
func (k *checker) connected(ctx context.Context) error {
	return k.records(ctx, func(conn *pgx.Conn) error {
		var all, idle int
		err := conn.QueryRow(ctx, `
			SELECT count(*), count(*) FILTER (WHERE state LIKE 'idle in transaction%' AND state_change < now() - interval '1 minute')
			FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`).Scan(&all, &idle)

		switch {
		case err != nil:
			return err
		case all > mostConnections:
			return fmt.Errorf("PostgreSQL has %d connections, and %d are allowed", all, mostConnections)
		case idle > 0:
			return fmt.Errorf("%d transactions have been left open for more than a minute", idle)
		}
		return nil
	})
}
