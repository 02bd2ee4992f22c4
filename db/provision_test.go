package db_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestProvisionByName: the name of an inactive accelerator chooses that one, if
// it fits the request.
func TestProvisionByName(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	op := r.admit(t, toProvision(cyborg.ProvisionRequest{Name: "h1_card1"}))
	require.Equal(t, h.accelerator(t, "card1").UUID.String(), op.Subjects[0].ID)

	two := 2
	_, err := r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Name: "h1_card0", Host: "h2"}))
	requireKind(t, cyborg.ErrNoFit, err, "host is h1, not h2")
	_, err = r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Name: "h1_card0", Specs: cyborg.SpecsPatch{Num: new(3)}}))
	requireKind(t, cyborg.ErrNoFit, err, "num is 2, less than 3")
	r.admit(t, toProvision(cyborg.ProvisionRequest{Name: "h1_card0", Host: "h1", Specs: cyborg.SpecsPatch{Num: &two}}))
}

// TestProvisionByFit: without a name of an accelerator, the smallest one that
// fits is chosen, on a live host before a silent one. Where none fits, the
// error says why the nearest does not.
func TestProvisionByFit(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	_, err := r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Name: "any"}))
	requireKind(t, cyborg.ErrNoFit, err, "no accelerator yet")

	silent := r.addHost(t, "a-silent", 1)
	h1, h2 := r.addHost(t, "h1", 3), r.addHost(t, "h2", 1)
	parts := h1.content.Backends[0].Devices
	parts[0].Deployables[0] = deployable("card0", 4)
	parts[2].Deployables[0].Specs.Type = "crypto"
	parts[2].Deployables[0].Specs.Capability = cyborg.JSONObject{"aes": map[string]any{"gbps": 40}, "mode": "gcm"}
	h1.report(t)
	silent.fall(t)

	chosen := func(request cyborg.ProvisionRequest) string {
		t.Helper()
		op := r.admit(t, toProvision(request))
		a := r.accelerator(t, uuid.MustParse(op.Subjects[0].ID))
		if request.Name != "" {
			require.Equal(t, request.Name, a.Name)
		}
		require.NoError(t, r.End(t.Context(), runOf(op.ID), cyborg.Outcome{Operation: op.ID, State: cyborg.OperationFailed}))
		return a.ProviderName
	}
	crypto := "crypto"
	tree := func(gbps any) cyborg.SpecsPatch {
		return cyborg.SpecsPatch{Capability: cyborg.JSONObject{"aes": map[string]any{"gbps": gbps}}}
	}

	require.Equal(t, "h1_card1", chosen(cyborg.ProvisionRequest{Name: "x"}), "on a live host, and no larger than need be")
	require.Equal(t, "h2_card0", chosen(cyborg.ProvisionRequest{Name: "x", Host: "h2"}))
	require.Equal(t, "a-silent_card0", chosen(cyborg.ProvisionRequest{Name: "x", Host: "a-silent"}), "rather than nothing")
	require.Equal(t, "h1_card0", chosen(cyborg.ProvisionRequest{Specs: cyborg.SpecsPatch{Num: new(3)}}))
	require.Equal(t, "h1_card2", chosen(cyborg.ProvisionRequest{Specs: cyborg.SpecsPatch{Type: &crypto}}))
	require.Equal(t, "h1_card2", chosen(cyborg.ProvisionRequest{Specs: tree(30)}))

	_, err = r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Name: "x", Specs: tree(50)}))
	requireKind(t, cyborg.ErrNoFit, err, "h1_card2", "gbps is 40, less than 50")

	gpu := cyborg.DeviceTypeGPU
	_, err = r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Name: "x", Host: "h2", Specs: cyborg.SpecsPatch{DeviceType: &gpu}}))
	requireKind(t, cyborg.ErrNoFit, err, "h2_card0", "device_type is FPGA, not GPU")
	require.Contains(t, cyborg.AsError(err).Hint, "No accelerator has this device type. There are FPGA.")
	fpga := cyborg.DeviceTypeFPGA
	_, err = r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Name: "x", Host: "h3", Specs: cyborg.SpecsPatch{DeviceType: &fpga}}))
	require.Contains(t, cyborg.AsError(err).Hint, "another host")
	_, err = r.Admit(t.Context(), toAttach(h1.accelerator(t, "card1").UUID, vm()))
	require.Contains(t, cyborg.AsError(err).Hint, "cyborg accelerator ready "+h1.accelerator(t, "card1").UUID.String())

	// The specs that an operator set count like those that the host reports.
	_, err = r.UpdateSpecs(t.Context(), h2.accelerator(t, "card0").UUID, cyborg.SpecsPatch{Type: &crypto}, 0, alice())
	require.NoError(t, err)
	require.Equal(t, "h2_card0", chosen(cyborg.ProvisionRequest{Host: "h2", Specs: cyborg.SpecsPatch{Type: &crypto}}))

	h2.ready(t, "card0")
	_, err = r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Host: "h2", Specs: cyborg.SpecsPatch{Num: new(2)}}))
	requireKind(t, cyborg.ErrNoFit, err, "h2_card0", "ready already")
}

// TestNoFitSuggestsTheRequestedType: the error names an accelerator of the
// requested type, even where there are many free ones of other types.
func TestNoFitSuggestsTheRequestedType(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 30)
	last := &h.content.Backends[0].Devices[29].Deployables[0]
	last.Specs.DeviceType, last.Protected = cyborg.DeviceTypeGPU, "the boot display"
	h.report(t)
	gpu := cyborg.DeviceTypeGPU
	_, err := r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Name: "x", Specs: cyborg.SpecsPatch{DeviceType: &gpu}}))
	requireKind(t, cyborg.ErrNoFit, err, "h1_card29", "the boot display")
}

// TestConcurrentProvisionsTakeDifferentOnes: where more accelerators are
// requested at once than there are, on several hosts, each is given once, and
// the other requests find none.
func TestConcurrentProvisionsTakeDifferentOnes(t *testing.T) {
	t.Parallel()
	const hosts, each, asked = 3, 8, 40
	r := newRecords(t)
	for i := range hosts {
		r.addHost(t, fmt.Sprintf("h%d", i), each)
	}
	other := openStore(t, r.url, defaults())

	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		taken = map[string]int{}
		noFit int
	)

	for i := range asked {
		wg.Go(func() {
			store := r.Store
			if i%2 == 1 {
				store = other
			}
			out, err := store.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Name: fmt.Sprintf("acc-%d", i)}))

			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				taken[out.Operation.Subjects[0].ID]++
			case cyborg.ErrorKindOf(err) == cyborg.ErrNoFit:
				noFit++
			default:
				t.Error(err)
			}
		})
	}

	wg.Wait()
	require.Len(t, taken, hosts*each)
	require.Equal(t, asked-hosts*each, noFit)
	for id, n := range taken {
		require.Equal(t, 1, n, id)
	}
}

// TestConcurrentProvisionsOfOneName: of many requests for one name at once, one
// gets it.
func TestConcurrentProvisionsOfOneName(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	for i := range 4 {
		r.addHost(t, fmt.Sprintf("h%d", i), 4)
	}

	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		won int
	)

	for range 16 {
		wg.Go(func() {
			_, err := r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{Name: "the one"}))

			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			} else if kind := cyborg.ErrorKindOf(err); kind != cyborg.ErrNameTaken && kind != cyborg.ErrClaimed {
				t.Error(err)
			}
		})
	}

	wg.Wait()
	require.Equal(t, 1, won)
}

// TestProvisionAfterFailureIsFree: after a failed provision, its accelerator
// and name are free again. After one that needs an operator, only that name
// reaches it.
func TestProvisionAfterFailureIsFree(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.accelerator(t, "card0")

	for range 3 {
		r.do(t, toProvision(cyborg.ProvisionRequest{Name: "again"}), cyborg.OperationFailed)
	}
	require.Equal(t, a.Name, h.accelerator(t, "card0").Name)

	r.do(t, toProvision(cyborg.ProvisionRequest{Name: "again"}), cyborg.OperationNeedsOperator)
	_, err := r.Admit(t.Context(), toProvision(cyborg.ProvisionRequest{}))
	requireKind(t, cyborg.ErrNoFit, err, "in error")

	r.do(t, toProvision(cyborg.ProvisionRequest{Name: "again"}), cyborg.OperationSucceeded)
	require.Equal(t, cyborg.StatusReady, h.accelerator(t, "card0").Status())
}

// TestOnlyTheOldNameMayBeTaken: a provision that is undone goes without its old
// name where somebody has that now. A new part that its host has shown, and whose
// name somebody has, is another matter: the end is refused, and tried again.
func TestOnlyTheOldNameMayBeTaken(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	work := r.begin(t, toProvision(cyborg.ProvisionRequest{Accelerator: h.accelerator(t, "card0").UUID, Name: "new"}))

	// As where another transaction takes the name between the look and the insert.
	r.exec(t, `CREATE FUNCTION taken() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN RAISE EXCEPTION 'taken' USING ERRCODE = 'unique_violation', CONSTRAINT = 'deployables_accelerator_key'; END $$`)
	r.exec(t, "CREATE TRIGGER taken BEFORE INSERT ON deployables FOR EACH ROW EXECUTE FUNCTION taken()")

	h.sequence++
	seen := device("card0")
	seen.Deployables = append(seen.Deployables, deployable("part1", 0))
	outcome := cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationFailed, Error: cyborg.Errorf(cyborg.ErrHardware, "it smoked"),
		Observations: []cyborg.Observation{{Sequence: h.sequence, Backend: "fake", Device: seen}},
	}
	requireKind(t, cyborg.ErrInternal, r.End(t.Context(), runOf(work.Operation), outcome), "SQLSTATE 23505")

	r.exec(t, "DROP TRIGGER taken ON deployables")
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), outcome))
	require.Equal(t, "h1_card0", h.accelerator(t, "card0").Name)
	require.Equal(t, "h1_part1", h.accelerator(t, "part1").Name)
}

// TestUnprovisioned: new hardware is listed for provision, but not while its
// host is silent or it is protected, in maintenance or failed before.
func TestUnprovisioned(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 4)
	silent := r.addHost(t, "h2", 1)
	h.content.Backends[0].Devices[3].Deployables[0].Protected = "the boot display"
	h.report(t)
	silent.fall(t)

	list := func() []uuid.UUID {
		found, err := r.Unprovisioned(t.Context(), 10)
		require.NoError(t, err)
		return found
	}

	a, b, c := h.accelerator(t, "card0"), h.accelerator(t, "card1"), h.accelerator(t, "card2")
	require.Equal(t, []uuid.UUID{a.UUID, b.UUID, c.UUID}, list())

	r.do(t, toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID}), cyborg.OperationFailed)
	require.Equal(t, []uuid.UUID{b.UUID, c.UUID}, list(), "one that failed waits for somebody who knows why")

	_, err := r.Maintain(t.Context(), b.UUID, cyborg.Maintenance{Reason: "x"}, alice())
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{c.UUID}, list())
}

// TestUnrecordableObservation: an operation ends as it has ended, also where its driver
// shows something of the device that cannot be recorded. The host is asked for its
// report, which is refused with the reason.
func TestUnrecordableObservation(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")

	work := r.begin(t, toAttach(a.UUID, onHost("h1")))
	seen := device("card0")
	seen.Model = "a\x00b"
	h.sequence++
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationFailed, Error: cyborg.Errorf(cyborg.ErrHardware, "broken"),
		Observations: []cyborg.Observation{{Sequence: h.sequence, Backend: "fake", Device: seen}},
	}))

	require.Equal(t, cyborg.StatusReady, r.accelerator(t, a.UUID).Status())
	require.Empty(t, scalar[string](t, r, "SELECT digest FROM hosts"), "a report is wanted")
}
