package db_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// endUninstalled ends an operation whose host was asked to uninstall.
func (r *records) endUninstalled(t testing.TB, work cyborg.Work, state cyborg.OperationState, uninstalled bool) {
	t.Helper()
	outcome := cyborg.Outcome{Operation: work.Operation, State: state, Uninstalled: &uninstalled}
	if state != cyborg.OperationSucceeded {
		outcome.Error = cyborg.Errorf(cyborg.ErrHardware, "it smoked")
	}
	require.NoError(t, r.End(t.Context(), runOf(outcome.Operation), outcome))
}

// pendingUninstalls lists what PendingUninstalls lists.
func (r *records) pendingUninstalls(t testing.TB) []uuid.UUID {
	t.Helper()
	found, err := r.PendingUninstalls(t.Context(), 10)
	require.NoError(t, err)
	return found
}

// installationEvents are the changes of whether an accelerator has still to be
// uninstalled, as "from>to".
func (r *records) installationEvents(t testing.TB, id uuid.UUID) []string {
	t.Helper()
	return scalar[[]string](t, r, `
		SELECT array_agg(from_value || '>' || to_value ORDER BY transaction, id) FROM events WHERE axis = 'installation' AND subject_id = $1`, id.String())
}

// pulled retires the accelerator of a host while its card is away. putBack brings
// the card back.
func pulled(t *testing.T, r *records, h *host) (a *cyborg.Accelerator, putBack func()) {
	t.Helper()
	a = h.ready(t, "card0")
	devices := h.content.Backends[0].Devices
	h.content.Backends[0].Devices = nil
	h.report(t)
	r.endUninstalled(t, r.begin(t, toRetire(a)), cyborg.OperationSucceeded, false)

	return a, func() {
		t.Helper()
		h.content.Backends[0].Devices = devices
		h.report(t)
	}
}

// TestRetiredWhileAway: what was retired while its host did not show it has still
// to be uninstalled when it is back. Until then Nova does not get it, and its
// history says so.
func TestRetiredWhileAway(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a, putBack := pulled(t, r, r.addHost(t, "h1", 1))
	require.Equal(t, cyborg.LifecycleInactive, r.accelerator(t, a.UUID).Lifecycle)
	require.WithinDuration(t, time.Now(), r.accelerator(t, a.UUID).UninstallPending, time.Hour)
	require.Empty(t, r.pendingUninstalls(t), "it is not there")

	putBack()
	require.Equal(t, []uuid.UUID{a.UUID}, r.pendingUninstalls(t))
	require.Equal(t, []string{">uninstall_pending"}, r.installationEvents(t, a.UUID))

	work := r.begin(t, toRetire(a))
	require.Empty(t, r.pendingUninstalls(t), "it is under way")
	r.endUninstalled(t, work, cyborg.OperationSucceeded, true)
	require.Empty(t, r.pendingUninstalls(t))
	require.Zero(t, r.accelerator(t, a.UUID).UninstallPending)
	require.Equal(t, []string{">uninstall_pending", "uninstall_pending>"}, r.installationEvents(t, a.UUID))

	_, err := r.Admit(t.Context(), toRetire(a))
	requireKind(t, cyborg.ErrChanged, err, "inactive already")
}

// TestPendingUninstallIsTriedAgain: where it was not uninstalled, such as because
// somebody uses it, it is listed again, though not at once.
func TestPendingUninstallIsTriedAgain(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a, putBack := pulled(t, r, r.addHost(t, "h1", 1))
	putBack()

	// aged moves what has happened into the past.
	aged := func(since, tried string) {
		t.Helper()
		r.exec(t, "UPDATE deployables SET uninstall_pending_since = clock_timestamp() - $1::interval", since)
		r.exec(t, "UPDATE operations SET admitted_at = clock_timestamp() - $1::interval WHERE id <> (SELECT lifecycle_operation FROM deployables)", tried)
	}

	r.do(t, toRetire(a), cyborg.OperationFailed)
	require.NotZero(t, r.accelerator(t, a.UUID).UninstallPending, "nobody has uninstalled it")
	for _, step := range []struct {
		since, tried string
		due          bool
	}{
		{"0", "0", false},
		{"0", "61 s", true},
		{"8 min", "61 s", false},
		{"8 min", "121 s", true},
		{"10 days", "59 min", false},
		{"10 days", "61 min", true},
		{"-1 day", "-1 day", true},
	} {
		aged(step.since, step.tried)
		if step.due {
			require.Equal(t, []uuid.UUID{a.UUID}, r.pendingUninstalls(t), step)
		} else {
			require.Empty(t, r.pendingUninstalls(t), step)
		}
	}

	// It is away once more when it is uninstalled. That changes nothing.
	since := r.accelerator(t, a.UUID).UninstallPending
	r.endUninstalled(t, r.begin(t, toRetire(a)), cyborg.OperationSucceeded, false)
	require.Equal(t, since, r.accelerator(t, a.UUID).UninstallPending)
	require.Equal(t, []string{">uninstall_pending"}, r.installationEvents(t, a.UUID))
}

// TestPendingUninstallIsLeftAlone: nothing is uninstalled that must not be touched
// now, or whose host does not answer.
func TestPendingUninstallIsLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a, putBack := pulled(t, r, h)
	putBack()

	for name, change := range map[string][2]string{
		"maintenance": {
			"UPDATE deployables SET administration = 'maintaining', maintain_reason = 'new fans'",
			"UPDATE deployables SET administration = 'enabled', maintain_reason = ''",
		},
		"protected":   {"UPDATE deployables SET protected = 'the host boots from it'", "UPDATE deployables SET protected = ''"},
		"silent host": {"UPDATE hosts SET last_seen = clock_timestamp() - interval '1 day'", "UPDATE hosts SET last_seen = clock_timestamp()"},
		"unconfirmed": {
			"UPDATE attach_handles SET unconfirmed_kind = 'host', unconfirmed_id = 'h1', unconfirmed_operation = gen_random_uuid() WHERE identity = 'card0.0'",
			"UPDATE attach_handles SET unconfirmed_kind = NULL, unconfirmed_id = NULL, unconfirmed_operation = NULL",
		},
	} {
		r.exec(t, change[0])
		require.Empty(t, r.pendingUninstalls(t), name)
		r.exec(t, change[1])
		require.Equal(t, []uuid.UUID{a.UUID}, r.pendingUninstalls(t), name)
	}
}

// TestProvisionEndsAPendingUninstall: what is in service again is installed. A
// provision that is undone while the card is away leaves it to be uninstalled, too.
func TestProvisionEndsAPendingUninstall(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a, putBack := pulled(t, r, h)
	putBack()

	provision := toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID})
	r.do(t, provision, cyborg.OperationFailed)
	require.NotZero(t, r.accelerator(t, a.UUID).UninstallPending, "its host was not asked")
	h.ready(t, "card0")
	require.Zero(t, r.accelerator(t, a.UUID).UninstallPending)

	r.endUninstalled(t, r.begin(t, toRetire(a)), cyborg.OperationSucceeded, true)
	require.Zero(t, r.accelerator(t, a.UUID).UninstallPending)
	r.endUninstalled(t, r.begin(t, toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID})), cyborg.OperationCancelled, false)
	require.NotZero(t, r.accelerator(t, a.UUID).UninstallPending)
	r.endUninstalled(t, r.begin(t, toProvision(cyborg.ProvisionRequest{Accelerator: a.UUID})), cyborg.OperationCancelled, true)
	require.Zero(t, r.accelerator(t, a.UUID).UninstallPending)
}

// TestForgottenWhileAway: a card whose host has it installed may be forgotten
// while it is away, and its host as well. It has to be uninstalled when it is back.
func TestForgottenWhileAway(t *testing.T) {
	t.Parallel()
	for name, forget := range map[string]func(t *testing.T, r *records, h *host){
		"card": func(t *testing.T, r *records, _ *host) {
			t.Helper()
			n, err := r.Forget(t.Context(), 0)
			require.NoError(t, err)
			require.NotZero(t, n)
		},
		"host": func(t *testing.T, r *records, h *host) {
			t.Helper()
			h.fall(t)
			require.NoError(t, r.ForgetHost(t.Context(), h.name, alice()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addHost(t, "h1", 3)
			h.ready(t, "card0")
			retired := h.ready(t, "card1")

			devices := h.content.Backends[0].Devices
			h.content.Backends[0].Devices = nil
			h.report(t)
			r.endUninstalled(t, r.begin(t, toRetire(retired)), cyborg.OperationSucceeded, false)
			forget(t, r, h)

			h.content.Backends[0].Devices = devices
			h.reply = agentapi.ReportReply{}
			h.report(t)
			require.Equal(t, []uuid.UUID{h.accelerator(t, "card0").UUID, h.accelerator(t, "card1").UUID}, r.pendingUninstalls(t))
			require.Zero(t, h.accelerator(t, "card2").UninstallPending, "nobody had taken it into service")
			require.Equal(t, []string{">uninstall_pending"}, r.installationEvents(t, h.accelerator(t, "card0").UUID))
			require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM forgotten_installs"))
		})
	}
}

// TestWhitelistOfAPendingUninstall: Nova does not get what has still to be
// uninstalled.
func TestWhitelistOfAPendingUninstall(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a, putBack := pulled(t, r, r.addPCIHost(t, "h1", 1))
	putBack()

	whitelist := toWhitelist("h1", a)
	_, err := r.Admit(t.Context(), whitelist)
	requireKind(t, cyborg.ErrChanged, err, "has still to be uninstalled")

	r.endUninstalled(t, r.begin(t, toRetire(a)), cyborg.OperationSucceeded, true)
	r.admit(t, whitelist)
}
