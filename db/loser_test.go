package db_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// TestConflictNamesTheWinningOperation: a caller that comes too late learns
// which operation was faster, whatever the conflict is about.
func TestConflictNamesTheWinningOperation(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 7)

	refused := func(t *testing.T, a db.Admission, kind cyborg.ErrorKind, by uuid.UUID) {
		t.Helper()
		_, err := r.Admit(t.Context(), a)
		requireKind(t, kind, err)
		require.Equal(t, by, cyborg.AsError(err).Operation, "%v", err)
	}
	provision := func(local, name string) cyborg.Work {
		return r.do(t, toProvision(cyborg.ProvisionRequest{Accelerator: h.accelerator(t, local).UUID, Name: name}), cyborg.OperationSucceeded)
	}
	named := func(local, name string) db.Admission {
		return toProvision(cyborg.ProvisionRequest{Accelerator: h.accelerator(t, local).UUID, Name: name})
	}

	// An accelerator that is in service already, under this name or another.
	first := provision("card0", "first")
	a := h.accelerator(t, "card0")
	refused(t, toProvision(cyborg.ProvisionRequest{Name: "first"}), cyborg.ErrNameTaken, first.Operation)
	refused(t, toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID}), cyborg.ErrChanged, first.Operation)
	refused(t, named("card1", "first"), cyborg.ErrNameTaken, first.Operation)

	// A name that is still being given.
	giving := r.begin(t, named("card1", "second"))
	refused(t, named("card2", "second"), cyborg.ErrNameTaken, giving.Operation)
	refused(t, toProvision(cyborg.ProvisionRequest{Name: "second"}), cyborg.ErrClaimed, giving.Operation)
	r.end(t, giving, cyborg.OperationFailed)
	refused(t, toAttach(h.accelerator(t, "card1").UUID, onHost("h1")), cyborg.ErrChanged, giving.Operation) // it left card1 inactive
	refused(t, named("card2", h.accelerator(t, "card1").Name), cyborg.ErrNameTaken, giving.Operation)       // it gave the name back
	refused(t, named("card2", h.accelerator(t, "card3").Name), cyborg.ErrNameTaken, uuid.Nil)               // this name was never given

	// An accelerator that is held: the last handle, a second one for the same
	// holder, all handles for a program.
	one := r.do(t, toAttach(a.UUID, instance("vm1")), cyborg.OperationSucceeded)
	two := r.do(t, toAttach(a.UUID, instance("vm2")), cyborg.OperationSucceeded)
	refused(t, toAttach(a.UUID, instance("vm3")), cyborg.ErrInUse, one.Operation)
	refused(t, toAttach(a.UUID, instance("vm2")), cyborg.ErrInUse, two.Operation)
	refused(t, toProgram(a.UUID), cyborg.ErrInUse, one.Operation)

	vm1 := instance("vm1")
	r.do(t, toDetach(a.UUID, &vm1), cyborg.OperationSucceeded)
	refused(t, toProgram(a.UUID), cyborg.ErrInUse, two.Operation)
	refused(t, toConfigure(cyborg.ConfigureRequest{Host: "h1", Backend: "fake", Action: cyborg.ConfigureUninstall}), cyborg.ErrInUse, two.Operation)

	// An accelerator in error, which is fenced.
	provision("card4", "broken")
	broken := r.do(t, toProgram(h.accelerator(t, "card4").UUID), cyborg.OperationNeedsOperator)
	refused(t, toAttach(h.accelerator(t, "card4").UUID, onHost("h1")), cyborg.ErrChanged, broken.Operation)

	// Nothing that fits is left, because somebody has got what came nearest.
	want := cyborg.DeviceType("GPU")
	h.devices()[5].Type, h.devices()[5].Deployables[0].Specs.DeviceType = want, want
	h.report(t)
	best := r.begin(t, toProvision(cyborg.ProvisionRequest{Name: "gpu", Specs: cyborg.SpecsPatch{DeviceType: &want}}))
	another := toProvision(cyborg.ProvisionRequest{Name: "gpu2", Specs: cyborg.SpecsPatch{DeviceType: &want}})
	refused(t, another, cyborg.ErrNoFit, best.Operation)
	r.end(t, best, cyborg.OperationSucceeded)
	refused(t, another, cyborg.ErrNoFit, best.Operation)
}

// TestALateConflictNamesTheOperation: a claim that is granted to another
// operation in the very moment is named, though the name that was asked for has
// just been given away as well.
func TestALateConflictNamesTheOperation(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	a, b := h.accelerator(t, "card0"), h.accelerator(t, "card1")
	op := r.admit(t, toProvision(cyborg.ProvisionRequest{Accelerator: b.UUID}))

	// It does not lock the host, so it comes between the look and the claim.
	other, err := r.sql.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = other.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = other.Exec(t.Context(), "INSERT INTO claims (deployable_uuid, operation_id) VALUES ($1, $2)", a.UUID, op.ID)
	require.NoError(t, err)
	_, err = other.Exec(t.Context(), "UPDATE deployables SET accelerator = 'wanted' WHERE uuid = $1", b.UUID)
	require.NoError(t, err)

	refused := make(chan error, 1)
	go func() {
		_, err := r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID, Name: "wanted"}))
		refused <- err
	}()
	require.Eventually(t, func() bool {
		return scalar[int](t, r, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 1
	}, 5*time.Minute, time.Millisecond)
	require.NoError(t, other.Commit(t.Context()))

	err = <-refused
	requireKind(t, cyborg.ErrClaimed, err)
	require.Equal(t, op.ID, cyborg.AsError(err).Operation)
}

// TestConcurrentUsesOfOneName: where many give the same name to different
// accelerators at once, one wins, and the others learn which operation has won.
func TestConcurrentUsesOfOneName(t *testing.T) {
	t.Parallel()
	const takers = 24
	r := newRecords(t)
	other := openStore(t, r.url, defaults())

	requests := make([]db.Admission, takers)
	for i := range requests {
		h := r.addHost(t, "h"+string(rune('a'+i)), 1)
		requests[i] = toProvision(cyborg.ProvisionRequest{Name: "wanted"})
		if i%2 == 0 {
			edit(&requests[i], func(r *cyborg.ProvisionRequest) { r.Accelerator = h.accelerator(t, "card0").UUID })
		}
	}

	var wg sync.WaitGroup
	errs := make([]error, takers)
	for i := range requests {
		wg.Go(func() {
			store := []*db.Store{r.Store, other}[i%2]
			_, errs[i] = store.Admit(t.Context(), requests[i])
		})
	}
	wg.Wait()

	winner := uuid.Nil
	for i, err := range errs {
		if err == nil {
			require.Equal(t, uuid.Nil, winner, "two have won")
			winner = requests[i].ID
		}
	}

	require.NotEqual(t, uuid.Nil, winner)
	for i, err := range errs {
		if err != nil {
			require.Contains(t, []cyborg.ErrorKind{cyborg.ErrNameTaken, cyborg.ErrClaimed}, cyborg.ErrorKindOf(err), "request %d: %v", i, err)
			require.Equal(t, winner, cyborg.AsError(err).Operation, "request %d: %v", i, err)
		}
	}
}
