package db_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// requireWaits holds the lock of a host and requires that a change waits for
// it, and succeeds afterwards. The lock is held in shared mode, as a bind does:
// a change that takes it in shared mode, too, does not wait.
func (r *records) requireWaits(t *testing.T, host string, change func() error) {
	t.Helper()
	waited, err := r.whileLocked(t, host, change)
	require.True(t, waited, "it did not wait for the lock of host %s", host)
	require.NoError(t, err)
}

// whileLocked makes a change while somebody else holds the lock of a host, in
// shared mode, and returns whether it has waited for that.
func (r *records) whileLocked(t *testing.T, host string, change func() error) (waited bool, err error) {
	t.Helper()
	tx, err := r.sql.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock_shared(hashtextextended($1, 0))", host)
	require.NoError(t, err)

	ended := make(chan error, 1)
	go func() { ended <- change() }()

	require.Eventually(t, func() bool {
		waited = r.waiting(t) == 1
		return waited || len(ended) > 0
	}, 5*time.Minute, time.Millisecond)

	require.NoError(t, tx.Rollback(t.Context()))
	return waited, <-ended
}

// TestARepeatDoesNotWaitForItsHost: a caller that sends a request again, with
// its key, learns at once what became of it.
func TestARepeatDoesNotWaitForItsHost(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	request := toProvision(cyborg.ProvisionRequest{Accelerator: r.addHost(t, "h1", 1).accelerator(t, "card0").UUID})
	request.IdempotencyKey, request.Fingerprint = "key", "f"
	first := r.admit(t, request)

	var out db.Admitted
	request.ID = uuid.New()
	waited, err := r.whileLocked(t, "h1", func() (err error) { out, err = r.Admit(t.Context(), request); return err })
	require.NoError(t, err)
	require.False(t, waited, "it waited for the lock of its host")
	require.True(t, out.Repeated)
	require.Equal(t, first.ID, out.Operation.ID)
}

// TestChangesWaitForTheirHost: whoever changes what belongs to a host waits for
// others who do. Without the lock, two changes could each be right and leave
// something wrong, and the feed could show them in the wrong order.
func TestChangesWaitForTheirHost(t *testing.T) {
	t.Parallel()
	admit := func(a func(h *host, accelerator *cyborg.Accelerator) db.Admission) func(*testing.T, *host, *cyborg.Accelerator) func() error {
		return func(t *testing.T, h *host, accelerator *cyborg.Accelerator) func() error {
			t.Helper()
			asked := a(h, accelerator)
			return func() error { _, err := h.records.Admit(t.Context(), asked); return err }
		}
	}

	for name, prepare := range map[string]func(t *testing.T, h *host, a *cyborg.Accelerator) func() error{
		"an attach": admit(func(_ *host, a *cyborg.Accelerator) db.Admission { return toAttach(a.UUID, onHost("h1")) }),
		"a program": admit(func(_ *host, a *cyborg.Accelerator) db.Admission { return toProgram(a.UUID) }),
		"a retire": admit(func(_ *host, a *cyborg.Accelerator) db.Admission {
			asked := admission()
			asked.Request = cyborg.RetireRequest{Accelerator: a.UUID}
			return asked
		}),
		"a provision": admit(func(h *host, _ *cyborg.Accelerator) db.Admission {
			return toProvision(cyborg.ProvisionRequest{Accelerator: h.accelerator(t, "card1").UUID})
		}),
		"a configure": admit(func(*host, *cyborg.Accelerator) db.Admission {
			return toConfigure(cyborg.ConfigureRequest{Host: "h1", Backend: "new", Driver: "fake", Action: cyborg.ConfigureInstall})
		}),

		"a detach": func(t *testing.T, h *host, a *cyborg.Accelerator) func() error {
			t.Helper()
			h.records.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded)
			return func() error { _, err := h.records.Admit(t.Context(), toDetach(a.UUID, nil)); return err }
		},
		"a cancel": func(t *testing.T, h *host, a *cyborg.Accelerator) func() error {
			t.Helper()
			op := h.records.admit(t, toAttach(a.UUID, onHost("h1")))
			return func() error { _, err := h.records.RequestCancel(t.Context(), op.ID, alice()); return err }
		},
		"a stray run": func(t *testing.T, h *host, a *cyborg.Accelerator) func() error {
			t.Helper()
			work := h.records.begin(t, toAttach(a.UUID, onHost("h1")))
			return func() error { return h.records.RecordStrayRun(t.Context(), runOf(work.Operation), "stray") }
		},
		"maintenance": func(t *testing.T, h *host, a *cyborg.Accelerator) func() error {
			t.Helper()
			return func() error {
				_, err := h.records.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "fan"}, alice())
				return err
			}
		},
		"a report": func(t *testing.T, h *host, _ *cyborg.Accelerator) func() error {
			t.Helper()
			h.content = content(1)
			report := h.next()
			return func() error { _, err := h.records.MergeReports(t.Context(), []agentapi.Report{report}); return err }
		},
		"forgetting the host": func(t *testing.T, h *host, _ *cyborg.Accelerator) func() error {
			t.Helper()
			h.fall(t)
			return func() error { return h.records.ForgetHost(t.Context(), "h1", alice()) }
		},
		"forgetting a missing card": func(t *testing.T, h *host, _ *cyborg.Accelerator) func() error {
			t.Helper()
			h.content = content(1)
			h.report(t)
			return func() error { _, err := h.records.Forget(t.Context(), 0); return err }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addHost(t, "h1", 2)
			a := h.ready(t, "card0")
			r.requireWaits(t, "h1", prepare(t, h, a))
		})
	}
}

// TestHostsAreLockedInOneOrder: a change of several hosts locks them in the order
// of their keys. It holds none that comes after one for which it waits: two
// changes of the same hosts could otherwise wait for each other.
func TestHostsAreLockedInOneOrder(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	reports := []agentapi.Report{r.addHost(t, "h1", 1).next(), r.addHost(t, "h2", 1).next()}
	names := scalar[[]string](t, r, "SELECT array_agg(name ORDER BY hashtextextended(name, 0)) FROM hosts")
	require.Len(t, names, 2)

	other, err := r.sql.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = other.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = other.Exec(t.Context(), "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", names[0])
	require.NoError(t, err)

	for range 2 { // in whatever order the reports are
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, err := r.MergeReports(ctx, reports); ended <- err }()

		require.Eventually(t, func() bool { return len(ended) > 0 || r.waiting(t) == 1 }, 5*time.Minute, time.Millisecond)
		require.Empty(t, ended, "it did not wait for the lock of host %s", names[0])
		var free bool
		require.NoError(t, other.QueryRow(t.Context(), "SELECT pg_try_advisory_xact_lock_shared(hashtextextended($1, 0))", names[1]).Scan(&free))
		require.True(t, free, "it holds the lock of host %s, and waits for that of host %s", names[1], names[0])

		cancel()
		require.Error(t, <-ended)
		require.Eventually(t, func() bool { return r.waiting(t) == 0 }, 5*time.Minute, time.Millisecond)
		slices.Reverse(reports)
	}
}

// waiting returns how many sessions wait for a lock of a host.
func (r *records) waiting(t *testing.T) int {
	t.Helper()
	return scalar[int](t, r, `
		SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
}

// TestAHandleIsNotTakenFromItsHolder: somebody who takes no lock, such as an
// operator with psql, gives a handle away in the moment in which an attach or a
// bind takes it. It keeps that holder.
func TestAHandleIsNotTakenFromItsHolder(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(t *testing.T, r *records, a *cyborg.Accelerator) func() error{
		"attach": func(t *testing.T, r *records, a *cyborg.Accelerator) func() error {
			t.Helper()
			op := r.admit(t, toAttach(a.UUID, onHost("h1")))
			return func() error { _, err := r.Begin(t.Context(), runOf(op.ID)); return err }
		},
		"bind": func(t *testing.T, r *records, a *cyborg.Accelerator) func() error {
			t.Helper()
			r.profile(t, "one", one())
			asked := toBind("h1", vm(), a.ProviderUUID, r.request(t, "one")[0])
			return func() error { _, err := r.Admit(t.Context(), asked); return err }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addHost(t, "h1", 1)
			h.content.Backends[0].Devices[0].Deployables = []cyborg.DeployableReport{deployable("card0", 1)}
			h.report(t)
			a := h.ready(t, "card0")
			change := take(t, r, a)

			other, err := r.sql.Begin(t.Context())
			require.NoError(t, err)
			defer func() { _ = other.Rollback(context.WithoutCancel(t.Context())) }()
			tag, err := other.Exec(t.Context(), `
				UPDATE attach_handles SET holder_kind = 'instance', holder_id = 'theirs', operation_id = (SELECT id FROM operations LIMIT 1),
				    attached_at = now() WHERE deployable_uuid = $1 AND presence = 'present'`, a.UUID)
			require.NoError(t, err)
			require.EqualValues(t, 1, tag.RowsAffected())

			ended := make(chan error, 1)
			go func() { ended <- change() }()
			require.Eventually(t, func() bool { return len(ended) > 0 || r.blocked(t) == 1 }, 5*time.Minute, time.Millisecond)
			require.Empty(t, ended, "it did not wait for the handle")

			require.NoError(t, other.Commit(t.Context()))
			require.Error(t, <-ended)
			require.Equal(t, []cyborg.Holder{instance("theirs")}, r.accelerator(t, a.UUID).Holders())
			require.Equal(t, 1, scalar[int](t, r, "SELECT count(*) FROM attach_handles WHERE holder_id IS NOT NULL"))
		})
	}
}

// blocked returns how many sessions wait for a lock of any kind.
func (r *records) blocked(t *testing.T) int {
	t.Helper()
	return scalar[int](t, r, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
}

// TestSettlingRespectsClaims: between the moment in which a doubt was listed and
// the one in which its host has settled it, an operation may have begun to work
// on the accelerator. What it works on stays as it is, until it has ended.
func TestSettlingRespectsClaims(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationNeedsOperator)
	found, err := r.Disagreements(t.Context(), db.AttachmentPlace{}, "h1", 0)
	require.NoError(t, err)
	require.Len(t, found, 1)

	work := r.begin(t, toDetach(a.UUID, nil))
	before := r.accelerator(t, a.UUID)
	require.Equal(t, []cyborg.Holder{onHost("h1")}, before.Holders())
	require.NoError(t, r.RecordSettled(t.Context(), found))
	require.Equal(t, before, r.accelerator(t, a.UUID))

	r.end(t, work, cyborg.OperationFailed)
	r.requireWaits(t, "h1", func() error { return r.RecordSettled(t.Context(), found) })
	require.Empty(t, r.accelerator(t, a.UUID).Holders())
	require.Equal(t, cyborg.StatusReady, r.accelerator(t, a.UUID).Status())
}

// TestSettlingLeavesAClaimedAcceleratorInError: an attachment that its host has
// restored cures the accelerator's error, but not under an operation that works
// on it.
func TestSettlingLeavesAClaimedAcceleratorInError(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded)
	r.do(t, toDetach(a.UUID, nil), cyborg.OperationNeedsOperator)
	require.Equal(t, cyborg.LifecycleError, r.accelerator(t, a.UUID).Lifecycle)
	settled := []db.Disagreement{{
		Host: "h1", Backend: "fake", Deployable: "card0", Accelerator: a.UUID, Recorded: "attached", Attach: true,
		Operation: uuid.New(), Handle: cyborg.WorkHandle{UUID: a.Handles[0].UUID, Identity: a.Handles[0].Identity},
	}}

	work := r.begin(t, toDetach(a.UUID, nil))
	require.NoError(t, r.RecordSettled(t.Context(), settled))
	require.Equal(t, cyborg.LifecycleError, r.accelerator(t, a.UUID).Lifecycle)

	r.end(t, work, cyborg.OperationFailed)
	require.NoError(t, r.RecordSettled(t.Context(), settled))
	require.Equal(t, cyborg.LifecycleReady, r.accelerator(t, a.UUID).Lifecycle)
}
