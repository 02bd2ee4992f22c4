package db_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// These tests are about handles that their host prepares: its driver attaches them for
// instances and services, too.

// preparing has all cards of the host report that it prepares their handles, with the
// parameter mac.
func (h *host) preparing(t testing.TB) {
	t.Helper()
	for i := range h.devices() {
		h.content.Backends[0].Devices[i].Deployables[0].Preparation = &cyborg.Preparation{
			Parameters: []cyborg.Parameter{{Name: "mac", Type: cyborg.ParameterMAC, Help: "The address."}},
		}
	}
	h.report(t)
}

// prepared adds a host that prepares the handles of its cards, with card0 in service.
func (r *records) prepared(t testing.TB, cards int) (*host, *cyborg.Accelerator) {
	t.Helper()
	h := r.addHost(t, "h1", cards)
	h.preparing(t)
	return h, h.ready(t, "card0")
}

const mac = "52:54:00:12:34:56"

// withMAC is a profile group that asks for one FPGA with this parameter.
func withMAC(mac string) map[string]string {
	group := one()
	group["accel:parameter:mac"] = mac
	return group
}

// macs are the parameters of withMAC.
func macs(mac string) map[string]string { return map[string]string{"mac": mac} }

// with sets the parameters of an attach.
func with(a db.Admission, parameters map[string]string) db.Admission {
	edit(&a, func(r *cyborg.AttachRequest) { r.Parameters = parameters })
	return a
}

// bound binds a new request for one handle of the accelerator, whose journal then has it.
func (h *host) bound(t testing.TB, a *cyborg.Accelerator, holder cyborg.Holder, group map[string]string) cyborg.ARQ {
	t.Helper()
	name := uuid.NewString()
	h.records.profile(t, name, group)
	arq := h.records.request(t, name)[0]
	work := h.records.do(t, toBind(h.name, holder, a.ProviderUUID, arq), cyborg.OperationSucceeded)
	h.prepare(t, a.LocalName, h.records.arq(t, arq.UUID).Handle.UUID, work.Operation)
	return h.records.arq(t, arq.UUID)
}

// prepare adds a handle to the journal, and reports that.
func (h *host) prepare(t testing.TB, local string, handle, operation uuid.UUID) {
	t.Helper()
	h.attached(local, operation)
	h.content.Attachments[len(h.content.Attachments)-1].Handle = scalar[string](t, h.records, "SELECT identity FROM attach_handles WHERE uuid = $1", handle)
	h.report(t)
}

// deleted deletes a request as Nova does when it deletes the instance.
func (r *records) deleted(t testing.TB, arq uuid.UUID) db.DeletedARQs {
	t.Helper()
	out, err := r.DeleteARQs(t.Context(), db.ARQDeletion{UUIDs: []uuid.UUID{arq}, AllowBound: true}, alice())
	require.NoError(t, err)
	return out
}

// handles counts the handles by who has them.
func (r *records) handles(t testing.TB) map[string]int {
	t.Helper()
	return scalar[map[string]int](t, r, `
		SELECT jsonb_object_agg(who, number) FROM (
			SELECT CASE WHEN holder_kind IS NOT NULL THEN 'held' WHEN unconfirmed_kind IS NOT NULL THEN 'unconfirmed' ELSE 'free' END AS who, count(*) AS number
			FROM attach_handles GROUP BY 1) AS counted`)
}

// requireLeft requires that the host has still to take a handle of the accelerator back
// that it had prepared: that keeps nobody from the other handles, but whatever needs the
// whole accelerator.
func (r *records) requireLeft(t testing.TB, id uuid.UUID) {
	t.Helper()
	a := r.accelerator(t, id)
	require.Nil(t, a.Fence)
	require.NotNil(t, a.FreeHandle())
	require.Equal(t, cyborg.StatusReady, a.Status())
	_, err := r.Admit(t.Context(), toProgram(id))
	requireKind(t, cyborg.ErrChanged, err, "has still to take a handle of accelerator")
}

// settle has the host settle what is to be settled there, as a run for it does.
func (h *host) settle(t testing.TB) []db.Disagreement {
	t.Helper()
	found, err := h.records.DisagreementsOf(t.Context(), h.name, 100)
	require.NoError(t, err)
	var decided []db.Disagreement
	for _, d := range found {
		one, err := h.records.Decide(t.Context(), d)
		require.NoError(t, err)
		decided = append(decided, one)
	}
	require.NoError(t, h.records.RecordSettled(t.Context(), decided))
	return decided
}

// TestPreparationIsRecorded: what a host says about the preparation of its handles, and
// about the functions that go with them, is recorded, replaced and removed; what nobody
// could check is left out, and the backend says so.
func TestPreparationIsRecorded(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	require.Nil(t, h.accelerator(t, "card0").Preparation)
	shown := &h.content.Backends[0].Devices[0].Deployables[0]

	want := &cyborg.Preparation{Parameters: []cyborg.Parameter{
		{Name: "mac", Type: cyborg.ParameterMAC, Help: "The address."},
		{Name: "vlan", Type: cyborg.ParameterInteger, Min: 1, Max: 4094},
		{Name: "link", Type: cyborg.ParameterChoice, Values: []string{"auto", "enable"}},
		{Name: "trust", Type: cyborg.ParameterBoolean},
	}}
	shown.Preparation, shown.Handles[0].With = want, []cyborg.PCIAddress{{Bus: 0x3b, Function: 1}}
	h.report(t)
	a := h.accelerator(t, "card0")
	require.Equal(t, want, a.Preparation)
	require.Equal(t, []string{"0000:3b:00.1"}, a.Handles[0].With)
	require.Empty(t, a.Handles[1].With)
	require.Equal(t, []string{" → "}, r.changes(t, cyborg.SubjectAccelerator, cyborg.AxisReported))
	generation := h.reply.Generation
	h.content.Backends[0].Options = map[string]any{"something": "else"}
	h.report(t)
	require.Equal(t, generation+1, h.reply.Generation)
	require.Len(t, r.changes(t, cyborg.SubjectAccelerator, cyborg.AxisReported), 1, "nothing about it has changed")

	bad := []cyborg.Parameter{
		{Name: "MAC", Type: cyborg.ParameterMAC},
		{Name: "mac", Type: cyborg.ParameterBoolean}, // a second one
		{Name: "color", Type: "color"},
		{Name: "talk", Type: cyborg.ParameterBoolean, Help: strings.Repeat("x", 256)},
		{Name: "nothing", Type: cyborg.ParameterInteger, Min: 2, Max: 1},
		{Name: "none", Type: cyborg.ParameterChoice},
		{Name: "long", Type: cyborg.ParameterChoice, Values: []string{strings.Repeat("x", 256)}},
	}
	shown.Preparation = &cyborg.Preparation{Parameters: slices.Concat(want.Parameters, bad)}
	h.report(t)
	require.Equal(t, want, h.accelerator(t, "card0").Preparation)
	complaint := scalar[string](t, r, "SELECT error FROM backends")
	for _, p := range bad {
		require.Contains(t, complaint, fmt.Sprintf("parameter %q of deployable card0 is left out", p.Name))
	}

	many := &cyborg.Preparation{}
	for i := range cyborg.MaxParameters + 1 {
		many.Parameters = append(many.Parameters, cyborg.Parameter{Name: fmt.Sprintf("p%d", i), Type: cyborg.ParameterBoolean})
	}
	shown.Preparation, shown.Handles[0].With = many, slices.Repeat(shown.Handles[0].With, 65)
	h.report(t)
	require.Equal(t, many.Parameters[:cyborg.MaxParameters], h.accelerator(t, "card0").Preparation.Parameters)
	require.Len(t, h.accelerator(t, "card0").Handles[0].With, 64)
	complaint = scalar[string](t, r, "SELECT error FROM backends")
	require.Contains(t, complaint, `parameter "p32" of deployable card0 is left out: there are too many`)
	require.Contains(t, complaint, "1 functions that go with handle card0.0 are left out")

	shown.Preparation, shown.Handles[0].With = &cyborg.Preparation{}, nil
	h.report(t)
	require.Equal(t, &cyborg.Preparation{}, h.accelerator(t, "card0").Preparation, "it is prepared without parameters")
	require.Empty(t, h.accelerator(t, "card0").Handles[0].With)

	shown.Preparation = nil
	h.report(t)
	require.Nil(t, h.accelerator(t, "card0").Preparation)
}

// TestAttachIsPrepared: an attach to an instance or a service is prepared where the host
// says that it does so, an attach to the host never is. Each has the parameters that were
// asked for, in its work, in the lists and in the history, until it is detached.
func TestAttachIsPrepared(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		holder                cyborg.Holder
		preparing, isPrepared bool
	}{
		"an instance":           {vm(), true, true},
		"a service":             {cyborg.Holder{Kind: cyborg.HolderService, ID: "infrastructure"}, true, true},
		"the host":              {onHost("h1"), true, false},
		"an instance as before": {vm(), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addHost(t, "h1", 1)
			id := h.ready(t, "card0").UUID
			var parameters map[string]string
			if c.preparing {
				h.preparing(t)
				parameters = macs(mac)
			}

			work := r.begin(t, with(toAttach(id, c.holder), parameters))
			require.Len(t, work.Handles, 1)
			require.Equal(t, c.isPrepared, work.Handles[0].Prepared)
			require.Equal(t, parameters, work.Handles[0].Parameters)
			require.Equal(t, c.isPrepared || c.holder.Kind == cyborg.HolderHost, work.Handles[0].OnHost())
			if c.holder.Kind != cyborg.HolderHost {
				require.Equal(t, work.Handles, work.Given[0].Handles)
			}

			r.end(t, work, cyborg.OperationSucceeded)
			held := r.accelerator(t, id).Handles[0]
			require.Equal(t, c.isPrepared, held.Prepared)
			require.Equal(t, parameters, held.Parameters)
			told := scalar[[]map[string]string](t, r, "SELECT array_agg(data -> 'parameters' ORDER BY id) FROM events WHERE axis = 'holder'")
			require.Equal(t, []map[string]string{parameters, parameters}, told)

			detach := r.begin(t, toDetach(id, nil))
			require.Equal(t, work.Handles, detach.Handles)
			r.end(t, detach, cyborg.OperationSucceeded)
			free := r.accelerator(t, id).Handles[0]
			require.True(t, free.Free())
			require.False(t, free.Prepared)
			require.Empty(t, free.Parameters)
			require.False(t, scalar[bool](t, r, "SELECT bool_or(data ? 'parameters') FROM events WHERE axis = 'holder' AND to_value = ''"))
		})
	}
}

// TestAttachRefusesParameters: what the accelerator does not take is refused, at the
// admission and where it does not take it any more when the attach begins.
func TestAttachRefusesParameters(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.prepared(t, 1)
	for _, holder := range []cyborg.Holder{vm(), onHost("h1")} {
		_, err := r.Admit(t.Context(), with(toAttach(a.UUID, holder), macs("any")))
		requireKind(t, cyborg.ErrInvalid, err, "parameter mac", "the MAC address of one interface")
		_, err = r.Admit(t.Context(), with(toAttach(a.UUID, holder), map[string]string{"vlan": "1"}))
		requireKind(t, cyborg.ErrInvalid, err, "vlan")
	}

	op := r.admit(t, with(toAttach(a.UUID, vm()), macs(mac)))
	h.content.Backends[0].Devices[0].Deployables[0].Preparation = nil
	h.report(t)
	_, err := r.Begin(t.Context(), runOf(op.ID))
	requireKind(t, cyborg.ErrInvalid, err, "mac")
	require.Equal(t, map[string]int{"free": 2}, r.handles(t))
}

// TestBindIsPrepared: a bind is prepared with the parameters of its profile, and fails
// where the accelerator does not take them. Its work and that of its unbind have both.
func TestBindIsPrepared(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	_, a := r.prepared(t, 1)
	r.profile(t, "good", withMAC(mac))
	r.profile(t, "bad", withMAC("any"))
	r.profile(t, "plain", one())
	bad := r.request(t, "bad")[0]
	_, err := r.Admit(t.Context(), toBind("h1", vm(), a.ProviderUUID, bad))
	requireKind(t, cyborg.ErrInvalid, err, "parameter mac")
	require.Equal(t, cyborg.ARQBindFailed, r.arq(t, bad.UUID).State)
	require.Equal(t, map[string]int{"free": 2}, r.handles(t))

	good, plain := r.request(t, "good")[0], r.request(t, "plain")[0]
	work := r.begin(t, toBind("h1", vm(), a.ProviderUUID, good, plain))
	require.Len(t, work.Given, 1)
	for i, parameters := range []map[string]string{macs(mac), nil} {
		require.True(t, work.Given[0].Handles[i].Prepared)
		require.Equal(t, parameters, work.Given[0].Handles[i].Parameters)
	}
	r.end(t, work, cyborg.OperationSucceeded)
	require.Equal(t, macs(mac), r.accelerator(t, a.UUID).Handles[0].Parameters)

	unbind := r.begin(t, toUnbind(good))
	require.True(t, unbind.Handles[0].Prepared)
	require.Equal(t, macs(mac), unbind.Handles[0].Parameters)
	r.end(t, unbind, cyborg.OperationSucceeded)
	require.Equal(t, map[string]int{"free": 1, "held": 1}, r.handles(t), "its host has taken it back")
}

// TestProfileAsksForParametersInVain: an accelerator whose handles are given out as they
// are takes no parameters.
func TestProfileAsksForParametersInVain(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")
	r.profile(t, "mac", withMAC(mac))
	arq := r.request(t, "mac")[0]
	_, err := r.Admit(t.Context(), toBind("h1", vm(), a.ProviderUUID, arq))
	requireKind(t, cyborg.ErrInvalid, err, `no parameter "mac"`)
	require.Contains(t, r.arq(t, arq.UUID).Reason, `no parameter "mac"`)
}

// TestPreparedIsAttachedOnItsHost: the journal of a host has what it has prepared, and
// that is as recorded. Where it has not, the host attaches it again for its holder, with
// its parameters.
func TestPreparedIsAttachedOnItsHost(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.prepared(t, 2)
	other := h.ready(t, "card1")
	who := vm()
	arq := h.bound(t, a, who, withMAC(mac))
	work := r.do(t, with(toAttach(other.UUID, who), macs(mac)), cyborg.OperationSucceeded)
	h.prepare(t, "card1", work.Handles[0].UUID, work.Operation)
	require.Empty(t, r.disagreements(t))
	r.requireUndone(t, a.UUID, "")
	require.False(t, h.asked(t))

	h.boot = "boot-2"
	for i := range h.content.Attachments {
		h.content.Attachments[i].State = cyborg.AttachmentLost
	}
	h.report(t)
	for card, by := range map[*cyborg.Accelerator]uuid.UUID{a: arq.Operation, other: work.Operation} {
		r.requireUndone(t, card.UUID, undoneByBoot)
		found := r.disagreements(t)[card.LocalName]
		require.Equal(t, "attached", found.Recorded)
		require.True(t, found.Attach)
		require.False(t, found.Given())
		require.Equal(t, by, found.Operation)
		require.Equal(t, cyborg.AttachmentLost, found.Journal)
		require.True(t, found.Handle.Prepared)
		require.Equal(t, who, found.Handle.Holder)
		require.Equal(t, macs(mac), found.Handle.Parameters)
	}

	require.Len(t, h.settle(t), 2)
	r.requireUndone(t, a.UUID, "")
	require.Equal(t, who, *r.accelerator(t, a.UUID).Handles[0].Holder)
}

// TestUnpreparedIsAsBefore: what its host does not prepare is free at once when its request
// is deleted, and is nobody's business on the host.
func TestUnpreparedIsAsBefore(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	r.profile(t, "one", one())
	arq := r.request(t, "one")[0]
	r.do(t, toBind("h1", vm(), a.ProviderUUID, arq), cyborg.OperationSucceeded)
	h.preparing(t) // its driver has learned it since
	require.Empty(t, r.disagreements(t))

	h.attached("card0", uuid.New())
	h.report(t)
	require.True(t, func() bool { d := r.disagreements(t)["card0"]; return d.Given() }(), "two would use it")
	h.content.Attachments = h.content.Attachments[:0]
	h.report(t)

	require.Empty(t, r.deleted(t, arq.UUID).Settle)
	require.Equal(t, map[string]int{"free": 2}, r.handles(t))
	require.Nil(t, r.accelerator(t, a.UUID).Fence)
}

// TestDeletedRequestIsTakenBackByItsHost: nobody gets a prepared handle whose request was
// deleted before its host has taken it back. A bind waits for that as long as the host is
// heard.
func TestDeletedRequestIsTakenBackByItsHost(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	var told []string
	store := openStore(t, r.url, db.Options{SilentAfter: defaults().SilentAfter, ToSettle: func(hosts []string) { told = append(told, hosts...) }})
	h, a := r.prepared(t, 1)
	who := vm()
	arq := h.bound(t, a, who, withMAC(mac))
	deleted, err := store.DeleteARQs(t.Context(), db.ARQDeletion{Instance: uuid.MustParse(who.ID), AllowBound: true}, alice())
	require.NoError(t, err)
	require.Equal(t, []string{"h1"}, deleted.Settle)
	require.Equal(t, []string{"h1"}, told)
	r.requireLeft(t, a.UUID)
	require.Equal(t, map[string]int{"free": 1, "unconfirmed": 1}, r.handles(t))
	require.Equal(t, &who, r.accelerator(t, a.UUID).Handles[0].Unconfirmed)

	// The other handle is given out meanwhile, and then none is free.
	h.bound(t, a, vm(), one())
	require.Equal(t, cyborg.StatusAttached, r.accelerator(t, a.UUID).Status())
	_, err = r.Admit(t.Context(), toAttach(a.UUID, instance("vm8")))
	requireKind(t, cyborg.ErrChanged, err, "host h1 has still to take a handle", a.Name)
	r.profile(t, "one", one())
	next := r.request(t, "one")[0]
	_, err = r.Admit(t.Context(), toBind("h1", vm(), a.ProviderUUID, next))
	requireKind(t, cyborg.ErrClaimed, err, "host h1 has still to take a handle", a.Name)
	require.Equal(t, cyborg.ARQInitial, r.arq(t, next.UUID).State)

	settled := h.settle(t)
	require.Len(t, settled, 1)
	require.Equal(t, "left", settled[0].Recorded)
	require.False(t, settled[0].Attach)
	require.Equal(t, arq.Operation, settled[0].Operation)
	require.Equal(t, who, settled[0].Handle.Holder)
	require.True(t, settled[0].Handle.OnHost())
	require.Equal(t, map[string]int{"free": 1, "held": 1}, r.handles(t))
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM attach_handles WHERE holder_kind IS NULL AND prepared OR parameters <> '{}'"))
	r.do(t, toBind("h1", vm(), a.ProviderUUID, next), cyborg.OperationSucceeded)
	r.requireAgreed(t)
}

// TestStuckHandleIsNotForgotten: a handle that its host could not take back stays reserved
// in Placement, and in what Reconcile could not settle, until the host has taken it back:
// whatever becomes of the handle beside it, and also where the journal of the host does not
// have it.
func TestStuckHandleIsNotForgotten(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, after func(t *testing.T, h *host, a *cyborg.Accelerator)
	}{
		"beside others": {
			before: func(*testing.T, *host, *cyborg.Accelerator) {},
			after: func(t *testing.T, h *host, a *cyborg.Accelerator) {
				t.Helper()
				h.bound(t, a, vm(), withMAC("52:54:00:00:00:02"))
			},
		},
		"not in the journal": {
			before: func(t *testing.T, h *host, _ *cyborg.Accelerator) {
				t.Helper()
				h.content.Attachments = h.content.Attachments[:0]
				h.report(t)
			},
			after: func(t *testing.T, h *host, _ *cyborg.Accelerator) {
				t.Helper()
				h.content.Backends[0].Devices[0].Model += "x" // so that there is something to report
				h.report(t)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h, a := r.prepared(t, 1)
			requireStuck := func(want int) {
				t.Helper()
				now, err := r.Placement(t.Context(), "h1")
				require.NoError(t, err)
				require.Equal(t, want, now.Deployables[0].Stuck)
				unsettled, err := r.Unsettled(t.Context(), 10)
				require.NoError(t, err)
				require.Len(t, unsettled, want)
			}

			arq := h.bound(t, a, vm(), withMAC(mac))
			c.before(t, h, a)
			r.deleted(t, arq.UUID)
			found, err := r.DisagreementsOf(t.Context(), "h1", 1)
			require.NoError(t, err)
			decided, err := r.Decide(t.Context(), found[0])
			require.NoError(t, err)
			requireStuck(0)
			news, err := r.RecordUnsettled(t.Context(), decided, "it is in use by qemu")
			require.NoError(t, err)
			require.True(t, news)
			requireStuck(1)
			c.after(t, h, a)
			requireStuck(1)
			require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{decided}))
			requireStuck(0)
		})
	}
}

// TestPlacementStaysOpenForWhatIsTakenBack: Nova may give out again what a host is taking
// back, because a bind waits for it. Once that has failed, the handle is reserved until the
// host has taken it back. What is in doubt in another way closes the accelerator.
func TestPlacementStaysOpenForWhatIsTakenBack(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.prepared(t, 1)
	closed := func() bool {
		t.Helper()
		now, err := r.Placement(t.Context(), "h1")
		require.NoError(t, err)
		return now.Deployables[0].Fence != nil
	}
	stuck := func() int {
		t.Helper()
		now, err := r.Placement(t.Context(), "h1")
		require.NoError(t, err)
		require.Nil(t, now.Deployables[0].Fence)
		return now.Deployables[0].Stuck
	}
	version := func() int64 {
		t.Helper()
		now, err := r.Placement(t.Context(), "h1")
		require.NoError(t, err)
		return now.Version
	}

	r.deleted(t, h.bound(t, a, vm(), withMAC(mac)).UUID)
	require.Zero(t, stuck())

	found, err := r.DisagreementsOf(t.Context(), "h1", 1)
	require.NoError(t, err)
	decided, err := r.Decide(t.Context(), found[0])
	require.NoError(t, err)
	before := version()
	_, err = r.RecordUnsettled(t.Context(), decided, "it is in use by qemu")
	require.NoError(t, err)
	require.Equal(t, 1, stuck())
	require.Greater(t, version(), before, "Placement is told of it")

	before = version()
	require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{decided}))
	require.Zero(t, stuck())
	require.Greater(t, version(), before, "and that it is over")

	work := r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded)
	h.prepare(t, "card0", work.Handles[0].UUID, work.Operation)
	h.fall(t)
	r.do(t, toForce(a.UUID, nil), cyborg.OperationSucceeded)
	require.True(t, closed())
}

// TestBindDoesNotWaitForEver: a bind waits no longer than it may, and not for a host that
// is silent, nor for what needs an operator.
func TestBindDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		make  func(r *records, h *host, a *cyborg.Accelerator, bind *db.Admission)
		kind  cyborg.ErrorKind
		cause string
	}{
		"out of time": {func(_ *records, _ *host, _ *cyborg.Accelerator, bind *db.Admission) {
			edit(bind, func(r *cyborg.BindRequest) { r.Within = 0 })
		}, cyborg.ErrTimeout, "has still to take a handle"},
		"a silent host": {func(_ *records, h *host, _ *cyborg.Accelerator, _ *db.Admission) { h.fall(t) }, cyborg.ErrChanged, "host h1 has still to take a handle"},
		"maintenance": {func(r *records, _ *host, a *cyborg.Accelerator, _ *db.Admission) {
			_, err := r.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "cleaning", By: "bob"}, alice())
			require.NoError(t, err)
		}, cyborg.ErrChanged, "cleaning"},
		"another fence": {func(r *records, _ *host, _ *cyborg.Accelerator, _ *db.Admission) {
			r.exec(t, "UPDATE deployables SET fence_reason = 'it burns'")
		}, cyborg.ErrChanged, "it burns"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h, a := r.prepared(t, 1)
			r.deleted(t, h.bound(t, a, vm(), one()).UUID)
			r.profile(t, "one", one())
			r.do(t, toAttach(a.UUID, instance("vm9")), cyborg.OperationSucceeded) // the other handle
			arq := r.request(t, "one")[0]
			bind := toBind("h1", vm(), a.ProviderUUID, arq)
			c.make(r, h, a, &bind)

			_, err := r.Admit(t.Context(), bind)
			requireKind(t, c.kind, err, c.cause)
			require.Equal(t, cyborg.ARQBindFailed, r.arq(t, arq.UUID).State)
		})
	}
}

// TestBindWaitsForWhatAPartLeaves: nobody has the whole while the host has still to take a
// part back, and a bind waits for that as well.
func TestBindWaitsForWhatAPartLeaves(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	c := r.addCarved(t, "h1", 2)
	c.preparing(t)
	r.deleted(t, c.bound(t, c.parts[0], vm(), one()).UUID)

	r.profile(t, "one", one())
	bind := toBind("h1", vm(), c.whole.ProviderUUID, r.request(t, "one")...)
	edit(&bind, func(r *cyborg.BindRequest) { r.RefuseIfHeld = true })
	_, err := r.Admit(t.Context(), bind)
	requireKind(t, cyborg.ErrClaimed, err, "exclude each other", "its host has still to take it back")
	c.settle(t)
	r.do(t, bind, cyborg.OperationSucceeded)
}

// TestBindInFlightIsNoDisagreement: a bind that loads no image claims no accelerator.
// While it is open, what its host has of its handles says nothing, neither to Reconcile
// nor to who looks for what was undone.
func TestBindInFlightIsNoDisagreement(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.prepared(t, 1)
	r.profile(t, "one", one())
	op := r.admit(t, toBind("h1", vm(), a.ProviderUUID, r.request(t, "one")...))
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM claims"))
	agreed := func() {
		t.Helper()
		require.Empty(t, r.disagreements(t))
		require.NoError(t, r.CompareUndone(t.Context()))
		r.requireUndone(t, a.UUID, "")
	}
	agreed()
	_, err := r.Begin(t.Context(), runOf(op.ID))
	require.NoError(t, err)
	agreed()

	h.attached("card0", op.ID)
	for _, state := range []cyborg.AttachmentState{cyborg.AttachmentDone, cyborg.AttachmentInDoubt, cyborg.AttachmentLost} {
		h.content.Attachments[0].State = state
		h.report(t)
		agreed()
	}
	_, err = r.Decide(t.Context(), db.Disagreement{Host: "h1", Backend: "fake", Deployable: "card0", Handle: cyborg.WorkHandle{Identity: "card0.0"}})
	requireKind(t, cyborg.ErrChanged, err)

	// Its end makes the last report count: the host has it no longer.
	require.NoError(t, r.End(t.Context(), runOf(op.ID), cyborg.Outcome{Operation: op.ID, State: cyborg.OperationSucceeded}))
	require.True(t, r.disagreements(t)["card0"].Attach)
}

// TestBindThatEndsBadly: what a bind has had prepared is free where all was undone, and
// unconfirmed where the undo failed. So it is where its request was deleted meanwhile.
func TestBindThatEndsBadly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state   cyborg.OperationState
		deleted bool
		handles map[string]int
		arq     cyborg.ARQState // empty for none
	}{
		"all undone":               {cyborg.OperationFailed, false, map[string]int{"free": 2}, cyborg.ARQBindFailed},
		"cancelled":                {cyborg.OperationCancelled, true, map[string]int{"free": 2}, ""},
		"not undone":               {cyborg.OperationNeedsOperator, false, map[string]int{"free": 1, "unconfirmed": 1}, cyborg.ARQBindFailed},
		"not undone, and deleted":  {cyborg.OperationNeedsOperator, true, map[string]int{"free": 1, "unconfirmed": 1}, ""},
		"succeeded, and deleted":   {cyborg.OperationSucceeded, true, map[string]int{"free": 1, "unconfirmed": 1}, ""},
		"succeeded, for a service": {cyborg.OperationSucceeded, false, map[string]int{"free": 1, "held": 1}, cyborg.ARQBound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			var told []string
			store := openStore(t, r.url, db.Options{SilentAfter: defaults().SilentAfter, ToSettle: func(hosts []string) { told = append(told, hosts...) }})
			h, a := r.prepared(t, 1)
			r.profile(t, "mac", withMAC(mac))
			arq := r.request(t, "mac")[0]
			holder := vm()
			if name == "succeeded, for a service" {
				holder = cyborg.Holder{Kind: cyborg.HolderService, ID: "infrastructure"}
			}
			work := r.begin(t, toBind("h1", holder, a.ProviderUUID, arq))
			h.attached("card0", work.Operation)
			h.report(t)
			if c.deleted {
				require.Len(t, r.deleted(t, arq.UUID).Pending, 1)
			}

			(&records{Store: store}).end(t, work, c.state)
			require.Equal(t, c.handles, r.handles(t))
			if c.arq == "" {
				_, err := r.ARQ(t.Context(), arq.UUID)
				requireKind(t, cyborg.ErrNotFound, err)
			} else {
				require.Equal(t, c.arq, r.arq(t, arq.UUID).State)
			}

			if c.handles["unconfirmed"] == 0 {
				require.Empty(t, told)
				require.Nil(t, r.accelerator(t, a.UUID).Fence)
				return
			}
			require.Equal(t, []string{"h1"}, told)
			r.requireLeft(t, a.UUID)
			h.settle(t)
			require.Equal(t, map[string]int{"free": 2}, r.handles(t))
		})
	}
}

// TestUnbindOfADeletedRequest: where the host has not taken a prepared handle back, an
// unbind leaves it with its request, or unconfirmed if that was deleted meanwhile.
func TestUnbindOfADeletedRequest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		outcome cyborg.Outcome
		handles map[string]int
	}{
		"succeeded":      {cyborg.Outcome{State: cyborg.OperationSucceeded}, map[string]int{"free": 2}},
		"cancelled":      {cyborg.Outcome{State: cyborg.OperationCancelled}, map[string]int{"free": 1, "unconfirmed": 1}},
		"refused":        {cyborg.Outcome{State: cyborg.OperationFailed, Error: cyborg.Errorf(cyborg.ErrInUse, "it is used")}, map[string]int{"free": 1, "unconfirmed": 1}},
		"failed":         {cyborg.Outcome{State: cyborg.OperationFailed, Error: cyborg.Errorf(cyborg.ErrHardware, "it smoked")}, map[string]int{"free": 1, "unconfirmed": 1}},
		"needs operator": {cyborg.Outcome{State: cyborg.OperationNeedsOperator}, map[string]int{"free": 1, "unconfirmed": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h, a := r.prepared(t, 1)
			arq := h.bound(t, a, vm(), one())
			work := r.begin(t, toUnbind(arq))
			require.Empty(t, r.disagreements(t))
			r.deleted(t, arq.UUID)
			c.outcome.Operation = work.Operation
			require.NoError(t, r.End(t.Context(), runOf(work.Operation), c.outcome))
			require.Equal(t, c.handles, r.handles(t))
		})
	}
}

// TestUnbindThatNeedsAnOperator: a host that has taken a handle back and could not
// prepare it again was touched, whatever the first step was refused for.
func TestUnbindThatNeedsAnOperator(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.prepared(t, 1)
	arq := h.bound(t, a, vm(), one())
	work := r.begin(t, toUnbind(arq))
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationNeedsOperator, Error: cyborg.Errorf(cyborg.ErrInUse, "another one is in use"),
	}))
	require.Equal(t, cyborg.ARQUnbindFailed, r.arq(t, arq.UUID).State)
	require.Equal(t, map[string]int{"free": 1, "held": 1}, r.handles(t))
}

// TestForcedDetachOfPrepared: the host settles what was taken by force as what it has
// prepared, also where it was forgotten meanwhile.
func TestForcedDetachOfPrepared(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.prepared(t, 1)
	work := r.do(t, with(toAttach(a.UUID, instance("vm1")), macs(mac)), cyborg.OperationSucceeded)
	h.prepare(t, "card0", work.Handles[0].UUID, work.Operation)
	h.fall(t)
	r.do(t, toForce(a.UUID, nil), cyborg.OperationSucceeded)
	r.requireLeft(t, a.UUID)
	h.hear(t)

	found := r.disagreements(t)["card0"]
	require.Equal(t, "left", found.Recorded)
	require.Equal(t, instance("vm1"), found.Handle.Holder)
	require.True(t, found.Handle.Prepared)

	h.fall(t)
	require.NoError(t, r.ForgetHost(t.Context(), "h1", alice()))
	h.content.Attachments = h.content.Attachments[:0]
	h.report(t)
	found = r.disagreements(t)["card0"]
	require.Equal(t, "left", found.Recorded)
	require.True(t, found.Handle.Prepared)
	h.settle(t)
	require.Equal(t, map[string]int{"free": 2}, r.handles(t))
}

// TestAttachOfPreparedInDoubt: an attach to an instance whose undo has failed leaves the
// handle with the instance, in doubt, until its host has taken it back.
func TestAttachOfPreparedInDoubt(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.prepared(t, 1)
	work := r.do(t, toAttach(a.UUID, instance("vm1")), cyborg.OperationNeedsOperator)
	h.attached("card0", work.Operation)
	h.report(t)
	require.Equal(t, map[string]int{"free": 1, "held": 1}, r.handles(t))

	settled := h.settle(t)
	require.Len(t, settled, 1)
	require.Equal(t, "in_doubt", settled[0].Recorded)
	require.True(t, settled[0].Handle.Prepared)
	require.Equal(t, map[string]int{"free": 2}, r.handles(t))
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, a.UUID).Status())
}

// TestObservationAsksForTheJournal: after what an operation has seen of a device, the host
// is asked for a report where its journal has something that is not prepared, or lacks
// something that is.
func TestObservationAsksForTheJournal(t *testing.T) {
	t.Parallel()
	for name, lacks := range map[string]bool{"the journal has it": false, "the journal lacks it": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h, a := r.prepared(t, 1)
			h.bound(t, a, vm(), one())
			if lacks {
				h.content.Attachments = h.content.Attachments[:0]
				h.report(t)
				r.exec(t, "UPDATE deployables SET fence_reason = NULL")
			}
			require.False(t, h.asked(t))

			work := r.begin(t, toAttach(a.UUID, vm()))
			h.sequence++
			require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
				Operation: work.Operation, State: cyborg.OperationSucceeded,
				Observations: []cyborg.Observation{{Sequence: h.sequence, Backend: "fake", Device: h.devices()[0]}},
			}))
			require.Equal(t, lacks, h.asked(t))
		})
	}
}

// TestInstanceIsNotRescuedBeforeItsHostIsReady: Nova reboots an instance only when its host
// has attached again what it had prepared.
func TestInstanceIsNotRescuedBeforeItsHostIsReady(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.prepared(t, 1)
	who := vm()
	id := uuid.MustParse(who.ID)
	h.bound(t, a, who, one())
	h.boot = "boot-2"
	h.content.Attachments[0].State = cyborg.AttachmentLost
	h.report(t)

	hosts := func() []string {
		found, err := r.UnrescuedHosts(t.Context(), 10)
		require.NoError(t, err)
		return found
	}
	require.Empty(t, hosts())
	why, unclear, err := r.LackedCard(t.Context(), id)
	require.NoError(t, err)
	require.True(t, unclear)
	require.Equal(t, fmt.Sprintf("its host has not attached its accelerator %q again yet: %s", a.Name, undoneByBoot), why)

	h.settle(t)
	h.content.Attachments[0].State = cyborg.AttachmentDone
	h.report(t)
	require.Equal(t, []string{"h1"}, hosts())
	why, unclear, err = r.LackedCard(t.Context(), id)
	require.NoError(t, err)
	require.False(t, unclear)
	require.Empty(t, why)
}

// TestOldServerFreesWhatWasPrepared: a server of an earlier release frees a handle without
// knowing what is prepared. Its host has still to take it back.
func TestOldServerFreesWhatWasPrepared(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.prepared(t, 1)
	arq := h.bound(t, a, vm(), withMAC(mac))
	r.exec(t, "DELETE FROM arqs WHERE uuid = $1", arq.UUID)
	r.exec(t, "UPDATE attach_handles SET holder_kind = NULL, holder_id = NULL, operation_id = NULL, attached_at = NULL")
	require.Equal(t, map[string]int{"free": 1, "unconfirmed": 1}, r.handles(t))
	r.requireLeft(t, a.UUID)

	settled := h.settle(t)
	require.Len(t, settled, 1)
	require.Equal(t, "left", settled[0].Recorded)
	require.Equal(t, arq.Holder(), settled[0].Handle.Holder)
	require.Equal(t, arq.Operation, settled[0].Unconfirmed)
	require.Equal(t, map[string]int{"free": 2}, r.handles(t))
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM attach_handles WHERE prepared OR parameters <> '{}'"))
}

// TestBindAndDeleteOfPrepared lets instances bind, be deleted and be settled at once on few
// handles. No handle is given out before its host has taken it back, and none is left.
func TestBindAndDeleteOfPrepared(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, a := r.prepared(t, 1)
	r.profile(t, "mac", withMAC(mac))
	stores := []*db.Store{r.Store, openStore(t, r.url, defaults())}
	attached := &onHosts{at: map[string]uuid.UUID{}}
	var sequence atomic.Int64 // each step tells what it sees of the device, which is newer than the last report
	sequence.Store(h.sequence)

	var lives, settling sync.WaitGroup
	ended := make(chan struct{})
	settling.Go(func() {
		for over := false; !over; {
			select {
			case <-ended:
				over = true
			default:
			}
			attached.settle(t, r)
		}
	})

	for i := range 24 {
		lives.Go(func() {
			store := &records{Store: stores[i%2], url: r.url, sql: r.sql}
			arq := store.request(t, "mac")[0]
			var op cyborg.Operation
			for {
				out, err := store.Admit(t.Context(), toBind(h.name, vm(), a.ProviderUUID, arq))
				if kind := cyborg.ErrorKindOf(err); kind == cyborg.ErrClaimed || kind == cyborg.ErrNotFound {
					// A bind without a free handle has failed, and asks for another one.
					if kind == cyborg.ErrNotFound {
						arq = store.request(t, "mac")[0]
					}
					continue
				}
				require.NoError(t, err)
				op = out.Operation
				break
			}

			work, err := store.Begin(t.Context(), runOf(op.ID))
			require.NoError(t, err)
			attached.attach(t, &work)
			if i%3 == 0 { // the deletion comes before the end
				store.deleted(t, arq.UUID)
			}
			require.NoError(t, store.End(t.Context(), runOf(op.ID), cyborg.Outcome{
				Operation: op.ID, State: cyborg.OperationSucceeded,
				Observations: []cyborg.Observation{{Sequence: sequence.Add(1), Backend: "fake", Device: h.devices()[0]}},
			}))
			if i%3 != 0 {
				store.deleted(t, arq.UUID)
			}
		})
	}
	lives.Wait()
	close(ended)
	settling.Wait()
	attached.settle(t, r)
	require.Equal(t, map[string]int{"free": 2}, r.handles(t))
	require.Empty(t, attached.at)
	require.Nil(t, r.accelerator(t, a.UUID).Fence)
	r.requireAgreed(t)
}

// onHosts is what a host has attached.
type onHosts struct {
	mu sync.Mutex
	at map[string]uuid.UUID // the operation, by the identity of the handle
}

// attach prepares the handles of an operation, which nobody else may have.
func (o *onHosts) attach(t *testing.T, work *cyborg.Work) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, given := range work.Given {
		for _, handle := range given.Handles {
			other, taken := o.at[handle.Identity]
			require.False(t, taken, "handle %s is still that of operation %s", handle.Identity, other)
			require.True(t, handle.Prepared)
			o.at[handle.Identity] = work.Operation
		}
	}
}

// settle does what the records decide, as a run for the host does.
func (o *onHosts) settle(t *testing.T, r *records) {
	t.Helper()
	found, err := r.DisagreementsOf(t.Context(), "h1", 10)
	require.NoError(t, err)
	for _, d := range found {
		if d.Recorded != "left" {
			continue // the host has reported nothing, so its journal seems to lack the others
		}
		decided, err := r.Decide(t.Context(), d)
		if cyborg.ErrorKindOf(err) == cyborg.ErrChanged {
			continue
		}
		require.NoError(t, err)
		if decided.Recorded != "left" {
			continue
		}
		o.mu.Lock()
		require.Equal(t, decided.Operation, o.at[decided.Handle.Identity])
		delete(o.at, decided.Handle.Identity)
		o.mu.Unlock()
		require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{decided}))
	}
}

// TestDisagreementsOfPreparedUseAnIndex: what is attached on hosts is found without reading
// the handles of all instances.
func TestDisagreementsOfPreparedUseAnIndex(t *testing.T) {
	t.Parallel()
	r := cloud(t, 16_000)
	op := scalar[uuid.UUID](t, r, `
		WITH made AS (
			INSERT INTO operations (id, kind, state, host, input, actor, admitted_at, started_at, ended_at)
			SELECT gen_random_uuid(), 'bind', 'succeeded', 'h00000', '{}', 'alice', now(), now(), now() RETURNING id)
		INSERT INTO operation_subjects (operation_id, position, kind, subject_id) SELECT id, 0, 'host', 'h00000' FROM made RETURNING operation_id`)
	r.exec(t, "ALTER TABLE attach_handles DISABLE TRIGGER USER")
	r.exec(t, "UPDATE attach_handles SET holder_kind = 'instance', holder_id = uuid::text, operation_id = $1, attached_at = now()", op)
	r.exec(t, "UPDATE attach_handles SET prepared = true WHERE id % 500 = 0")
	r.exec(t, "ALTER TABLE attach_handles ENABLE TRIGGER USER")
	r.exec(t, "VACUUM ANALYZE attach_handles, operations")

	store, plans := explaining(t, r.url)
	plans()
	_, err := store.Disagreements(t.Context(), db.AttachmentPlace{}, "", 100)
	require.NoError(t, err)
	whole := plans()
	_, err = store.DisagreementsOf(t.Context(), "h00500", 100)
	require.NoError(t, err)
	for _, plan := range append(whole, plans()...) {
		require.NotContains(t, plan, "Seq Scan on attach_handles", plan)
	}
	require.True(t, slices.ContainsFunc(whole, func(plan string) bool { return strings.Contains(plan, "attach_handles_prepared") }), whole)
}
