package clocks_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/workflows"
)

// slow is how long a step takes that a test interrupts.
const slow = fake.Duration(time.Hour)

// work does what a cluster does every day, on four cards at the same time. Each
// card is in service in between, and out of service in the end.
func (c *cluster) work(ctx context.Context, t *testing.T) {
	t.Helper()
	group, ctx := errgroup.WithContext(ctx)

	for i, life := range []func(ctx context.Context, a apiclient.Accelerator) error{c.use, c.failAndUndo, c.abandon, c.orphan} {
		group.Go(func() error {
			a := c.cards[i]
			if err := life(ctx, a); err != nil {
				return err
			}
			return c.retire(ctx, a)
		})
	}

	require.NoError(t, group.Wait())
}

// use takes a card into service, loads an image, for which the card needs three
// attempts, attaches it and detaches it.
func (c *cluster) use(ctx context.Context, a apiclient.Accelerator) error {
	if err := c.makeReady(ctx, a); err != nil {
		return err
	}

	name := uuid.NewString()
	image, err := c.Image(a.Host, name, fake.MakeImage("FPGA", "f-"+name, []byte(name)))
	if err != nil {
		return err
	}

	busy := fake.Failure{Times: 2, Kind: cyborg.ErrBusy, When: fake.Before}
	if err := c.edit(ctx, a, func(card *fake.Card) { card.Fail[fake.StepProgram] = busy }); err != nil {
		return err
	}

	err = c.do(ctx, cyborg.OperationSucceeded, func(options ...apiclient.Option) (apiclient.Answer, error) {
		return c.Directs[0].Program(ctx, a.UUID, cyborg.Image{Source: image, ID: name}, options...)
	})
	if err != nil {
		return err
	}

	if err := c.attach(ctx, a, cyborg.OperationSucceeded); err != nil {
		return err
	}
	if err := c.ask(ctx, a); err != nil {
		return err
	}
	return c.detach(ctx, a)
}

// ask asks a host what it has, and how that is used.
func (c *cluster) ask(ctx context.Context, a apiclient.Accelerator) error {
	_, err := patiently(ctx, func() (apiclient.Discovery, error) { return c.API.Discover(ctx, a.Host) })
	if err != nil {
		return err
	}

	usage, err := patiently(ctx, func() (cyborg.HostUsage, error) { return c.API.AcceleratorUsage(ctx, a.UUID) })
	if err == nil && usage.Error != "" {
		err = fmt.Errorf("host %s does not tell its usage: %s", a.Host, usage.Error)
	}
	return err
}

// failAndUndo has an attach fail after the card was changed.
func (c *cluster) failAndUndo(ctx context.Context, a apiclient.Accelerator) error {
	if err := c.makeReady(ctx, a); err != nil {
		return err
	}

	broken := fake.Failure{Times: 1, Kind: cyborg.ErrHardware, When: fake.After}
	if err := c.edit(ctx, a, func(card *fake.Card) { card.Fail[fake.StepAttach] = broken }); err != nil {
		return err
	}
	return c.attach(ctx, a, cyborg.OperationFailed)
}

// abandon terminates the run of an attach from outside. Reconcile starts
// another one, which undoes it.
func (c *cluster) abandon(ctx context.Context, a apiclient.Accelerator) error {
	if err := c.makeReady(ctx, a); err != nil {
		return err
	}

	op, err := c.caughtAttaching(ctx, a)
	if err != nil {
		return err
	}
	if err := c.temporal.TerminateWorkflow(ctx, op.WorkflowID, "", "by hand"); err != nil {
		return err
	}

	if err := c.ends(ctx, op.ID, cyborg.OperationCancelled); err != nil {
		return err
	}
	return c.hurry(ctx, a)
}

// orphan admits a provision whose run is not started, as by a server that dies
// in between. Reconcile starts it.
func (c *cluster) orphan(ctx context.Context, a apiclient.Accelerator) error {
	admitted, err := c.store.Admit(ctx, db.Admission{
		ID: uuid.New(), Actor: cyborg.Actor{Name: "orphan maker"}, Request: cyborg.ProvisionRequest{Accelerator: a.UUID},
	})
	if err != nil {
		return err
	}
	return c.ends(ctx, admitted.Operation.ID, cyborg.OperationSucceeded)
}

// jump sets these clocks while the agent attaches a card, and sets them right
// while it detaches it.
func (c *cluster) jump(ctx context.Context, t *testing.T, offsets clocks) {
	t.Helper()
	a := c.cards[0]
	require.NoError(t, c.makeReady(ctx, a))

	op, err := c.caughtAttaching(ctx, a)
	require.NoError(t, err)
	c.jumpDuring(ctx, t, op, a, offsets)

	op, err = c.caught(ctx, a, fake.StepDetach, workflows.DetachActivity, func(options ...apiclient.Option) (apiclient.Answer, error) {
		return c.Directs[1].Detach(ctx, a.UUID, cyborg.Holder{}, options...)
	})
	require.NoError(t, err)
	c.jumpDuring(ctx, t, op, a, clocks{})

	require.NoError(t, c.retire(ctx, a))
}

// jumpDuring sets these clocks while the agent takes the step of an operation on
// a card. Everybody is heard after that, and then the step ends.
func (c *cluster) jumpDuring(ctx context.Context, t *testing.T, op apiclient.Operation, a apiclient.Accelerator, offsets clocks) {
	t.Helper()
	c.set(t, offsets)
	harness.Until(t, ctx, "heard since the jump", func() error { return c.differ(ctx, offsets) })
	require.NoError(t, c.hurry(ctx, a))
	require.NoError(t, c.ends(ctx, op.ID, cyborg.OperationSucceeded))
}

// setBackAfterDeaths sets the database's clock back by an hour, when a host is
// dead and just before a run is terminated. Both are noticed before the clock
// has caught up.
func (c *cluster) setBackAfterDeaths(ctx context.Context, t *testing.T) {
	t.Helper()
	a := c.cards[0]
	require.NoError(t, c.makeReady(ctx, a))
	op, err := c.caughtAttaching(ctx, a)
	require.NoError(t, err)
	c.Node(quiet).Kill()

	c.set(t, clocks{"postgres": -time.Hour})
	require.NoError(t, c.temporal.TerminateWorkflow(ctx, op.WorkflowID, "", "by hand"))

	require.NoError(t, c.ends(ctx, op.ID, cyborg.OperationCancelled))
	require.NoError(t, c.hurry(ctx, a))
	c.silent(ctx, t, func() error { return nil })
	require.NoError(t, c.retire(ctx, a))
}

// endOfTime lets Temporal's clock jump by an hour while the agent attaches a
// card. The attempt is out of time. Another one may attach the card, and
// otherwise the attach is undone.
func (c *cluster) endOfTime(ctx context.Context, t *testing.T) {
	t.Helper()
	a := c.cards[0]
	require.NoError(t, c.makeReady(ctx, a))
	op, err := c.caughtAttaching(ctx, a)
	require.NoError(t, err)

	offsets := clocks{"temporal": time.Hour}
	c.set(t, offsets)
	require.NoError(t, c.hurry(ctx, a))

	op, err = c.await(ctx, op.ID, func(op apiclient.Operation) bool { return op.State.Ended() })
	require.NoError(t, err)
	require.Contains(t, []cyborg.OperationState{cyborg.OperationSucceeded, cyborg.OperationFailed}, op.State, "%v", op.Error)
	c.expected[op.ID] = op.State
	harness.Until(t, ctx, "heard since the jump", func() error { return c.differ(ctx, offsets) })

	if op.State == cyborg.OperationSucceeded {
		require.NoError(t, c.detach(ctx, a))
	}
	require.NoError(t, c.retire(ctx, a))
}

// restart stops all processes, and starts them with the clocks that they have.
func (c *cluster) restart(t *testing.T) {
	t.Helper()
	for _, node := range slices.Backward(c.Nodes) {
		_, err := node.Stop()
		require.NoError(t, err)
	}
	for _, node := range c.Nodes {
		node.Up()
	}
}

// silence kills the agent of the quiet host, which alone is called silent until
// the agent is back. Then the agent has to settle what somebody has detached by
// force.
func (c *cluster) silence(ctx context.Context, t *testing.T) {
	t.Helper()
	require.NoError(t, c.makeReady(ctx, c.quiet))
	require.NoError(t, c.attach(ctx, c.quiet, cyborg.OperationSucceeded))

	c.Node(quiet).Kill()
	c.silent(ctx, t, func() error {
		return c.do(ctx, cyborg.OperationSucceeded, func(options ...apiclient.Option) (apiclient.Answer, error) {
			return c.Directs[0].ForceDetach(ctx, c.quiet.UUID, cyborg.Holder{}, options...)
		})
	})

	harness.Until(t, ctx, "settled", func() error {
		a, _, err := c.API.Accelerator(ctx, c.quiet.UUID)
		if err == nil && a.Fence != nil {
			err = fmt.Errorf("accelerator %s is fenced: %s", a.Name, a.Fence.Reason)
		}
		return err
	})
	require.NoError(t, c.retire(ctx, c.quiet))
}

// silent waits until the quiet host is called silent, does something, and starts its
// agent again.
func (c *cluster) silent(ctx context.Context, t *testing.T, do func() error) {
	t.Helper()
	harness.Until(t, ctx, "silent", func() error {
		host, err := c.API.Host(ctx, quiet)
		if err == nil && !host.Silent {
			err = fmt.Errorf("host %s was last heard at %s, and is not silent", quiet, host.LastSeen)
		}
		return err
	})

	require.NoError(t, do())
	c.Node(quiet).Up()
	harness.Until(t, ctx, "heard again", func() error { return c.Unready(ctx) })
}

// makeReady takes a card into service, waiting for the answer.
func (c *cluster) makeReady(ctx context.Context, a apiclient.Accelerator) error {
	return c.do(ctx, cyborg.OperationSucceeded, func(options ...apiclient.Option) (apiclient.Answer, error) {
		return c.Directs[1].MakeReady(ctx, a.UUID, options...)
	})
}

// attach attaches a card to its host.
func (c *cluster) attach(ctx context.Context, a apiclient.Accelerator, end cyborg.OperationState) error {
	return c.do(ctx, end, func(options ...apiclient.Option) (apiclient.Answer, error) {
		return c.Directs[0].Attach(ctx, a.UUID, cyborg.Holder{}, options...)
	})
}

// detach detaches a card from its host.
func (c *cluster) detach(ctx context.Context, a apiclient.Accelerator) error {
	return c.do(ctx, cyborg.OperationSucceeded, func(options ...apiclient.Option) (apiclient.Answer, error) {
		return c.Directs[1].Detach(ctx, a.UUID, cyborg.Holder{}, options...)
	})
}

// retire takes a card out of service.
func (c *cluster) retire(ctx context.Context, a apiclient.Accelerator) error {
	return c.do(ctx, cyborg.OperationSucceeded, func(options ...apiclient.Option) (apiclient.Answer, error) {
		return c.Directs[0].Retire(ctx, a.UUID, options...)
	})
}

// do sends a request, waits for the end of its operation, and returns an error
// where it is not this one. Then it sends the request once more under the same
// idempotency key.
func (c *cluster) do(ctx context.Context, end cyborg.OperationState, send func(options ...apiclient.Option) (apiclient.Answer, error)) error {
	key := apiclient.Key(uuid.NewString())
	first, err := patiently(ctx, func() (apiclient.Answer, error) { return send(key, apiclient.Async()) })
	if err != nil {
		return err
	}
	if err := c.ends(ctx, first.Operation.ID, end); err != nil {
		return err
	}

	// It gets the answer of the first one, and begins nothing: see requireEnds.
	_, err = patiently(ctx, func() (apiclient.Answer, error) { return send(key) })
	if (err == nil) != (end == cyborg.OperationSucceeded) {
		return fmt.Errorf("operation %s ended %s, and its request, repeated under its key, got %w", first.Operation.ID, end, err)
	}
	return nil
}

// ends waits for the end of an operation, and returns an error where it is not
// this one.
func (c *cluster) ends(ctx context.Context, id uuid.UUID, end cyborg.OperationState) error {
	c.mu.Lock()
	c.expected[id] = end
	c.mu.Unlock()

	op, err := c.await(ctx, id, func(op apiclient.Operation) bool { return op.State.Ended() })
	if err == nil && op.State != end {
		err = fmt.Errorf("operation %s %s ended %s, not %s: %w", op.Kind, id, op.State, end, op.Error)
	}
	return err
}

// await polls an operation until it is as wanted.
func (c *cluster) await(ctx context.Context, id uuid.UUID, wanted func(apiclient.Operation) bool) (apiclient.Operation, error) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()

	for {
		op, err := patiently(ctx, func() (apiclient.Operation, error) { return c.API.Operation(ctx, id) })
		if err != nil || wanted(op) {
			return op, err
		}

		select {
		case <-ctx.Done():
			return op, fmt.Errorf("operation %s %s is still %s with progress %+v", op.Kind, id, op.State, op.Progress)
		case <-ticker.C:
		}
	}
}

// patiently sends a request, and sends it again as long as the answer is that
// the API is unavailable: where the machine stalls, Temporal or PostgreSQL may
// not answer it in time.
func patiently[T any](ctx context.Context, send func() (T, error)) (T, error) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()

	for {
		answer, err := send()
		if cyborg.ErrorKindOf(err) != cyborg.ErrUnavailable {
			return answer, err
		}

		select {
		case <-ctx.Done():
			return answer, err
		case <-ticker.C:
		}
	}
}

// caughtAttaching begins to attach a card to its host, and returns while the
// agent does it.
func (c *cluster) caughtAttaching(ctx context.Context, a apiclient.Accelerator) (apiclient.Operation, error) {
	return c.caught(ctx, a, fake.StepAttach, workflows.AttachActivity, func(options ...apiclient.Option) (apiclient.Answer, error) {
		return c.Directs[0].Attach(ctx, a.UUID, cyborg.Holder{}, options...)
	})
}

// caught sends a request, and returns while the agent takes the step, which
// ends with hurry.
func (c *cluster) caught(
	ctx context.Context, a apiclient.Accelerator, step fake.Step, activity string,
	send func(options ...apiclient.Option) (apiclient.Answer, error),
) (apiclient.Operation, error) {
	if err := c.edit(ctx, a, func(card *fake.Card) { card.Latency[step] = slow }); err != nil {
		return apiclient.Operation{}, err
	}

	key := apiclient.Key(uuid.NewString())
	answer, err := patiently(ctx, func() (apiclient.Answer, error) { return send(key, apiclient.Async()) })
	if err != nil {
		return apiclient.Operation{}, err
	}

	return c.await(ctx, answer.Operation.ID, func(op apiclient.Operation) bool {
		return op.State == cyborg.OperationRunning && op.Progress != nil && op.Progress.Step == activity && op.Progress.Note == ""
	})
}

// hurry makes the steps of a card fast again, also one that is under way.
func (c *cluster) hurry(ctx context.Context, a apiclient.Accelerator) error {
	return c.edit(ctx, a, func(card *fake.Card) { clear(card.Latency) })
}

// edit changes what a card does.
func (c *cluster) edit(ctx context.Context, a apiclient.Accelerator, edit func(card *fake.Card)) error {
	device, err := patiently(ctx, func() (apiclient.Device, error) { return c.API.Device(ctx, a.DeviceUUID) })
	if err != nil {
		return err
	}
	return c.Bench(a.Host).Edit(ctx, device.Identity, edit)
}

// requireHeard waits until no host is silent and every process is alive.
func (c *cluster) requireHeard(ctx context.Context, t *testing.T) {
	t.Helper()
	harness.Until(t, ctx, "heard", func() error {
		for host, err := range c.API.Hosts(ctx, apiclient.Page{}) {
			if err != nil {
				return err
			}
			if host.Silent {
				return fmt.Errorf("host %s is called silent, since %s", host.Name, host.LastSeen)
			}
		}

		for service, err := range c.API.Services(ctx, apiclient.Page{}) {
			if err != nil {
				return err
			}
			if !service.Alive || service.Refused {
				return fmt.Errorf("service %+v is not alive", service)
			}
		}
		return nil
	})
}

// requireEnds fails the test unless every operation was begun by it and has
// ended as expected.
func (c *cluster) requireEnds(ctx context.Context, t *testing.T) {
	t.Helper()
	operations, err := patiently(ctx, func() ([]apiclient.Operation, error) {
		return apiclient.Collect(c.API.Operations(ctx, apiclient.OperationFilter{}, apiclient.Page{}))
	})
	require.NoError(t, err)
	for _, op := range operations {
		require.Equal(t, c.expected[op.ID], op.State, "%s %s: %v", op.Kind, op.ID, op.Error)
	}
}

// requireHistory waits until the reader of the feed has the end of every
// operation. The events have to be in order, and lead each operation from its
// admission to its end.
func (c *cluster) requireHistory(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), caseLimit)
	defer cancel()

	harness.Until(t, ctx, "told by the feed", func() error {
		states := map[string]string{}
		for _, event := range c.events() {
			if event.Subject.Kind == cyborg.SubjectOperation && event.Axis == cyborg.AxisState {
				require.Equal(t, states[event.Subject.ID], event.From, "%+v", event)
				states[event.Subject.ID] = event.To
			}
		}

		for id, end := range c.expected {
			if states[id.String()] != string(end) {
				return fmt.Errorf("operation %s ended %s, and its events end in %q", id, end, states[id.String()])
			}
		}
		return nil
	})

	require.True(t, slices.IsSortedFunc(c.events(), func(a, b cyborg.Event) int {
		return cmp.Or(cmp.Compare(a.Cursor.Transaction, b.Cursor.Transaction), cmp.Compare(a.Cursor.Event, b.Cursor.Event))
	}), "the events are out of order")
}
