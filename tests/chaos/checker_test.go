package chaos_test

import (
	"context"
	"fmt"
	"net/http"
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
	// restLimit is how long the system may take to come to rest once everything is healed.
	restLimit = 10 * time.Minute
	// mostConnections is what the processes together may keep to PostgreSQL: four servers of 16 and one that listens, and Temporal
	// with 31.
	mostConnections = 4*(16+1) + 31
)

// checker compares what is true with what was said.
type checker struct {
	c        *harness.Cluster
	temporal client.Client
	driver   *driver
	cloud    *cloud
	foreign  map[uuid.UUID]bool // providers to which others have added something
}

// rest waits until nothing is under way and everything agrees.
func (k *checker) rest(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, restLimit)
	defer cancel()
	var last error
	for {
		err := k.c.Unready(ctx)
		if err == nil {
			err = k.c.Unsound(ctx)
		}
		if err == nil {
			err = k.runsWithoutOperation(ctx)
		}
		if err == nil {
			err = k.taken(ctx)
		}
		if err == nil {
			err = k.agreed(ctx)
		}
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if clock.Sleep(ctx, 300*time.Millisecond) != nil {
			return fmt.Errorf("not at rest and sound within %s: %w", restLimit, last)
		}
	}
}

// runsWithoutOperation finds runs in Temporal that are open though every operation has ended.
func (k *checker) runsWithoutOperation(ctx context.Context) error {
	open, err := k.temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
		Namespace: temporalclient.DefaultNamespace, Query: "ExecutionStatus = 'Running'",
	})
	if err != nil {
		return err
	}
	for _, run := range open.GetExecutions() {
		id := run.GetExecution().GetWorkflowId()
		if !strings.HasPrefix(id, "reconcile") && !strings.HasPrefix(id, "temporal-sys-") {
			return fmt.Errorf("run %s is open, and no operation is", id)
		}
	}
	return nil
}

// taken finds agents that do not take steps from Temporal: after it was away they come back within the pause between their
// tries to reach it, of up to fifteen seconds.
func (k *checker) taken(ctx context.Context) error {
	for _, host := range k.c.Hosts {
		queue, err := k.temporal.DescribeTaskQueue(ctx, workflows.AgentQueue(host), enumspb.TASK_QUEUE_TYPE_ACTIVITY)
		if err != nil {
			return err
		}
		if len(queue.GetPollers()) == 0 {
			return fmt.Errorf("the agent of %s takes no steps", host)
		}
	}
	return nil
}

// records reads PostgreSQL itself.
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

// event is one row of the feed.
type event struct {
	cursor            cyborg.Cursor
	subject           string
	axis              cyborg.EventAxis
	from, to          string
	handle, operation string
}

// feed reads the whole feed in its order, and finds where it contradicts itself: each change of each axis of each thing
// begins where the one before it ended.
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
		if e.from == "" && e.to == "" || e.axis == cyborg.AxisCancel { // what they carry is in their data, or is no state
			continue
		}
		axis := e.subject + " " + string(e.axis)
		if e.axis == cyborg.AxisHolder { // of each handle of the accelerator
			axis += " " + e.handle
		}
		was, known := now[axis]
		if was != e.from && (known || e.axis != cyborg.AxisSpecs && e.axis != cyborg.AxisProject) { // those begin at a version, and at who made it
			return nil, fmt.Errorf("event %s changes %s from %q to %q, and it was %q", e.cursor, axis, e.from, e.to, was)
		}
		now[axis] = e.to
	}
	return events, nil
}

// operation is what is recorded of one.
type operation struct {
	id    uuid.UUID
	state cyborg.OperationState
}

// answers compares what clients were told with what is recorded.
func (k *checker) answers(ctx context.Context, told []answer, events []event) error {
	byKey := map[string]operation{}
	err := k.records(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT idempotency_key, id, state FROM operations WHERE idempotency_key IS NOT NULL")
		if err != nil {
			return err
		}
		var (
			key string
			op  operation
		)
		_, err = pgx.ForEachRow(rows, []any{&key, &op.id, &op.state}, func() error {
			byKey[key] = op
			return nil
		})
		return err
	})
	if err != nil {
		return err
	}
	for _, a := range told {
		op, recorded := byKey[a.key]
		if err := contradiction(a, op, recorded, events); err != nil {
			return fmt.Errorf("request %s, %s of accelerator %s: %w", a.key, a.what, a.accelerator, err)
		}
	}
	return nil
}

// contradiction says how the records contradict an answer.
func contradiction(a answer, op operation, recorded bool, events []event) error {
	switch {
	case a.unanswered:
		return nil // whatever became of it
	case a.err != nil:
		if cyborg.ErrorKindOf(a.err) == cyborg.ErrInternal {
			return fmt.Errorf("it was answered with a defect of ours: %w", a.err)
		}
		refused := !recorded || cyborg.AsError(a.err).Operation != op.id
		if refused && recorded {
			return fmt.Errorf("it was refused (%w), and is operation %s, which is %s", a.err, op.id, op.state)
		}
		if !refused && op.state == cyborg.OperationSucceeded {
			return fmt.Errorf("it was said to have failed (%w), and operation %s has succeeded", a.err, op.id)
		}
		return nil
	case !recorded && a.what == "retry":
		return nil // of a detach of what nobody holds any more
	case !recorded:
		return fmt.Errorf("it was answered with %d, and nothing is recorded of it", a.status)
	case a.status == http.StatusAccepted && a.operation != op.id:
		return fmt.Errorf("it was said to be operation %s, and is operation %s", a.operation, op.id)
	case a.status == http.StatusAccepted:
		return nil
	case op.state != cyborg.OperationSucceeded:
		return fmt.Errorf("it was answered with %d, and its operation %s is %s", a.status, op.id, op.state)
	case a.kind == cyborg.OperationAttach && a.what == "attach":
		holder := string(a.holder.Kind) + ":" + a.holder.ID
		for _, e := range events {
			if e.axis == cyborg.AxisHolder && e.to == holder && e.operation == op.id.String() {
				return nil
			}
		}
		return fmt.Errorf("%s was told that it is attached, and no event says so", holder)
	}
	return nil
}

// connections finds too many connections to PostgreSQL, and such as have been forgotten in a transaction. PostgreSQL may need a
// while to notice that the other end of some is gone.
func (k *checker) connections(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, restLimit)
	defer cancel()
	var last error
	for {
		err := k.connected(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil { // the end of ctx is no news
			last = err
		}
		if clock.Sleep(ctx, 300*time.Millisecond) != nil {
			return last
		}
	}
}

// connected says what is wrong with the connections of this moment.
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
			return fmt.Errorf("PostgreSQL has %d connections, which is more than the %d there may be", all, mostConnections)
		case idle > 0:
			return fmt.Errorf("%d transactions have been left open", idle)
		}
		return nil
	})
}
