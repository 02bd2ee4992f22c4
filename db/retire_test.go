package db_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// toRetire is the admission of a retirement.
func toRetire(a *cyborg.Accelerator) db.Admission {
	out := admission()
	out.Request = cyborg.RetireRequest{Accelerator: a.UUID}
	return out
}

// TestRetire: a retired accelerator is inactive under its name, and is not
// provisioned again like new hardware.
func TestRetire(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	_, err := r.Admit(t.Context(), toRetire(h.accelerator(t, "card0")))
	requireKind(t, cyborg.ErrChanged, err, "inactive already")
	r.do(t, toProvision(cyborg.ProvisionRequest{Name: "mine"}), cyborg.OperationSucceeded)
	a := h.accelerator(t, "card0")

	// While it is under way nobody gets it, and nobody else retires it.
	work := r.begin(t, toRetire(a))
	require.Equal(t, cyborg.StatusRetiring, r.accelerator(t, a.UUID).Status())
	listed, err := r.Accelerators(t.Context(), db.AcceleratorFilter{Statuses: []cyborg.Status{cyborg.StatusRetiring}}, db.Page{})
	require.NoError(t, err)
	require.Len(t, listed, 1)

	for _, request := range []db.Admission{toRetire(a), toAttach(a.UUID, instance("vm")), toProgram(a.UUID)} {
		_, err := r.Admit(t.Context(), request)
		requireKind(t, cyborg.ErrClaimed, err, work.Operation.String())
	}

	r.end(t, work, cyborg.OperationFailed)
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, a.UUID).Status())

	r.do(t, toRetire(a), cyborg.OperationSucceeded)
	after := r.accelerator(t, a.UUID)
	require.Equal(t, cyborg.StatusInactive, after.Status())
	require.Equal(t, "mine", after.Name)
	found, err := r.Unprovisioned(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, found, "what was retired is not new hardware")
	r.do(t, toProvision(cyborg.ProvisionRequest{Name: "mine"}), cyborg.OperationSucceeded)
}

// TestRetireAttachedAccelerator: what somebody holds, or may still hold after
// force, is not retired.
func TestRetireAttachedAccelerator(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	r.do(t, toAttach(a.UUID, instance("vm")), cyborg.OperationSucceeded)
	_, err := r.Admit(t.Context(), toRetire(a))
	requireKind(t, cyborg.ErrInUse, err, "instance vm")

	h.fall(t)
	r.do(t, toForce(a.UUID, nil), cyborg.OperationSucceeded)
	_, err = r.Admit(t.Context(), toRetire(a))
	requireKind(t, cyborg.ErrChanged, err, unsettled)
}

// TestRetireInEveryState: an accelerator in error, in maintenance or missing
// can be retired, and stays in maintenance or missing.
func TestRetireInEveryState(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	r.do(t, toProgram(a.UUID), cyborg.OperationNeedsOperator)
	r.do(t, toRetire(a), cyborg.OperationNeedsOperator)
	broken := r.accelerator(t, a.UUID)
	require.Equal(t, cyborg.StatusError, broken.Status())
	require.Contains(t, broken.Reason, "retire")

	r.do(t, toProgram(a.UUID), cyborg.OperationSucceeded)
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, a.UUID).Status(), "an image that works still cures it")

	r.do(t, toRetire(a), cyborg.OperationNeedsOperator)
	require.Equal(t, cyborg.StatusError, r.accelerator(t, a.UUID).Status())
	r.do(t, toRetire(a), cyborg.OperationFailed)
	require.Equal(t, cyborg.StatusError, r.accelerator(t, a.UUID).Status())
	r.do(t, toRetire(a), cyborg.OperationSucceeded)
	require.Equal(t, cyborg.StatusInactive, r.accelerator(t, a.UUID).Status())
	require.Empty(t, r.accelerator(t, a.UUID).Reason)

	h.ready(t, "card0")
	_, err := r.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "new fans"}, alice())
	require.NoError(t, err)
	h.content.Backends[0].Devices = nil
	h.report(t)

	r.do(t, toRetire(a), cyborg.OperationSucceeded)
	gone := r.accelerator(t, a.UUID)
	require.Equal(t, cyborg.LifecycleInactive, gone.Lifecycle)
	require.Equal(t, cyborg.StatusMissing, gone.Status())
	require.Equal(t, cyborg.AdministrationMaintaining, gone.Admin)
}
