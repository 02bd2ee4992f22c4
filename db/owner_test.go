package db_test

import (
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// requireSuperseded asserts that the records refused a run because the
// operation is not its own, or has ended.
func requireSuperseded(t *testing.T, err error, because ...any) {
	t.Helper()
	require.Equal(t, cyborg.ErrSuperseded, cyborg.ErrorKindOf(err), append([]any{"%v"}, append([]any{err}, because...)...)...)
	require.NotEmpty(t, cyborg.AsError(err).Hint, "it says what to do")
}

// TestOtherRunOfAnOperationIsRefused: somebody resets or starts another run of
// an operation that runs. That run can change nothing, and is told to touch
// nothing; the first run goes on.
func TestOtherRunOfAnOperationIsRefused(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	work := r.begin(t, toAttach(a.UUID, onHost("h1")))
	before := scalar[int](t, r, "SELECT count(*) FROM events")

	stray := db.Run{Operation: work.Operation, ID: "stray"}
	_, err := r.Begin(t.Context(), stray)
	requireSuperseded(t, err)
	_, err = r.CheckRun(t.Context(), stray)
	requireSuperseded(t, err)
	_, err = r.Record(t.Context(), stray, []cyborg.Step{{Name: "attach"}})
	requireSuperseded(t, err)
	requireSuperseded(t, r.FailARQs(t.Context(), stray, "no"))
	for _, state := range []cyborg.OperationState{cyborg.OperationSucceeded, cyborg.OperationFailed, cyborg.OperationCancelled} {
		requireSuperseded(t, r.End(t.Context(), stray, cyborg.Outcome{Operation: work.Operation, State: state}))
	}

	require.Equal(t, before, scalar[int](t, r, "SELECT count(*) FROM events"), "nothing was changed")
	op, err := r.Operation(t.Context(), work.Operation)
	require.NoError(t, err)
	require.Equal(t, runOf(work.Operation).ID, op.Run)
	require.Empty(t, op.Steps)

	_, err = r.CheckRun(t.Context(), runOf(work.Operation))
	require.NoError(t, err)
	r.end(t, work, cyborg.OperationSucceeded)
	require.Equal(t, []cyborg.Holder{onHost("h1")}, h.accelerator(t, "card0").Holders())
}

// TestEndedOperationIsNobodys: once an operation has ended, its own run can do
// nothing more either, such as a conductor that was cut off and goes on. It may
// only say again how the operation has ended.
func TestEndedOperationIsNobodys(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	work := r.begin(t, toProgram(a.UUID))
	run := runOf(work.Operation)
	r.end(t, work, cyborg.OperationFailed)

	_, err := r.CheckRun(t.Context(), run)
	requireSuperseded(t, err)
	_, err = r.Record(t.Context(), run, []cyborg.Step{{Name: "program"}})
	requireSuperseded(t, err)
	requireSuperseded(t, r.End(t.Context(), run, cyborg.Outcome{Operation: work.Operation, State: cyborg.OperationSucceeded}))

	again := cyborg.Outcome{Operation: work.Operation, State: cyborg.OperationFailed}
	require.NoError(t, r.End(t.Context(), run, again), "the answer to its first end may have been lost")
	ended, err := r.Begin(t.Context(), run)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationFailed, ended.Ended)

	reset := db.Run{Operation: work.Operation, ID: "reset"}
	requireSuperseded(t, r.End(t.Context(), reset, again))
	_, err = r.Begin(t.Context(), reset)
	requireSuperseded(t, err)
	require.Contains(t, err.Error(), "has ended as failed")

	instead := db.Run{Operation: work.Operation, ID: "notification", Replaces: run.ID}
	ended, err = r.Begin(t.Context(), instead)
	require.NoError(t, err, "the run that notifies Nova of the end")
	require.Equal(t, cyborg.OperationFailed, ended.Ended)
}

// TestTakeover: of the runs that were started in the place of a closed one, the
// first has the operation, and neither the replaced run nor the others do.
func TestTakeover(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	work := r.begin(t, toAttach(a.UUID, onHost("h1")))

	_, err := r.Begin(t.Context(), db.Run{Operation: work.Operation, ID: "second", Replaces: "another run than the first"})
	requireSuperseded(t, err)

	var (
		all errgroup.Group
		won atomic.Int32
	)
	for range 8 {
		all.Go(func() error {
			run := db.Run{Operation: work.Operation, ID: uuid.NewString(), Replaces: runOf(work.Operation).ID}
			_, err := r.Begin(t.Context(), run)
			if err == nil {
				won.Add(1)
				_, err = r.Begin(t.Context(), run) // it may repeat it
			}
			if cyborg.ErrorKindOf(err) == cyborg.ErrSuperseded {
				return nil
			}
			return err
		})
	}
	require.NoError(t, all.Wait())
	require.EqualValues(t, 1, won.Load())

	requireSuperseded(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{Operation: work.Operation, State: cyborg.OperationSucceeded}))
}

// TestRunOfAnEarlierRelease: an operation that began before runs were recorded
// becomes the first run's that asks.
func TestRunOfAnEarlierRelease(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(r *records, run db.Run) error{
		"begin":  func(r *records, run db.Run) error { _, err := r.Begin(t.Context(), run); return err },
		"record": func(r *records, run db.Run) error { _, err := r.Record(t.Context(), run, nil); return err },
		"check":  func(r *records, run db.Run) error { _, err := r.CheckRun(t.Context(), run); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addHost(t, "h1", 1)
			a := h.ready(t, "card0")
			work := r.begin(t, toAttach(a.UUID, onHost("h1")))
			r.exec(t, "UPDATE operations SET run_id = '' WHERE id = $1", work.Operation)

			require.NoError(t, ask(r, db.Run{Operation: work.Operation, ID: "old"}))
			_, err := r.CheckRun(t.Context(), db.Run{Operation: work.Operation, ID: "other"})
			requireSuperseded(t, err)
			_, err = r.CheckRun(t.Context(), db.Run{Operation: work.Operation, ID: "old"})
			require.NoError(t, err)
		})
	}
}

// TestCheckRunNamesTheAgent: each step is sent to the agent that the host has,
// and not to one that it had when the operation began.
func TestCheckRunNamesTheAgent(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	r.exec(t, "UPDATE hosts SET instance = 'agent-1'")
	work := r.begin(t, toAttach(a.UUID, onHost("h1")))
	require.Equal(t, "agent-1", work.Instance)

	r.exec(t, "UPDATE hosts SET instance = 'agent-2'")
	to, err := r.CheckRun(t.Context(), runOf(work.Operation))
	require.NoError(t, err)
	require.Equal(t, "agent-2", to.Instance)
	require.Equal(t, work.Assignment, to.Assignment)

	_, err = r.CheckRun(t.Context(), runOf(uuid.New()))
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))
}
