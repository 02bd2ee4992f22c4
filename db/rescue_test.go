package db_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// toRescue is the admission of a rescue of a host's instances.
func toRescue(host string, once bool) db.Admission {
	a := admission()
	a.Request = cyborg.RescueRequest{Host: host, Once: once, Within: time.Minute}
	return a
}

// rescuable is a host that has booted since two instances were bound there.
func rescuable(t *testing.T) (r *records, h *host, instances []uuid.UUID) {
	t.Helper()
	r = newRecords(t)
	h = r.addHost(t, "h1", 2)
	r.profile(t, "one", one())
	instances = []uuid.UUID{uuid.New(), uuid.New()}
	r.bound(t, h.ready(t, "card0"), instances[0])
	r.bound(t, h.ready(t, "card1"), instances[1])
	h.reboot(t, 0)
	return r, h, instances
}

// TestRescue: an operation takes each instance of a host once. The instances
// that it has rebooted no longer count as lost when it has ended.
func TestRescue(t *testing.T) {
	t.Parallel()
	r, _, instances := rescuable(t)
	hosts, err := r.UnrescuedHosts(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, []string{"h1"}, hosts)

	work := r.begin(t, toRescue("h1", true))
	require.Len(t, work.Rescues, 2)
	require.Equal(t, instances[0], work.Rescues[0].Instance)
	require.Equal(t, time.Minute, work.Within)
	op, err := r.Operation(t.Context(), work.Operation)
	require.NoError(t, err)
	require.Contains(t, op.Subjects, cyborg.Subject{Kind: cyborg.SubjectHost, ID: "h1"})

	_, err = r.Admit(t.Context(), toRescue("h1", false))
	requireKind(t, cyborg.ErrClaimed, err, work.Operation.String())
	again, err := r.Admit(t.Context(), toRescue("h1", true))
	require.NoError(t, err)
	require.True(t, again.NothingToDo)

	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationFailed, Error: cyborg.Errorf(cyborg.ErrChanged, "one is left"),
		Rescued: []cyborg.RescuedInstance{
			{Rescue: work.Rescues[0], Outcome: cyborg.RescueRebooted}, {Rescue: work.Rescues[1], Outcome: cyborg.RescueSkipped},
		},
	}))

	counted, err := r.DriftOfInstances(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, counted[cyborg.DriftLostAtBoot])
	r.requireAgreed(t)

	hosts, err = r.UnrescuedHosts(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, hosts, "no host is rescued a second time without a request")
	second := r.begin(t, toRescue("h1", false))
	require.Len(t, second.Rescues, 1, "a request rescues it again")
	require.Equal(t, instances[1], second.Rescues[0].Instance)
	require.NoError(t, r.End(t.Context(), runOf(second.Operation), cyborg.Outcome{
		Operation: second.Operation, State: cyborg.OperationSucceeded, Rescued: []cyborg.RescuedInstance{{Rescue: second.Rescues[0], Outcome: cyborg.RescueRebooted}},
	}))

	nothing, err := r.Admit(t.Context(), toRescue("h1", false))
	require.NoError(t, err)
	require.True(t, nothing.NothingToDo)

	_, err = r.Admit(t.Context(), toRescue("h9", false))
	requireKind(t, cyborg.ErrNotFound, err, "h9")
}

// TestRescueOfAnEarlierBoot: a host that boots again after an instance was
// rebooted may have lost its accelerators again.
func TestRescueOfAnEarlierBoot(t *testing.T) {
	t.Parallel()
	r, h, _ := rescuable(t)
	work := r.begin(t, toRescue("h1", true))
	h.reboot(t, 0)
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{Operation: work.Operation, State: cyborg.OperationSucceeded, Rescued: []cyborg.RescuedInstance{
		{Rescue: work.Rescues[0], Outcome: cyborg.RescueRebooted}, {Rescue: work.Rescues[1], Outcome: cyborg.RescueRebooted},
	}}))
	require.Len(t, r.begin(t, toRescue("h1", true)).Rescues, 2)
}

// TestRescueOnce: many conductors that ask at once admit one operation.
func TestRescueOnce(t *testing.T) {
	t.Parallel()
	r, _, _ := rescuable(t)
	var (
		group    sync.WaitGroup
		mu       sync.Mutex
		admitted int
	)

	for range 16 {
		group.Go(func() {
			done, err := r.Admit(t.Context(), toRescue("h1", true))
			mu.Lock()
			defer mu.Unlock()

			if err == nil && !done.NothingToDo {
				admitted++
			}
			if err != nil {
				t.Errorf("%v", err)
			}
		})
	}

	group.Wait()
	require.Equal(t, 1, admitted)
	require.Equal(t, 2, scalar[int](t, r, "SELECT count(*) FROM rescues"))
}

// TestRescuesAreForgotten: rescues are pruned like operations, but not while
// the instance may still be without its accelerators, because it would be
// rebooted a second time.
func TestRescuesAreForgotten(t *testing.T) {
	t.Parallel()
	r, _, _ := rescuable(t)
	work := r.begin(t, toRescue("h1", true))
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationFailed, Error: cyborg.Errorf(cyborg.ErrChanged, "one is left"),
		Rescued: []cyborg.RescuedInstance{{Rescue: work.Rescues[0], Outcome: cyborg.RescueRebooted}, {Rescue: work.Rescues[1], Outcome: cyborg.RescueSkipped}},
	}))

	r.exec(t, "UPDATE rescues SET asked_at = now() - interval '2 hours'")
	_, err := r.Prune(t.Context(), db.Retention{Operations: time.Hour})
	require.NoError(t, err)
	require.Equal(t, work.Rescues[1].Instance.String(), scalar[string](t, r, "SELECT instance_uuid::text FROM rescues"))
}

// TestOwnRescue: only the run that has a running rescue may have its instances
// rebooted, and no others.
func TestOwnRescue(t *testing.T) {
	t.Parallel()
	r, _, instances := rescuable(t)
	admitted, err := r.Admit(t.Context(), toRescue("h1", true))
	require.NoError(t, err)
	run := runOf(admitted.Operation.ID)
	_, _, err = r.OwnRescue(t.Context(), run, instances[0])
	requireKind(t, cyborg.ErrForbidden, err, instances[0].String())

	work, err := r.Begin(t.Context(), run)
	require.NoError(t, err)
	for _, rescue := range work.Rescues {
		lost, host, err := r.OwnRescue(t.Context(), run, rescue.Instance)
		require.NoError(t, err)
		require.Equal(t, rescue, lost)
		require.Equal(t, "h1", host)
	}

	for _, ask := range []struct {
		run      db.Run
		instance uuid.UUID
	}{
		{run, uuid.New()},
		{db.Run{Operation: run.Operation, ID: "another"}, instances[0]},
		{db.Run{ID: run.ID}, instances[0]},
	} {
		_, _, err := r.OwnRescue(t.Context(), ask.run, ask.instance)
		requireKind(t, cyborg.ErrForbidden, err, ask.instance.String())
	}

	r.end(t, work, cyborg.OperationFailed)
	_, _, err = r.OwnRescue(t.Context(), run, instances[0])
	requireKind(t, cyborg.ErrForbidden, err, instances[0].String())
}
