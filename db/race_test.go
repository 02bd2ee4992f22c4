package db_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// TestConcurrentAdmissionsHaveOneWinner admits hundreds of operations on one
// accelerator at once, from two processes. One is admitted, and all others are
// told that it has a claim.
func TestConcurrentAdmissionsHaveOneWinner(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	h.content.Backends[0].Devices[0].Deployables = []cyborg.DeployableReport{deployable("card0", 1), deployable("sibling", 1)}
	h.report(t)
	a, sibling := h.ready(t, "card0"), h.ready(t, "sibling")
	other := openStore(t, r.url, defaults())

	const asked = 300
	var (
		wg  sync.WaitGroup
		won atomic.Int32
	)

	for i := range asked {
		wg.Go(func() {
			store := r.Store
			if i%2 == 1 {
				store = other
			}

			var request db.Admission
			switch i % 3 {
			case 0:
				request = toAttach(a.UUID, instance(fmt.Sprint("vm", i)))
			case 1: // also claims the sibling
				request = toProgram(a.UUID)
			default: // through the sibling, claims a as well
				request = toProgram(sibling.UUID)
			}

			_, err := store.Admit(t.Context(), request)
			if err == nil {
				won.Add(1)
			} else if cyborg.ErrorKindOf(err) != cyborg.ErrClaimed {
				t.Error(err)
			}
		})
	}

	wg.Wait()
	require.EqualValues(t, 1, won.Load())
	require.Equal(t, 1, scalar[int](t, r, "SELECT count(*) FROM operations WHERE open"))
}

// TestLastHandle lets many attach, detach and program in a loop, to the end of
// each operation. There are never more holders than handles, and nobody
// programs what somebody holds.
func TestLastHandle(t *testing.T) {
	t.Parallel()
	const workers, rounds = 12, 8
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")

	var (
		wg       sync.WaitGroup
		held     atomic.Int32
		attached atomic.Int32
	)

	for w := range workers {
		wg.Go(func() {
			vm := instance(fmt.Sprint("vm", w))
			for range rounds {
				switch raceOne(t, r, toAttach(a.UUID, vm)) {
				case cyborg.OperationSucceeded:
					attached.Add(1)
					if n := held.Add(1); n > 2 {
						t.Errorf("%d hold two handles", n)
					}
				default:
					raceOne(t, r, toProgram(a.UUID))
					continue
				}

				held.Add(-1)
				for raceOne(t, r, toDetach(a.UUID, &vm)) != cyborg.OperationSucceeded {
					if t.Failed() {
						return
					}
				}
			}
		})
	}

	wg.Wait()
	require.Positive(t, attached.Load())
	require.Empty(t, r.accelerator(t, a.UUID).Holders())
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM claims"))
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM operations WHERE open"))
}

// raceOne takes one operation to its end. It returns the state in which the
// operation ended, or "" where it was not admitted.
func raceOne(t *testing.T, r *records, a db.Admission) cyborg.OperationState {
	t.Helper()
	out, err := r.Admit(t.Context(), a)
	switch cyborg.ErrorKindOf(err) {
	case "":
	case cyborg.ErrClaimed, cyborg.ErrInUse:
		return ""
	default:
		t.Error(err)
		return ""
	}

	work, err := r.Begin(t.Context(), runOf(out.Operation.ID))
	if err != nil {
		t.Error(err)
		return ""
	}

	if work.Kind == cyborg.OperationAttach && (len(work.Handles) != 1 || work.Handles[0].Holder != a.Request.(cyborg.AttachRequest).Holder) {
		t.Errorf("told to attach %v", work.Handles)
	}

	if err := r.End(t.Context(), runOf(out.Operation.ID), cyborg.Outcome{Operation: out.Operation.ID, State: cyborg.OperationSucceeded}); err != nil {
		t.Error(err)
	}
	return cyborg.OperationSucceeded
}

// TestConcurrentRequestsWithOneKey sends one request many times at once. There
// is one operation, and every caller gets it.
func TestConcurrentRequestsWithOneKey(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	r.addHost(t, "h1", 8)

	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		ids   = map[string]int{}
		fresh int
	)

	for range 20 {
		wg.Go(func() {
			a := toProvision(cyborg.ProvisionRequest{Name: "x"})
			a.IdempotencyKey, a.Fingerprint = "k", "f"
			out, err := r.Admit(t.Context(), a)
			if err != nil {
				t.Error(err)
				return
			}

			mu.Lock()
			defer mu.Unlock()
			ids[out.Operation.ID.String()]++
			if !out.Repeated {
				fresh++
			}
		})
	}

	wg.Wait()
	require.Len(t, ids, 1)
	require.Equal(t, 1, fresh)
}

// TestOneKeyOnTwoHostsAtOnce: two admissions with one idempotency key that share
// no lock. One is admitted, the other one is a repeat of it or, being another
// request, refused; and nothing is logged as a fault.
func TestOneKeyOnTwoHostsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	var log bytes.Buffer
	store, err := db.Open(t.Context(), r.url, defaults(), slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})))
	require.NoError(t, err)
	t.Cleanup(store.Close)

	var admissions []db.Admission
	for _, host := range []string{"h1", "h2"} {
		a := toAttach(r.addHost(t, host, 1).ready(t, "card0").UUID, onHost(host))
		a.IdempotencyKey, a.Fingerprint = "k", host
		admissions = append(admissions, a)
	}

	// Both have looked for the key when the first one can be written.
	blocker, err := r.sql.Begin(t.Context())
	require.NoError(t, err)
	defer blocker.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it was committed
	_, err = blocker.Exec(t.Context(), "LOCK TABLE operations IN SHARE MODE")
	require.NoError(t, err)

	var both sync.WaitGroup
	errs := make([]error, len(admissions))
	for i, a := range admissions {
		both.Go(func() { _, errs[i] = store.Admit(t.Context(), a) })
	}
	require.Eventually(t, func() bool { return r.blocked(t) == len(admissions) }, time.Minute, time.Millisecond)
	require.NoError(t, blocker.Commit(t.Context()))
	both.Wait()

	if errs[0] != nil {
		errs[0], errs[1] = errs[1], errs[0]
	}
	require.NoError(t, errs[0])
	requireKind(t, cyborg.ErrInvalid, errs[1], "was used for another request")
	require.Empty(t, log.String())
}

// TestConcurrentBeginAndEnd begins and ends an operation from several sides at
// once, as Temporal's retries may. All get the same work, and the first end
// counts.
func TestConcurrentBeginAndEnd(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")
	op := r.admit(t, toAttach(a.UUID, onHost("h1")))

	var wg sync.WaitGroup
	handles := make([]cyborg.Work, 10)
	for i := range handles {
		wg.Go(func() {
			var err error
			if handles[i], err = r.Begin(t.Context(), runOf(op.ID)); err != nil {
				t.Error(err)
			}
		})
	}

	wg.Wait()
	for _, work := range handles {
		require.Equal(t, handles[0], work)
	}

	states := []cyborg.OperationState{cyborg.OperationSucceeded, cyborg.OperationFailed}
	for i := range 10 {
		wg.Go(func() {
			err := r.End(t.Context(), runOf(op.ID), cyborg.Outcome{Operation: op.ID, State: states[i%2]})
			if err != nil && cyborg.ErrorKindOf(err) != cyborg.ErrSuperseded { // another one ended it otherwise
				t.Error(err)
			}
		})
	}
	wg.Wait()

	ended, err := r.Operation(t.Context(), op.ID)
	require.NoError(t, err)
	found := r.accelerator(t, a.UUID)
	require.Equal(t, ended.State == cyborg.OperationSucceeded, len(found.Holders()) == 1)
}

// TestOneBackendManyInstalls: a backend is configured by one operation at a
// time, even while it has no devices whose claims could keep others away.
func TestOneBackendManyInstalls(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	r.addHost(t, "h1", 1)
	stores := []*db.Store{r.Store, openStore(t, r.url, defaults())}
	request := func(action cyborg.ConfigureAction) db.Admission {
		return toConfigure(cyborg.ConfigureRequest{Host: "h1", Backend: "new", Driver: "fake", Action: action})
	}

	var (
		wg       sync.WaitGroup
		requests [20]db.Admission
		errs     [20]error
	)

	for i := range requests {
		requests[i] = request(cyborg.ConfigureInstall)
		wg.Go(func() { _, errs[i] = stores[i%2].Admit(t.Context(), requests[i]) })
	}
	wg.Wait()

	won := slices.Index(errs[:], nil)
	require.GreaterOrEqual(t, won, 0)
	for i, err := range errs {
		if i != won {
			requireKind(t, cyborg.ErrClaimed, err, `backend "new"`)
			require.Equal(t, requests[won].ID, cyborg.AsError(err).Operation)
		}
	}

	configured := func(id uuid.UUID, state cyborg.BackendState) {
		_, err := r.Begin(t.Context(), runOf(id))
		require.NoError(t, err)
		require.NoError(t, r.End(t.Context(), runOf(id), cyborg.Outcome{
			Operation: id, State: cyborg.OperationSucceeded, Result: cyborg.JSONObject{"state": string(state)},
		}))
	}

	configured(requests[won].ID, cyborg.BackendOK)
	uninstall := r.admit(t, request(cyborg.ConfigureUninstall))
	configured(uninstall.ID, cyborg.BackendDisabled)

	_, err := r.Admit(t.Context(), request(cyborg.ConfigureUninstall))
	requireKind(t, cyborg.ErrChanged, err, "uninstalled already")
	require.Equal(t, uninstall.ID, cyborg.AsError(err).Operation)
}
