package db_test

import (
	"encoding/json"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// profile records a device profile.
func (r *records) profile(t testing.TB, name string, groups ...map[string]string) {
	t.Helper()
	text, err := json.Marshal(groups)
	require.NoError(t, err)
	r.exec(t, "INSERT INTO device_profiles (name, groups) VALUES ($1, $2)", name, text)
}

// request makes the accelerator requests of a profile.
func (r *records) request(t testing.TB, profile string) []cyborg.ARQ {
	t.Helper()
	made, err := r.CreateARQs(t.Context(), profile, alice())
	require.NoError(t, err)
	return made
}

// one is a profile group that asks for one FPGA.
func one() map[string]string { return map[string]string{"resources:FPGA": "1"} }

// toBind is the admission of a bind that places all these requests on one
// provider.
func toBind(host string, holder cyborg.Holder, provider uuid.UUID, arqs ...cyborg.ARQ) db.Admission {
	a := admission()
	request := cyborg.BindRequest{Host: host, Holder: holder, Within: time.Minute}
	for _, arq := range arqs {
		request.ARQs = append(request.ARQs, cyborg.BindARQ{UUID: arq.UUID, Provider: provider})
	}
	a.Request = request
	return a
}

// toUnbind is the admission of an unbind of these requests.
func toUnbind(arqs ...cyborg.ARQ) db.Admission {
	a := admission()
	request := cyborg.UnbindRequest{}
	for _, arq := range arqs {
		request.ARQs = append(request.ARQs, arq.UUID)
	}
	a.Request = request
	return a
}

// arq reads an accelerator request, which must exist.
func (r *records) arq(t testing.TB, id uuid.UUID) cyborg.ARQ {
	t.Helper()
	a, err := r.ARQ(t.Context(), id)
	require.NoError(t, err)
	return a
}

// vm is a holder that is a new instance.
func vm() cyborg.Holder { return instance(uuid.NewString()) }

// requireAgreed asserts that handles and requests agree about who holds what,
// and that no claim remains.
func (r *records) requireAgreed(t testing.TB) {
	t.Helper()
	require.Zero(t, scalar[int](t, r, `
		SELECT count(*) FROM arqs a LEFT JOIN attach_handles h ON h.uuid = a.handle_uuid
		WHERE a.state = 'Bound' AND (h.holder_id IS DISTINCT FROM coalesce(a.instance_uuid::text, a.service) OR h.attached_at IS NULL)`))
	require.Zero(t, scalar[int](t, r, `
		SELECT count(*) FROM attach_handles h WHERE holder_kind IS NOT NULL AND NOT EXISTS (SELECT FROM arqs WHERE handle_uuid = h.uuid)`))
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM arqs WHERE claimed_by IS NOT NULL OR state IN ('BindStarted', 'Deleting')"))
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM claims"))
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM operations WHERE open"))
}

// TestCreateARQs: a profile becomes one request for each resource of each
// group, in order, and two for a Xilinx card. Where one of them is invalid,
// none is made.
func TestCreateARQs(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	r.profile(t, "mixed", map[string]string{"resources:FPGA": "2", "trait:CUSTOM_X": "required"},
		map[string]string{"resources:CUSTOM_NIC": "1"}, map[string]string{"trait:CUSTOM_Y": "required"},
		map[string]string{"resources:FPGA": "1", "trait:CUSTOM_FPGA_XILINX": "required"})

	made := r.request(t, "mixed")
	var groups []int
	for _, a := range made {
		groups = append(groups, a.GroupIndex)
		require.Equal(t, cyborg.ARQInitial, a.State)
		require.Equal(t, "p", a.Project)
		require.Equal(t, a, r.arq(t, a.UUID))
	}
	require.Equal(t, []int{0, 0, 1, 3, 3}, groups)
	require.Equal(t, "required", made[0].Group["trait:CUSTOM_X"])

	_, err := r.CreateARQs(t.Context(), "nosuch", alice())
	requireKind(t, cyborg.ErrNotFound, err, "nosuch")

	r.profile(t, "nothing", map[string]string{"trait:CUSTOM_Y": "required"})
	require.Empty(t, r.request(t, "nothing"))

	r.profile(t, "much", one(), map[string]string{"resources:FPGA": "99999999999"})
	_, err = r.CreateARQs(t.Context(), "much", alice())
	requireKind(t, cyborg.ErrInvalid, err)

	r.profile(t, "less", map[string]string{"resources:FPGA": "-1"})
	_, err = r.CreateARQs(t.Context(), "less", alice())
	requireKind(t, cyborg.ErrInvalid, err, `resources:FPGA="-1"`)
	require.Len(t, made, scalar[int](t, r, "SELECT count(*) FROM arqs"), "nothing is half-made")

	r.exec(t, "UPDATE device_profiles SET groups = $1 WHERE name = 'mixed'", `[{"resources:GPU": "1"}]`)
	require.Equal(t, made[0].Group, r.arq(t, made[0].UUID).Group, "it keeps its own copy")
}

// A project that binds nothing cannot make requests without end. What is bound
// does not count, nor what others have.
func TestUnboundARQsAreLimited(t *testing.T) {
	t.Parallel()
	r := newRecordsWith(t, db.Options{MaxUnboundARQs: 3})
	r.profile(t, "two", map[string]string{"resources:FPGA": "2"})
	made := r.request(t, "two")

	_, err := r.CreateARQs(t.Context(), "two", alice())
	requireKind(t, cyborg.ErrForbidden, err, "has 2 accelerator requests that are not bound")
	other := alice()
	other.Project = "q"
	_, err = r.CreateARQs(t.Context(), "two", other)
	require.NoError(t, err)

	_, err = r.DeleteARQs(t.Context(), db.ARQDeletion{UUIDs: []uuid.UUID{made[0].UUID}}, alice())
	require.NoError(t, err)
	r.request(t, "two")
}

// Callers that create requests at the same moment do not exceed the quota
// together.
func TestUnboundARQsAreLimitedTogether(t *testing.T) {
	t.Parallel()
	r := newRecordsWith(t, db.Options{MaxUnboundARQs: 3})
	r.profile(t, "two", map[string]string{"resources:FPGA": "2"})

	// Whoever has counted waits before its insert.
	held, err := r.sql.Begin(t.Context())
	require.NoError(t, err)
	_, err = held.Exec(t.Context(), "LOCK TABLE arqs IN SHARE ROW EXCLUSIVE MODE")
	require.NoError(t, err)

	const callers = 3
	results := make(chan error, callers)
	for range callers {
		go func() {
			_, err := r.CreateARQs(t.Context(), "two", alice())
			results <- err
		}()
	}
	require.Eventually(t, func() bool {
		return scalar[int](t, r, "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == callers
	}, 5*time.Minute, time.Millisecond)
	require.NoError(t, held.Rollback(t.Context()))

	var refused int
	for range callers {
		if err := <-results; err != nil {
			requireKind(t, cyborg.ErrForbidden, err, "has 2 accelerator requests that are not bound")
			refused++
		}
	}
	require.Equal(t, callers-1, refused)
}

// TestBind: a bind gives each request of an instance a handle of its own, in
// one operation. The same bind again finds nothing to do, and what a request
// holds cannot be detached or programmed.
func TestBind(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 2).ready(t, "card0")
	r.profile(t, "two", map[string]string{"resources:FPGA": "2"})
	arqs, who := r.request(t, "two"), vm()

	op := r.admit(t, toBind("h1", who, a.ProviderUUID, arqs...))
	require.Equal(t, cyborg.Subject{Kind: cyborg.SubjectARQ, ID: arqs[0].UUID.String()}, op.Subjects[0])
	require.Contains(t, op.Subjects, cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: a.UUID.String()})

	for _, arq := range arqs {
		started := r.arq(t, arq.UUID)
		require.Equal(t, cyborg.ARQBindStarted, started.State)
		require.Nil(t, started.Handle, "the handle shows only once it is bound")
		require.Equal(t, op.ID, started.Claim)
	}
	require.Nil(t, r.accelerator(t, a.UUID).Claim, "others may use the accelerator meanwhile")

	work, err := r.Begin(t.Context(), runOf(op.ID))
	require.NoError(t, err)
	require.Empty(t, work.Loads)
	require.Equal(t, []uuid.UUID{arqs[0].UUID, arqs[1].UUID}, work.Notify)
	r.end(t, work, cyborg.OperationSucceeded)

	handles := map[uuid.UUID]bool{}
	for _, arq := range arqs {
		bound := r.arq(t, arq.UUID)
		require.Equal(t, cyborg.ARQBound, bound.State)
		require.Equal(t, who, bound.Holder())
		require.Equal(t, "p", bound.Project)
		require.NotNil(t, bound.Handle)
		handles[bound.Handle.UUID] = true
	}
	require.Len(t, handles, 2)

	for _, h := range r.accelerator(t, a.UUID).Handles {
		require.Equal(t, &who, h.Holder)
		require.Equal(t, op.ID, h.Operation)
		require.False(t, h.AttachedAt.IsZero())
	}
	require.Equal(t, cyborg.StatusAttached, r.accelerator(t, a.UUID).Status())
	r.requireAgreed(t)

	again, err := r.Admit(t.Context(), toBind("h1", who, a.ProviderUUID, arqs...))
	require.NoError(t, err)
	require.True(t, again.NothingToDo, "the same request again finds it done")

	_, err = r.Admit(t.Context(), toBind("h1", vm(), a.ProviderUUID, arqs...))
	requireKind(t, cyborg.ErrChanged, err, "is Bound")
	_, err = r.Admit(t.Context(), toDetach(a.UUID, nil))
	requireKind(t, cyborg.ErrInUse, err, arqs[0].UUID.String())
	_, err = r.Admit(t.Context(), toDetach(a.UUID, &who))
	requireKind(t, cyborg.ErrInUse, err)
	_, err = r.Admit(t.Context(), toProgram(a.UUID))
	requireKind(t, cyborg.ErrInUse, err)
}

// TestL11BindRefused: a bind that cannot work is refused as a whole, and no
// request stays bound (L11). Where the request itself is wrong, nothing
// changes. Where the accelerator prevents it, the requests become BindFailed
// with the reason, and a failed operation records it.
func TestL11BindRefused(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 6)
	other := r.addHost(t, "h2", 1).ready(t, "card0")
	good, inactive := h.ready(t, "card0"), h.accelerator(t, "card5")
	maintained, missing, full := h.ready(t, "card1"), h.ready(t, "card2"), h.ready(t, "card3")

	_, err := r.Maintain(t.Context(), maintained.UUID, cyborg.Maintenance{Reason: "cleaning", By: "bob"}, alice())
	require.NoError(t, err)

	for range 2 {
		r.do(t, toAttach(full.UUID, vm()), cyborg.OperationSucceeded)
	}

	devices := h.content.Backends[0].Devices
	h.content.Backends[0].Devices = append(append([]cyborg.DeviceReport{}, devices[:2]...), devices[3:]...)
	h.report(t)

	r.profile(t, "one", one())
	taken, takenBy := r.request(t, "one")[0], vm()
	r.do(t, toBind("h1", takenBy, good.ProviderUUID, taken), cyborg.OperationSucceeded)

	for name, test := range map[string]struct {
		kind     cyborg.ErrorKind
		host     string
		holder   cyborg.Holder
		provider uuid.UUID
		arq      *cyborg.ARQ
		recorded bool
		says     string
	}{
		"unknown provider": {kind: cyborg.ErrNotFound, provider: uuid.New(), says: "resource provider"},
		"other host":       {kind: cyborg.ErrInvalid, provider: other.ProviderUUID, says: `on host "h2"`},
		"unknown request":  {kind: cyborg.ErrNotFound, arq: &cyborg.ARQ{UUID: uuid.New()}, says: "no accelerator request"},
		"instance has one": {kind: cyborg.ErrInvalid, holder: takenBy, says: "already has accelerator requests"},
		"a host":           {kind: cyborg.ErrInvalid, holder: onHost("h1"), says: "an instance or a service"},
		"not in service":   {kind: cyborg.ErrChanged, provider: inactive.ProviderUUID, recorded: true, says: "not ready"},
		"in maintenance":   {kind: cyborg.ErrChanged, provider: maintained.ProviderUUID, recorded: true, says: "cleaning"},
		"missing":          {kind: cyborg.ErrChanged, provider: missing.ProviderUUID, recorded: true, says: "missing"},
		"no free handle":   {kind: cyborg.ErrNotFound, provider: full.ProviderUUID, recorded: true, says: "no free attach handle"},
	} {
		arqs := []cyborg.ARQ{r.request(t, "one")[0], r.request(t, "one")[0]}
		holder := test.holder
		if holder.ID == "" {
			holder = vm()
		}

		request := toBind("h1", holder, good.ProviderUUID, arqs...)
		if test.provider != uuid.Nil {
			edit(&request, func(r *cyborg.BindRequest) { r.ARQs[1].Provider = test.provider })
		}
		if test.arq != nil {
			edit(&request, func(r *cyborg.BindRequest) { r.ARQs[1].UUID = test.arq.UUID })
		}

		_, err := r.Admit(t.Context(), request)
		requireKind(t, test.kind, err, test.says)

		for _, arq := range arqs {
			now := r.arq(t, arq.UUID)
			if !test.recorded {
				require.Equal(t, cyborg.ARQInitial, now.State, name)
				require.Zero(t, now.Holder(), name)
				continue
			}
			require.Equal(t, cyborg.ARQBindFailed, now.State, name)
			require.Contains(t, now.Reason, test.says, name)
			require.Equal(t, holder, now.Holder(), name)

			op, err := r.Operation(t.Context(), now.Operation)
			require.NoError(t, err)
			require.Equal(t, cyborg.OperationFailed, op.State, name)
		}
	}

	r.exec(t, "UPDATE attach_handles SET holder_kind = NULL, holder_id = NULL, operation_id = NULL, attached_at = NULL WHERE deployable_uuid = $1", full.UUID)
	r.requireAgreed(t)
	require.Equal(t, 1, scalar[int](t, r, "SELECT count(*) FROM attach_handles WHERE holder_kind IS NOT NULL"), "none leaked")
}

// TestBindWaitsForAHandle: a bind that finds no free handle is told to wait for
// the operation that is about to free one. A caller that wants to check the
// holders first (RefuseIfHeld) is refused, and nothing is recorded.
func TestBindWaitsForAHandle(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")
	r.profile(t, "one", one())
	r.profile(t, "two", map[string]string{"resources:FPGA": "2"})
	held := r.request(t, "two")
	r.do(t, toBind("h1", vm(), a.ProviderUUID, held...), cyborg.OperationSucceeded)

	arq := r.request(t, "one")[0]
	looks := toBind("h1", vm(), a.ProviderUUID, arq)
	edit(&looks, func(r *cyborg.BindRequest) { r.RefuseIfHeld = true })
	_, err := r.Admit(t.Context(), looks)
	requireKind(t, cyborg.ErrNoFit, err)
	require.Equal(t, cyborg.ARQInitial, r.arq(t, arq.UUID).State)

	unbind := r.begin(t, toUnbind(held[0]))
	r.exec(t, "DELETE FROM claims") // as if the unbind were on another accelerator
	_, err = r.Admit(t.Context(), toBind("h1", vm(), a.ProviderUUID, arq))
	requireKind(t, cyborg.ErrClaimed, err, unbind.Operation.String())
	require.Equal(t, unbind.Operation, cyborg.AsError(err).Operation)
	require.Equal(t, cyborg.ARQInitial, r.arq(t, arq.UUID).State)

	r.end(t, unbind, cyborg.OperationSucceeded)
	r.do(t, toBind("h1", vm(), a.ProviderUUID, arq), cyborg.OperationSucceeded)
	r.requireAgreed(t)
}

// TestBindFails: a bind that fails after it began frees what it had taken.
func TestBindFails(t *testing.T) {
	t.Parallel()
	for _, state := range []cyborg.OperationState{cyborg.OperationFailed, cyborg.OperationCancelled} {
		r := newRecords(t)
		a := r.addHost(t, "h1", 1).ready(t, "card0")
		r.profile(t, "one", one())
		arq := r.request(t, "one")[0]

		r.do(t, toBind("h1", vm(), a.ProviderUUID, arq), state)
		failed := r.arq(t, arq.UUID)
		require.Equal(t, cyborg.ARQBindFailed, failed.State)
		require.Equal(t, "it smoked", failed.Reason)
		r.requireAgreed(t)
	}
}

// TestBindSkipsUnconfirmedHandles: a bind takes no handle that its host may
// still have attached for somebody, as an attach does not.
func TestBindSkipsUnconfirmedHandles(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")
	r.exec(t, "UPDATE attach_handles SET unconfirmed_kind = 'host', unconfirmed_id = 'h1', unconfirmed_operation = $2 WHERE uuid = $1", a.Handles[0].UUID, uuid.New())
	r.profile(t, "one", one())
	arq := r.request(t, "one")[0]
	r.do(t, toBind("h1", vm(), a.ProviderUUID, arq), cyborg.OperationSucceeded)
	require.Equal(t, a.Handles[1].UUID, r.arq(t, arq.UUID).Handle.UUID)

	second := r.request(t, "one")[0]
	_, err := r.Admit(t.Context(), toBind("h1", vm(), a.ProviderUUID, second))
	requireKind(t, cyborg.ErrNotFound, err, "no free attach handle")
	require.Equal(t, cyborg.ARQBindFailed, r.arq(t, second.UUID).State)
}

// TestL3BindPastItsDeadline: a bind that has not begun within its time limit
// fails.
func TestL3BindPastItsDeadline(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")
	r.profile(t, "one", one())
	request := toBind("h1", vm(), a.ProviderUUID, r.request(t, "one")[0])
	edit(&request, func(r *cyborg.BindRequest) { r.Within = time.Nanosecond })

	op := r.admit(t, request)
	_, err := r.Begin(t.Context(), runOf(op.ID))
	requireKind(t, cyborg.ErrCancelled, err, "within 1ns")
}

// TestWorkHasWhatItsHostMustLookAt: whoever gets a handle, its host looks at it
// first. For an instance and a service the work says so, with and without an
// image to load, also where the run asks again; for the host itself, an attach
// does more than that.
func TestWorkHasWhatItsHostMustLookAt(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 4)
	a, b, c, d := h.ready(t, "card0"), h.ready(t, "card1"), h.ready(t, "card2"), h.ready(t, "card3")
	r.profile(t, "two", map[string]string{"resources:FPGA": "2"})
	r.profile(t, "image", map[string]string{"resources:FPGA": "1", "accel:bitstream_id": uuid.NewString()})
	who, service := vm(), cyborg.Holder{Kind: cyborg.HolderService, ID: "infrastructure"}

	given := func(work cyborg.Work) []cyborg.GivenHandles {
		again, err := r.Begin(t.Context(), runOf(work.Operation))
		require.NoError(t, err)
		require.Equal(t, work.Given, again.Given)

		for _, g := range work.Given {
			at := r.accelerator(t, g.Target.Accelerator)
			require.Equal(t, cyborg.Target{Accelerator: at.UUID, Backend: "fake", Device: at.LocalName, Deployable: at.LocalName}, g.Target)
			for _, handle := range g.Handles {
				require.True(t, slices.ContainsFunc(at.Handles, func(h cyborg.AttachHandle) bool {
					return h.UUID == handle.UUID && h.Identity == handle.Identity && *h.Holder == handle.Holder
				}), "%v", at.Handles)
			}
		}
		return work.Given
	}

	work := r.begin(t, toBind("h1", who, a.ProviderUUID, r.request(t, "two")...))
	require.Empty(t, work.Targets, "nothing is claimed")
	require.Len(t, given(work), 1)
	require.Len(t, work.Given[0].Handles, 2)
	require.Equal(t, who, work.Given[0].Handles[0].Holder)
	r.end(t, work, cyborg.OperationSucceeded)
	r.requireAgreed(t)

	work = r.begin(t, toBind("h1", vm(), b.ProviderUUID, r.request(t, "image")...))
	require.Len(t, work.Loads, 1)
	require.Len(t, given(work), 1)
	r.end(t, work, cyborg.OperationFailed)
	r.requireAgreed(t)

	for _, holder := range []cyborg.Holder{vm(), service} {
		work = r.begin(t, toAttach(c.UUID, holder))
		require.Len(t, given(work), 1)
		require.Equal(t, holder, work.Given[0].Handles[0].Holder)
		r.end(t, work, cyborg.OperationFailed)
		require.Empty(t, r.accelerator(t, c.UUID).Holders())
	}

	require.Empty(t, r.begin(t, toAttach(d.UUID, onHost("h1"))).Given)
}

// TestRefusedBindFreesItsHandles: the host says that somebody uses the handle. The
// requests fail with that reason, and somebody else may get the handle.
func TestRefusedBindFreesItsHandles(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")
	r.profile(t, "one", one())
	arq := r.request(t, "one")[0]

	work := r.begin(t, toBind("h1", vm(), a.ProviderUUID, arq))
	require.Equal(t, []uuid.UUID{arq.UUID}, work.Notify)
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationFailed, Error: cyborg.Errorf(cyborg.ErrInUse, "it is in use by swap on /dev/sdb"),
	}))

	require.Equal(t, cyborg.ARQBindFailed, r.arq(t, arq.UUID).State)
	require.Contains(t, r.arq(t, arq.UUID).Reason, "swap on /dev/sdb")
	require.Nil(t, r.accelerator(t, a.UUID).Fence)
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, a.UUID).Status())
	r.requireAgreed(t)

	again, err := r.Begin(t.Context(), runOf(work.Operation))
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationFailed, again.Ended)
	require.Equal(t, []uuid.UUID{arq.UUID}, again.Notify, "a repeated call says whom to notify")

	r.do(t, toBind("h1", vm(), a.ProviderUUID, r.request(t, "one")[0]), cyborg.OperationSucceeded)
}

// TestCompleteCancelledBind: a bind whose request was deleted before it began
// does not bind.
func TestCompleteCancelledBind(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")
	r.profile(t, "one", one())
	arq := r.request(t, "one")[0]

	op := r.admit(t, toBind("h1", vm(), a.ProviderUUID, arq))
	_, err := r.DeleteARQs(t.Context(), db.ARQDeletion{UUIDs: []uuid.UUID{arq.UUID}, AllowBound: true}, alice())
	require.NoError(t, err)

	_, err = r.Begin(t.Context(), runOf(op.ID))
	requireKind(t, cyborg.ErrCancelled, err)
	r.end(t, cyborg.Work{Operation: op.ID}, cyborg.OperationCancelled)
	_, err = r.ARQ(t.Context(), arq.UUID)
	requireKind(t, cyborg.ErrNotFound, err)
	r.requireAgreed(t)
}

// TestL3BindDeadlineCountsFromAdmission: the time limit of a bind with an image
// counts from its admission. A bind that begins late, because Temporal was
// away, has less time left, and none where it begins again after the limit.
func TestL3BindDeadlineCountsFromAdmission(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")
	r.profile(t, "image", map[string]string{"resources:FPGA": "1", "accel:bitstream_id": uuid.NewString()})

	request := toBind("h1", vm(), a.ProviderUUID, r.request(t, "image")[0])
	edit(&request, func(r *cyborg.BindRequest) { r.Within = time.Hour })
	op := r.admit(t, request)
	r.exec(t, "UPDATE operations SET admitted_at = admitted_at - interval '50 minutes' WHERE id = $1", op.ID)
	work, err := r.Begin(t.Context(), runOf(op.ID))
	require.NoError(t, err)
	require.Len(t, work.Loads, 1)
	require.LessOrEqual(t, work.Within, 10*time.Minute)
	require.Positive(t, work.Within)

	r.exec(t, "UPDATE operations SET admitted_at = admitted_at - interval '20 minutes' WHERE id = $1", op.ID)
	work, err = r.Begin(t.Context(), runOf(op.ID))
	require.NoError(t, err)
	require.Zero(t, work.Within)
}

// TestBindWithImage: while a bind loads an image, the accelerators that the
// load disturbs are claimed and fenced. An image that is loaded already is not
// loaded again.
func TestBindWithImage(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	h.content.Backends[0].Devices[0].Deployables = []cyborg.DeployableReport{deployable("card0", 2), deployable("sibling", 1)}
	for i := range h.content.Backends[0].Devices[0].Deployables {
		h.content.Backends[0].Devices[0].Deployables[i].ProgramSet = "all"
	}
	h.report(t)
	a, sibling := h.ready(t, "card0"), h.ready(t, "sibling")

	image := uuid.NewString()
	r.profile(t, "image", map[string]string{"resources:FPGA": "1", "accel:bitstream_id": image})
	r.profile(t, "another", map[string]string{"resources:FPGA": "1", "accel:bitstream_id": uuid.NewString()})
	r.profile(t, "function", map[string]string{"resources:FPGA": "1", "accel:function_id": "crypto"})
	r.profile(t, "both", map[string]string{"resources:FPGA": "1", "accel:bitstream_id": image, "accel:function_id": "f"})

	arq := r.request(t, "image")[0]
	work := r.begin(t, toBind("h1", vm(), a.ProviderUUID, arq))
	require.Equal(t, []cyborg.ImageLoad{{Accelerator: a.UUID, Image: cyborg.GlanceImage(uuid.MustParse(image))}}, work.Loads)
	require.Len(t, work.Targets, 2)
	for _, id := range []uuid.UUID{a.UUID, sibling.UUID} {
		require.NotNil(t, r.accelerator(t, id).Fence)
		require.Equal(t, cyborg.StatusProgramming, r.accelerator(t, id).Status())
	}

	r.profile(t, "one", one())
	waiting := toBind("h1", vm(), a.ProviderUUID, r.request(t, "one")[0])
	_, err := r.Admit(t.Context(), waiting)
	requireKind(t, cyborg.ErrClaimed, err, work.Operation.String())

	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded, Bitstreams: map[uuid.UUID]string{a.UUID: image},
	}))
	require.Equal(t, cyborg.ARQBound, r.arq(t, arq.UUID).State)
	require.Equal(t, image, r.accelerator(t, a.UUID).BitstreamID)
	require.Nil(t, r.accelerator(t, sibling.UUID).Fence)

	second := r.request(t, "image")[0]
	require.Empty(t, r.do(t, toBind("h1", vm(), a.ProviderUUID, second), cyborg.OperationSucceeded).Loads, "it is loaded")

	third := r.request(t, "another")[0]
	_, err = r.Admit(t.Context(), toBind("h1", vm(), sibling.ProviderUUID, third))
	requireKind(t, cyborg.ErrInUse, err) // L24: somebody uses what the image would disturb
	require.Equal(t, cyborg.ARQBindFailed, r.arq(t, third.UUID).State)

	_, err = r.DeleteARQs(t.Context(), db.ARQDeletion{UUIDs: []uuid.UUID{arq.UUID, second.UUID, third.UUID}, AllowBound: true}, alice())
	require.NoError(t, err)

	_, err = r.Admit(t.Context(), toBind("h1", vm(), a.ProviderUUID, r.request(t, "both")[0]))
	requireKind(t, cyborg.ErrInvalid, err, "accel:bitstream_id and accel:function_id")

	work = r.begin(t, toBind("h1", vm(), a.ProviderUUID, r.request(t, "function")[0]))
	require.Equal(t, []cyborg.ImageLoad{{Accelerator: a.UUID, Image: cyborg.GlanceFunction("crypto")}}, work.Loads)
	r.end(t, work, cyborg.OperationNeedsOperator)
	require.Equal(t, cyborg.StatusError, r.accelerator(t, a.UUID).Status())
	require.NotNil(t, r.accelerator(t, a.UUID).Fence)

	_, err = r.Admit(t.Context(), toAttach(a.UUID, vm()))
	requireKind(t, cyborg.ErrChanged, err, "is in error")
	require.Equal(t, "Program it with an image that works, or make it ready again.", cyborg.AsError(err).Hint)
	r.requireAgreed(t)

	r.do(t, toProgram(a.UUID), cyborg.OperationSucceeded)
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, a.UUID).Status(), "an image that works cures it")
}

// TestBindWithImageOnASharedCard: on a shared card, a request without an image
// binds beside one that asks for an image. Two requests whose images would
// replace each other are refused.
func TestBindWithImageOnASharedCard(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)

	parts := []cyborg.DeployableReport{deployable("card0", 2), deployable("sibling", 2)}
	loaded, image := uuid.NewString(), uuid.NewString()
	for i := range parts {
		parts[i].ProgramSet, parts[i].BitstreamID = "all", loaded
	}
	h.content.Backends[0].Devices[0].Deployables = parts
	h.report(t)
	a, sibling := h.ready(t, "card0"), h.ready(t, "sibling")

	wants := func(image string) map[string]string {
		return map[string]string{"resources:FPGA": "1", "accel:bitstream_id": image}
	}

	for i, groups := range [][]map[string]string{{one(), wants(image)}, {wants(image), one()}} {
		name := string(rune('a' + i))
		r.profile(t, name, groups...)
		work := r.begin(t, toBind("h1", vm(), a.ProviderUUID, r.request(t, name)...))
		require.Equal(t, []cyborg.ImageLoad{{Accelerator: a.UUID, Image: cyborg.GlanceImage(uuid.MustParse(image))}}, work.Loads)
		r.end(t, work, cyborg.OperationFailed)
	}

	for i, test := range []struct {
		groups []map[string]string
		second *cyborg.Accelerator
		says   string
	}{
		{[]map[string]string{wants(loaded), wants(image)}, a, "cannot have two images"},
		{[]map[string]string{wants(loaded), wants(image)}, sibling, "would replace that of"},
		{[]map[string]string{wants(image), wants(loaded)}, sibling, "would replace that of"},
	} {
		name := string(rune('p' + i))
		r.profile(t, name, test.groups...)
		arqs := r.request(t, name)

		request := toBind("h1", vm(), a.ProviderUUID, arqs...)
		edit(&request, func(r *cyborg.BindRequest) { r.ARQs[1].Provider = test.second.ProviderUUID })
		_, err := r.Admit(t.Context(), request)
		requireKind(t, cyborg.ErrInvalid, err, test.says)
		require.Equal(t, cyborg.ARQBindFailed, r.arq(t, arqs[0].UUID).State)
	}

	r.requireAgreed(t)
}

// TestHandleVanishedDuringABind: where a card vanishes during a bind, the end
// of the bind fences its accelerator if the bind succeeded, because an instance
// now uses what is gone. A bind that failed leaves no fence.
func TestHandleVanishedDuringABind(t *testing.T) {
	t.Parallel()
	for _, end := range []cyborg.OperationState{cyborg.OperationSucceeded, cyborg.OperationFailed} {
		r := newRecords(t)
		h := r.addHost(t, "h1", 2)
		a := h.ready(t, "card0")
		r.profile(t, "image", map[string]string{"resources:FPGA": "1", "accel:bitstream_id": uuid.NewString()})
		arq := r.request(t, "image")[0]
		work := r.begin(t, toBind("h1", vm(), a.ProviderUUID, arq))

		devices := h.content.Backends[0].Devices
		h.content.Backends[0].Devices = devices[1:]
		h.report(t)

		r.end(t, work, end)
		if now := r.accelerator(t, a.UUID); end == cyborg.OperationSucceeded {
			require.Equal(t, &cyborg.Fence{Reason: "vanished while in use"}, now.Fence)
		} else {
			require.Nil(t, now.Fence)
		}

		_, err := r.DeleteARQs(t.Context(), db.ARQDeletion{UUIDs: []uuid.UUID{arq.UUID}, AllowBound: true}, alice())
		require.NoError(t, err)
		require.Nil(t, r.accelerator(t, a.UUID).Fence)
	}
}

// TestL10Unbind: an unbind detaches on the host, and a failure of the host is
// recorded (L10). No handle is free before the unbind succeeded.
func TestL10Unbind(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")
	r.profile(t, "two", map[string]string{"resources:FPGA": "2"})
	arqs := r.request(t, "two")
	r.do(t, toBind("h1", vm(), a.ProviderUUID, arqs...), cyborg.OperationSucceeded)

	work := r.begin(t, toUnbind(arqs...))
	require.Len(t, work.Handles, 2)
	require.Equal(t, a.UUID, work.Handles[0].Accelerator)
	require.Equal(t, cyborg.StatusDetaching, r.accelerator(t, a.UUID).Status())

	_, err := r.Admit(t.Context(), toUnbind(arqs[0]))
	requireKind(t, cyborg.ErrClaimed, err)

	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationFailed, Error: cyborg.Errorf(cyborg.ErrInUse, "qemu has it"),
	}))
	require.Equal(t, cyborg.ARQBound, r.arq(t, arqs[0].UUID).State, "the instance has it as before")

	r.end(t, r.begin(t, toUnbind(arqs...)), cyborg.OperationFailed)
	failed := r.arq(t, arqs[0].UUID)
	require.Equal(t, cyborg.ARQUnbindFailed, failed.State)
	require.Equal(t, "it smoked", failed.Reason)
	require.NotEmpty(t, r.accelerator(t, a.UUID).Holders(), "nobody else gets it")

	r.do(t, toUnbind(arqs...), cyborg.OperationSucceeded)
	for _, arq := range arqs {
		free := r.arq(t, arq.UUID)
		require.Equal(t, cyborg.ARQUnbound, free.State)
		require.Zero(t, free.Holder())
		require.Empty(t, free.Host)
		require.Equal(t, "p", free.Project)
	}
	r.requireAgreed(t)

	nothing, err := r.Admit(t.Context(), toUnbind(arqs...))
	require.NoError(t, err)
	require.True(t, nothing.NothingToDo)
	r.do(t, toBind("h1", vm(), a.ProviderUUID, arqs...), cyborg.OperationSucceeded)
	r.requireAgreed(t)
}

// TestL37Delete: a deletion removes the requests that exist and frees their
// handles at once, even while their host is silent. It lists those that do not
// exist as missing (L37), and needs a permission for those that are bound.
func TestL37Delete(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	r.profile(t, "one", one())
	bound, initial, unknown := r.request(t, "one")[0], r.request(t, "one")[0], uuid.New()
	who := uuid.New()
	r.do(t, toBind("h1", instance(who.String()), a.ProviderUUID, bound), cyborg.OperationSucceeded)
	h.fall(t)

	all := db.ARQDeletion{UUIDs: []uuid.UUID{unknown, bound.UUID, initial.UUID}}
	_, err := r.DeleteARQs(t.Context(), all, alice())
	requireKind(t, cyborg.ErrForbidden, err, "requires a service token", bound.UUID.String())
	require.Equal(t, cyborg.ARQInitial, r.arq(t, initial.UUID).State, "nothing is half-done")

	all.AllowBound = true
	all.Projects = []string{"another"}
	gone, err := r.DeleteARQs(t.Context(), all, alice())
	require.NoError(t, err)
	require.Len(t, gone.Missing, 3, "those of another project do not exist for the caller")

	all.Projects = []string{"p"}
	gone, err = r.DeleteARQs(t.Context(), all, alice())
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{unknown}, gone.Missing)
	require.ElementsMatch(t, []uuid.UUID{bound.UUID, initial.UUID}, gone.Deleted)
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM arqs"))
	r.requireAgreed(t)

	again := r.request(t, "one")[0]
	r.do(t, toBind("h1", instance(who.String()), a.ProviderUUID, again), cyborg.OperationSucceeded)
	for range 2 {
		gone, err = r.DeleteARQs(t.Context(), db.ARQDeletion{Instance: who, AllowBound: true}, alice())
		require.NoError(t, err)
		require.Empty(t, gone.Missing)
	}
	r.requireAgreed(t)
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, a.UUID).Status())
}

// TestL9DeleteDuringBind: a deletion during a bind cancels the bind, and the
// end of the bind deletes the request, whatever the result.
func TestL9DeleteDuringBind(t *testing.T) {
	t.Parallel()
	for _, state := range []cyborg.OperationState{cyborg.OperationSucceeded, cyborg.OperationCancelled, cyborg.OperationFailed} {
		r := newRecords(t)
		a := r.addHost(t, "h1", 1).ready(t, "card0")
		r.profile(t, "two", map[string]string{"resources:FPGA": "2"})
		arqs := r.request(t, "two")
		work := r.begin(t, toBind("h1", vm(), a.ProviderUUID, arqs...))

		gone, err := r.DeleteARQs(t.Context(), db.ARQDeletion{UUIDs: []uuid.UUID{arqs[0].UUID}, AllowBound: true}, alice())
		require.NoError(t, err)
		require.Len(t, gone.Pending, 1)
		require.Equal(t, work.Operation, gone.Pending[0].ID)
		require.False(t, gone.Pending[0].CancelAt.IsZero())
		require.Equal(t, cyborg.ARQDeleting, r.arq(t, arqs[0].UUID).State)

		r.end(t, work, state)
		_, err = r.ARQ(t.Context(), arqs[0].UUID)
		requireKind(t, cyborg.ErrNotFound, err)
		if state == cyborg.OperationSucceeded {
			require.Equal(t, cyborg.ARQBound, r.arq(t, arqs[1].UUID).State)
		} else {
			require.Equal(t, cyborg.ARQBindFailed, r.arq(t, arqs[1].UUID).State)
		}
		r.requireAgreed(t)
	}
}

// TestServiceHolder: a service holds accelerators as an instance does, and may
// bind several requests one after the other.
func TestServiceHolder(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")
	r.profile(t, "one", one())
	target := cyborg.Holder{Kind: cyborg.HolderService, ID: "spdk-target"}

	for range 2 {
		arq := r.request(t, "one")[0]
		work := r.do(t, toBind("h1", target, a.ProviderUUID, arq), cyborg.OperationSucceeded)
		require.Empty(t, work.Notify, "Nova does not know it")
		bound := r.arq(t, arq.UUID)
		require.Equal(t, target, bound.Holder())
	}

	r.requireAgreed(t)
}

// TestARQLists: lists of requests are filtered and come in pages.
func TestARQLists(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")
	r.profile(t, "one", one())
	r.profile(t, "other", one())
	who := uuid.New()

	first, second, third := r.request(t, "one")[0], r.request(t, "other")[0], r.request(t, "one")[0]
	r.do(t, toBind("h1", instance(who.String()), a.ProviderUUID, second), cyborg.OperationSucceeded)

	list := func(f db.ARQFilter, page db.Listing) []uuid.UUID {
		found, err := r.ARQs(t.Context(), f, page)
		require.NoError(t, err)
		out := []uuid.UUID{}
		for _, a := range found {
			out = append(out, a.UUID)
		}
		return out
	}

	require.Equal(t, []uuid.UUID{first.UUID, second.UUID, third.UUID}, list(db.ARQFilter{}, db.Listing{}))
	require.Equal(t, []uuid.UUID{second.UUID}, list(db.ARQFilter{}, db.Listing{Limit: 1, Marker: first.UUID}))
	require.Equal(t, []uuid.UUID{second.UUID}, list(db.ARQFilter{Instances: []uuid.UUID{who, uuid.New()}}, db.Listing{}))
	require.Equal(t, []uuid.UUID{second.UUID}, list(db.ARQFilter{Hosts: []string{"h1"}}, db.Listing{}))
	require.Equal(t, []uuid.UUID{first.UUID, third.UUID}, list(db.ARQFilter{Profiles: []string{"one"}}, db.Listing{}))
	require.Equal(t, []uuid.UUID{second.UUID}, list(db.ARQFilter{States: []cyborg.ARQState{cyborg.ARQBound}}, db.Listing{}))
	require.Empty(t, list(db.ARQFilter{Projects: []string{"q"}}, db.Listing{}))

	_, err := r.ARQs(t.Context(), db.ARQFilter{}, db.Listing{Marker: uuid.New()})
	requireKind(t, cyborg.ErrInvalid, err)
}

// TestPhysicalNetwork: the handle of a network function says which physical
// network it is connected to, where its driver reports one.
func TestPhysicalNetwork(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	d := &h.content.Backends[0].Devices[0].Deployables[0]
	d.Attributes = append(d.Attributes, cyborg.Attribute{Key: "physical_network", Value: "physnet1"})
	h.report(t)
	a := h.ready(t, "card0")

	r.profile(t, "one", one())
	arq := r.request(t, "one")[0]
	r.do(t, toBind("h1", vm(), a.ProviderUUID, arq), cyborg.OperationSucceeded)
	require.Equal(t, map[string]string{"function": "0", "physical_network": "physnet1"}, r.arq(t, arq.UUID).Handle.Info)
}

// TestL46StaleARQs: requests that were never bound are deleted after a time
// limit. Instances that were not seen for long are listed, so that Nova is
// asked about them.
func TestL46StaleARQs(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")
	r.profile(t, "one", one())
	old, fresh, bound := r.request(t, "one")[0], r.request(t, "one")[0], r.request(t, "one")[0]
	who := uuid.New()
	r.do(t, toBind("h1", instance(who.String()), a.ProviderUUID, bound), cyborg.OperationSucceeded)

	r.exec(t, "UPDATE arqs SET created_at = now() - interval '2 hours' WHERE uuid = $1", old.UUID)

	adopted := r.request(t, "one")[0] // its bind had failed before it had an instance
	r.exec(t, "UPDATE arqs SET state = 'BindFailed', reason = 'it failed' WHERE uuid = $1", adopted.UUID)
	r.exec(t, "UPDATE arqs SET updated_at = now() - interval '2 hours' WHERE uuid = $1", adopted.UUID)

	service := cyborg.Holder{Kind: cyborg.HolderService, ID: "infrastructure"}
	infrastructure, held, recent := r.request(t, "one")[0], r.request(t, "one")[0], r.request(t, "one")[0]
	r.do(t, toBind("h1", service, a.ProviderUUID, held), cyborg.OperationSucceeded)
	for _, arq := range []cyborg.ARQ{infrastructure, recent} { // no handle is left for them
		_, err := r.Admit(t.Context(), toBind("h1", service, a.ProviderUUID, arq))
		requireKind(t, cyborg.ErrNotFound, err)
		failed := r.arq(t, arq.UUID)
		require.Equal(t, service, failed.Holder())
	}

	r.exec(t, "UPDATE arqs SET updated_at = now() - interval '2 hours' WHERE uuid = ANY($1)", []uuid.UUID{infrastructure.UUID, held.UUID})
	n, err := r.CollectUnbound(t.Context(), time.Hour, 100)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Equal(t, cyborg.ARQBound, r.arq(t, held.UUID).State)
	require.Equal(t, cyborg.ARQBindFailed, r.arq(t, recent.UUID).State)

	for _, gone := range []cyborg.ARQ{old, adopted, infrastructure} {
		_, err = r.ARQ(t.Context(), gone.UUID)
		requireKind(t, cyborg.ErrNotFound, err)
	}
	r.arq(t, fresh.UUID)

	unseen := func() []uuid.UUID {
		found, err := r.StaleInstances(t.Context(), time.Hour, 100)
		require.NoError(t, err)
		var ids []uuid.UUID
		for _, held := range found {
			require.Greater(t, held.Untouched, time.Hour)
			require.Less(t, held.Untouched, 3*time.Hour)
			held.Untouched = 0

			require.Equal(t, db.HeldInstance{
				UUID: held.UUID, Host: "h1", Bound: true, ARQs: []uuid.UUID{bound.UUID}, Providers: []uuid.UUID{a.ProviderUUID},
			}, held)
			ids = append(ids, held.UUID)
		}
		return ids
	}
	require.Empty(t, unseen())

	r.exec(t, "UPDATE arqs SET seen_at = now() - interval '2 hours', updated_at = now() - interval '2 hours'")
	require.Equal(t, []uuid.UUID{who}, unseen())
	require.NoError(t, r.RecordSeenInstances(t.Context(), []db.SeenInstance{{UUID: who, Host: "h1"}}, 0))
	require.Empty(t, unseen())
}

// TestARQPlans: Nova's binds and unbinds, and the search for stale requests,
// cost the same however many requests there are.
func TestARQPlans(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")
	r.profile(t, "one", one())

	r.exec(t, `
		INSERT INTO arqs (project, profile_uuid, profile_name, group_index, profile_group, state, host, provider_uuid, instance_uuid, reason)
		SELECT 'p' || n % 1000, p.uuid, p.name, 0, '{}', 'BindFailed', 'h' || n % 100, gen_random_uuid(), gen_random_uuid(), 'x'
		FROM device_profiles p, generate_series(1, 30000) AS n`)
	r.exec(t, "ANALYZE")

	store, plans := explaining(t, r.url)
	past := &records{Store: store, url: r.url, sql: r.sql}
	who := uuid.New()

	arq := past.request(t, "one")[0]
	past.do(t, toBind("h1", instance(who.String()), a.ProviderUUID, arq), cyborg.OperationSucceeded)
	_, err := store.ARQs(t.Context(), db.ARQFilter{Instances: []uuid.UUID{who}}, db.Listing{})
	require.NoError(t, err)
	past.arq(t, arq.UUID)
	_, err = store.ARQs(t.Context(), db.ARQFilter{Projects: []string{"p7"}}, db.Listing{})
	require.NoError(t, err)

	past.do(t, toUnbind(arq), cyborg.OperationSucceeded)
	past.do(t, toBind("h1", instance(who.String()), a.ProviderUUID, arq), cyborg.OperationSucceeded)
	_, err = store.DeleteARQs(t.Context(), db.ARQDeletion{Instance: who, AllowBound: true}, alice())
	require.NoError(t, err)
	_, err = store.CollectUnbound(t.Context(), time.Hour, 100)
	require.NoError(t, err)

	scan := regexp.MustCompile(`Seq Scan on arqs\b`)
	for _, plan := range plans() {
		require.NotRegexp(t, scan, plan)
	}
}
