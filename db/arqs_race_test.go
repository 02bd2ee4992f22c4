package db_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// TestL2OneBindWins: of many binds of the same requests, for one instance or
// for many, through several processes, one gets all handles and the others get
// none.
func TestL2OneBindWins(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	a, b := h.ready(t, "card0"), h.ready(t, "card1")
	other := openStore(t, r.url, defaults())
	r.profile(t, "two", map[string]string{"resources:FPGA": "2"})
	arqs, same := r.request(t, "two"), vm()

	const asked = 100
	var (
		wg  sync.WaitGroup
		won atomic.Int32
	)

	for i := range asked {
		wg.Go(func() {
			store, provider, who := r.Store, a.ProviderUUID, same
			if i%2 == 1 {
				store, provider = other, b.ProviderUUID
			}
			if i%3 == 0 {
				who = vm()
			}

			_, err := store.Admit(t.Context(), toBind("h1", who, provider, arqs...))
			switch cyborg.ErrorKindOf(err) {
			case "":
				won.Add(1)
			case cyborg.ErrClaimed:
			default:
				t.Error(err)
			}
		})
	}

	wg.Wait()
	require.EqualValues(t, 1, won.Load())
	require.Equal(t, 2, scalar[int](t, r, "SELECT count(*) FROM attach_handles WHERE holder_kind IS NOT NULL"))
	require.Equal(t, 1, scalar[int](t, r, "SELECT count(*) FROM operations WHERE kind = 'bind'"))
}

// TestL2OneBindOfAnInstance: of many binds of different requests for one
// instance, on several hosts, one is admitted.
func TestL2OneBindOfAnInstance(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	first, second := r.addHost(t, "h1", 1).ready(t, "card0"), r.addHost(t, "h2", 1).ready(t, "card0")
	r.profile(t, "one", one())
	who := vm()

	var (
		wg  sync.WaitGroup
		won atomic.Int32
	)

	for i := range 40 {
		arq, host, provider := r.request(t, "one")[0], "h1", first.ProviderUUID
		if i%2 == 1 {
			host, provider = "h2", second.ProviderUUID
		}

		wg.Go(func() {
			_, err := r.Admit(t.Context(), toBind(host, who, provider, arq))
			switch cyborg.ErrorKindOf(err) {
			case "":
				won.Add(1)
			case cyborg.ErrInvalid, cyborg.ErrNotFound: // the instance has requests already
			default:
				t.Error(err)
			}
		})
	}

	wg.Wait()
	require.EqualValues(t, 1, won.Load())
}

// TestConcurrentARQOperations lets hundreds of instances bind, unbind and be
// deleted at once on few handles, through several processes, some of them in
// the middle of a bind. No handle leaks or has two holders, and requests and
// handles agree.
func TestConcurrentARQOperations(t *testing.T) {
	t.Parallel()
	const instances = 240
	r := newRecords(t)
	h := r.addHost(t, "h1", 3)

	var accelerators []*cyborg.Accelerator
	for _, name := range []string{"card0", "card1", "card2"} {
		accelerators = append(accelerators, h.ready(t, name))
	}

	r.profile(t, "one", one())
	r.profile(t, "two", map[string]string{"resources:FPGA": "2"})
	stores := []*db.Store{r.Store, openStore(t, r.url, defaults()), openStore(t, r.url, defaults())}
	limit := make(chan struct{}, 24) // more lives would only wait for connections

	var (
		wg    sync.WaitGroup
		bound atomic.Int32
	)

	for i := range instances {
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()

			live := life{t: t, store: stores[i%len(stores)], instance: uuid.New(), on: accelerators[i%len(accelerators)], held: r.heldBy}
			live.profile = []string{"one", "two"}[i%2]
			if live.holder = instance(live.instance.String()); i%5 == 0 {
				live.holder.Kind = cyborg.HolderService
			}

			if live.run() {
				bound.Add(1)
			}
		})
	}

	wg.Go(func() { // an operation that locks the whole host runs among them
		for i := range 30 {
			h.content.Backends[0].Devices[0].Model = fmt.Sprint("F", i)
			h.report(t)
		}
	})

	wg.Wait()
	require.Positive(t, bound.Load())
	r.requireAgreed(t)
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM arqs"))
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM attach_handles WHERE holder_kind IS NOT NULL"))
}

// heldBy counts the handles that a holder has.
func (r *records) heldBy(t *testing.T, holder uuid.UUID) int {
	t.Helper()
	return scalar[int](t, r, "SELECT count(*) FROM attach_handles WHERE holder_id = $1", holder.String())
}

// life is the life of one instance, or of a service under its name.
type life struct {
	t        *testing.T
	store    *db.Store
	instance uuid.UUID
	holder   cyborg.Holder // the instance, or a service under its name
	profile  string
	on       *cyborg.Accelerator
	held     func(t *testing.T, holder uuid.UUID) int
}

// run creates the instance's requests, binds them, perhaps unbinds them, and
// deletes them. It reports whether they were bound.
func (l life) run() bool {
	ctx := l.t.Context()
	arqs, err := l.store.CreateARQs(ctx, l.profile, alice())
	if err != nil {
		l.t.Error(err)
		return false
	}

	bound := l.bind(arqs)
	if bound && l.held(l.t, l.instance) != len(arqs) {
		l.t.Errorf("%s is bound to %d handles, not %d", l.instance, l.held(l.t, l.instance), len(arqs))
	}
	if bound && rand.N(3) == 0 {
		l.unbind(arqs)
	}

	d := db.ARQDeletion{AllowBound: true}
	for _, a := range arqs {
		d.UUIDs = append(d.UUIDs, a.UUID)
	}

	if _, err := l.store.DeleteARQs(ctx, d, alice()); err != nil {
		l.t.Error(err)
	}
	return bound
}

// bind binds the requests, now and then with a deletion in between. It reports
// whether they stay bound.
func (l life) bind(arqs []cyborg.ARQ) bool {
	out, err := l.store.Admit(l.t.Context(), toBind(l.on.Host, l.holder, l.on.ProviderUUID, arqs...))
	switch cyborg.ErrorKindOf(err) {
	case "":
	case cyborg.ErrNotFound, cyborg.ErrClaimed: // none is free, or somebody unbinds
		return false
	default:
		l.t.Error(err)
		return false
	}

	deleted := rand.N(4) == 0
	if deleted {
		if _, err := l.store.DeleteARQs(l.t.Context(), db.ARQDeletion{Instance: l.instance, AllowBound: true}, alice()); err != nil {
			l.t.Error(err)
		}
	}

	state := cyborg.OperationSucceeded
	if _, err := l.store.Begin(l.t.Context(), runOf(out.Operation.ID)); err != nil {
		state = cyborg.OperationCancelled
	}

	l.end(out.Operation.ID, state)
	return state == cyborg.OperationSucceeded && (!deleted || l.holder.Kind == cyborg.HolderService) // the deletion is by instance, and does not reach a service
}

// unbind unbinds the requests, unless another operation has claimed their card.
func (l life) unbind(arqs []cyborg.ARQ) {
	out, err := l.store.Admit(l.t.Context(), toUnbind(arqs...))
	if cyborg.ErrorKindOf(err) == cyborg.ErrClaimed { // another instance is being unbound from the same card
		return
	}

	if err == nil {
		_, err = l.store.Begin(l.t.Context(), runOf(out.Operation.ID))
	}
	if err != nil {
		l.t.Error(err)
		return
	}
	l.end(out.Operation.ID, cyborg.OperationSucceeded)
}

// end ends an operation.
func (l life) end(operation uuid.UUID, state cyborg.OperationState) {
	outcome := cyborg.Outcome{Operation: operation, State: state}
	if state != cyborg.OperationSucceeded {
		outcome.Error = cyborg.Errorf(cyborg.ErrCancelled, "it was deleted")
	}
	if err := l.store.End(l.t.Context(), runOf(operation), outcome); err != nil {
		l.t.Error(err)
	}
}

// TestBindsOfOneHostRunConcurrently: a bind, unbind or deletion on one
// accelerator does not wait for those on another accelerator of the host. It
// does wait for those on the same accelerator and for operations on the whole
// host.
func TestBindsOfOneHostRunConcurrently(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	busy, other := h.ready(t, "card0"), h.ready(t, "card1")
	r.profile(t, "one", one())
	r.profile(t, "image", map[string]string{"resources:FPGA": "1", "accel:bitstream_id": uuid.NewString()})
	bound := r.request(t, "one")[0]
	r.do(t, toBind("h1", vm(), busy.ProviderUUID, bound), cyborg.OperationSucceeded)

	slowly := func() pgx.Tx { // a slow bind on card0
		tx, err := r.sql.Begin(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
		_, err = tx.Exec(t.Context(), `
			SELECT pg_advisory_xact_lock_shared(hashtextextended('h1', 0)), pg_advisory_xact_lock(hashtextextended('provider/' || $1, 0))`,
			busy.ProviderUUID.String())
		require.NoError(t, err)
		return tx
	}

	tx := slowly()
	arq, who := r.request(t, "one")[0], uuid.New()
	r.do(t, toBind("h1", instance(who.String()), other.ProviderUUID, arq), cyborg.OperationSucceeded)
	_, err := r.DeleteARQs(t.Context(), db.ARQDeletion{Instance: who, AllowBound: true}, alice())
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(t.Context()))

	admit := func(a db.Admission) func() error {
		return func() error {
			_, err := r.Admit(t.Context(), a)
			return err
		}
	}
	service := cyborg.Holder{Kind: cyborg.HolderService, ID: "infrastructure"}
	// Each alone: behind one that waits for the whole host, the others would wait, too.
	for name, change := range map[string]func() error{
		"bind":   admit(toBind("h1", vm(), busy.ProviderUUID, r.request(t, "one")[0])),
		"host":   admit(toBind("h1", service, other.ProviderUUID, r.request(t, "one")[0])),
		"image":  admit(toBind("h1", vm(), other.ProviderUUID, r.request(t, "image")[0])),
		"attach": admit(toAttach(other.UUID, onHost("h1"))),
		"delete": func() error {
			_, err := r.DeleteARQs(t.Context(), db.ARQDeletion{UUIDs: []uuid.UUID{bound.UUID}, AllowBound: true}, alice())
			return err
		},
	} {
		tx, ended := slowly(), make(chan error, 1)
		go func() { ended <- change() }()
		require.Eventually(t, func() bool {
			return len(ended) > 0 || scalar[int](t, r, `
				SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == 1
		}, 5*time.Minute, 10*time.Millisecond)
		require.Empty(t, ended, "%s did not wait", name)

		require.NoError(t, tx.Rollback(t.Context()))
		switch err := <-ended; cyborg.ErrorKindOf(err) {
		case "", cyborg.ErrNotFound, cyborg.ErrClaimed, cyborg.ErrInUse, cyborg.ErrChanged: // one came before another
		default:
			require.NoError(t, err, name)
		}
	}
}

// TestBindLocksItsRequestsFirst: the end of a bind locks its request before it
// locks a row, because a transaction about another host may hold the request's
// lock.
func TestBindLocksItsRequestsFirst(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	accelerator := r.addHost(t, "h1", 1).ready(t, "card0")
	r.profile(t, "one", one())
	arq := r.request(t, "one")[0]
	work := r.begin(t, toBind("h1", cyborg.Holder{Kind: cyborg.HolderService, ID: "infrastructure"}, accelerator.ProviderUUID, arq))

	tx, err := r.sql.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	_, err = tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock(hashtextextended('arq/' || $1, 0))", arq.UUID.String())
	require.NoError(t, err)

	ended := make(chan error, 1)
	go func() {
		ended <- r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{Operation: work.Operation, State: cyborg.OperationSucceeded})
	}()

	require.Eventually(t, func() bool {
		return len(ended) > 0 || scalar[int](t, r, `
			SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == 1
	}, 5*time.Minute, time.Millisecond)
	require.Empty(t, ended, "it did not wait")
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, <-ended)
}
