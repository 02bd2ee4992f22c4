package db_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// TestNothingIsAskedOfARevokedHost: what a host whose certificates were revoked would
// have to do is refused at once, with words about the revocation, because nobody can
// take the step. What only frees goes on, and so does everything once it is enrolled
// anew.
func TestNothingIsAskedOfARevokedHost(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addPCIHost(t, "h1", 5)
	free, held, bound := h.ready(t, "card0"), h.ready(t, "card1"), h.ready(t, "card2")
	h.report(t)
	r.profile(t, "one", one())
	r.do(t, toAttach(held.UUID, onHost("h1")), cyborg.OperationSucceeded)
	arqs := r.request(t, "one")
	r.do(t, toBind("h1", instance(uuid.NewString()), bound.ProviderUUID, arqs...), cyborg.OperationSucceeded)
	begun := []uuid.UUID{
		r.admit(t, toAttach(free.UUID, instance("vm1"))).ID,
		r.admit(t, toWhitelist("h1", h.accelerator(t, "card4"))).ID,
		r.admit(t, toConfigure(cyborg.ConfigureRequest{Host: "h1", Backend: "other", Action: cyborg.ConfigureInstall, Driver: "fake"})).ID,
	}

	require.NoError(t, r.RevokeHost(t.Context(), "h1", "stolen", alice()))
	const revoked = "host h1 cannot be asked for anything: its certificates were revoked"
	for _, id := range begun {
		_, err := r.Begin(t.Context(), runOf(id))
		requireKind(t, cyborg.ErrHostSilent, err, revoked)
		require.Contains(t, cyborg.AsError(err).Hint, "cyborg host enroll h1")
		require.NoError(t, r.End(t.Context(), runOf(id), cyborg.Outcome{Operation: id, State: cyborg.OperationFailed, Error: cyborg.AsError(err)}))
	}

	spare := h.accelerator(t, "card3")
	refused := func() map[string]db.Admission {
		return map[string]db.Admission{
			"provision": toProvision(cyborg.ProvisionRequest{Accelerator: spare.UUID, Name: "spare"}),
			"any":       toProvision(cyborg.ProvisionRequest{Name: "spare"}),
			"attach":    toAttach(free.UUID, instance("vm1")),
			"detach":    toDetach(held.UUID, nil),
			"program":   toProgram(free.UUID),
			"retire":    toRetire(free),
			"configure": toConfigure(cyborg.ConfigureRequest{Host: "h1", Backend: "fake", Action: cyborg.ConfigureUpdate}),
			"new":       toConfigure(cyborg.ConfigureRequest{Host: "h1", Backend: "other", Action: cyborg.ConfigureInstall, Driver: "fake"}),
			"whitelist": toWhitelist("h1", spare),
		}
	}
	for name, a := range refused() {
		_, err := r.Admit(t.Context(), a)
		require.Equal(t, cyborg.ErrHostSilent, cyborg.ErrorKindOf(err), "%s: %v", name, err)
		require.ErrorContains(t, err, revoked, name)
	}
	requireKind(t, cyborg.ErrHostSilent, r.bind(t, free), revoked)

	heard, err := r.LastSeen(t.Context(), "h1")
	require.NoError(t, err)
	require.True(t, heard.Revoked)
	work := r.begin(t, toForce(held.UUID, nil))
	require.Contains(t, work.Forced, "revoked", "nobody has to wait until the host is silent")
	r.end(t, work, cyborg.OperationSucceeded)
	r.do(t, toUnbind(arqs...), cyborg.OperationSucceeded)

	found, err := r.Unprovisioned(t.Context(), 100)
	require.NoError(t, err)
	require.Empty(t, found)

	// Another host takes what any may have, also where it is busy at the moment.
	r.addHost(t, "h2", 1)
	tx, err := r.sql.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	_, err = tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock(hashtextextended('h2', 0))")
	require.NoError(t, err)
	type answer struct {
		out db.Admitted
		err error
	}
	admitted := make(chan answer, 1)
	go func() {
		out, err := r.Admit(t.Context(), refused()["any"])
		admitted <- answer{out, err}
	}()
	require.Eventually(t, func() bool {
		return len(admitted) > 0 || scalar[bool](t, r, `
			SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	}, 5*time.Minute, 10*time.Millisecond)
	require.NoError(t, tx.Rollback(t.Context()))
	got := <-admitted
	require.NoError(t, got.err)
	require.Equal(t, "h2", got.out.Operation.Host)

	r.enroll(t, "h1")
	heard, err = r.LastSeen(t.Context(), "h1")
	require.NoError(t, err)
	require.False(t, heard.Revoked)
	r.do(t, toAttach(free.UUID, onHost("h1")), cyborg.OperationSucceeded)

	// An agent in a server's process shows no certificate, whatever was revoked.
	require.NoError(t, r.RevokeHost(t.Context(), "h1", "stolen", alice()))
	r.exec(t, "UPDATE hosts SET instance = $1 WHERE name = 'h1'", agentapi.InProcessInstance("agent"))
	r.do(t, toDetach(free.UUID, nil), cyborg.OperationSucceeded)
}

// TestARevokedHostIsSilentForPlacement: Nova places nobody there who would not get his
// accelerator, although the host is still heard.
func TestARevokedHostIsSilentForPlacement(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	r.addHost(t, "h1", 1)
	r.addHost(t, "h2", 1)
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, aWhile))
	changed := func() int {
		t.Helper()
		changed, err := r.RecordSilentHosts(t.Context(), time.Hour)
		require.NoError(t, err)
		return changed
	}
	require.Zero(t, changed())

	require.NoError(t, r.RevokeHost(t.Context(), "h1", "stolen", alice()))
	require.Equal(t, 1, changed())
	require.Equal(t, "h1", scalar[string](t, r, "SELECT host FROM placement_sync WHERE silent"))
	require.Zero(t, changed())
	r.enroll(t, "h1")
	require.Equal(t, 1, changed())
	require.Zero(t, changed())
}
