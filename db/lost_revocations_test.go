package db_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/revocation"
)

// TestRevocationsSurviveARestore: the records are restored from a dump that was
// made before a host was revoked. A process that kept the revocation puts it back,
// so the host stays out, whatever its certificate, and its open invitation of the
// dump is void. A new enrollment counts, and so does one that was made after the
// revocation and lost.
func TestRevocationsSurviveARestore(t *testing.T) {
	t.Parallel()
	old := newRecords(t)
	kept := revocation.File(filepath.Join(t.TempDir(), "revoked"))
	look := func(r *records) {
		t.Helper()
		require.NoError(t, revocation.New("cyborg", kept, slog.New(slog.DiscardHandler)).Load(t.Context(), r))
	}

	dumped := old.enroll(t, "h1")
	again := old.enroll(t, "h2")
	old.invite(t, "h1", "of the dump")
	dump := old.dump(t)
	lost := old.enroll(t, "h1")
	require.NoError(t, old.RevokeHost(t.Context(), "h1", "stolen", alice()))
	require.NoError(t, old.RevokeHost(t.Context(), "h2", "stolen", alice()))
	back := old.enroll(t, "h2")
	old.addHost(t, "h3", 1)
	require.NoError(t, old.RevokeHost(t.Context(), "h3", "stolen", alice()))
	look(old)
	revoked, err := old.RevokedHosts(t.Context())
	require.NoError(t, err)

	r := old.remake(t, dump)
	require.NoError(t, r.CheckHostIdentity(t.Context(), "h1", lost), "the dump knows nothing of it")
	look(r)
	now, err := r.RevokedHosts(t.Context())
	require.NoError(t, err)
	require.Equal(t, revoked, now)
	for host, numbers := range map[string][]int64{"h1": {0, dumped, lost}, "h2": {0, again}, "h3": {0}} {
		for _, number := range numbers {
			require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(r.CheckHostIdentity(t.Context(), host, number)), host)
		}
	}
	require.NoError(t, r.CheckHostIdentity(t.Context(), "h2", back))
	_, err = r.EnrollHost(t.Context(), "h1", "of the dump")
	require.Equal(t, cyborg.ErrUnauthenticated, cyborg.ErrorKindOf(err))

	// What is known is not recorded again: no event, and an enrollment stays.
	number := r.enroll(t, "h1")
	require.Greater(t, number, lost)
	require.NoError(t, r.CheckHostIdentity(t.Context(), "h1", number))
	at := r.endOfFeed(t)
	require.NoError(t, r.RestoreRevocations(t.Context(), revoked))
	require.Empty(t, r.events(t, at))
	require.Equal(t, "enrolled", scalar[string](t, r, "SELECT state FROM host_identities WHERE host = 'h1'"))
}

// TestALaterEnrollmentSurvivesARevocation: the records have an enrollment that is
// later than a revocation which they have lost. It stays, and so does an
// invitation that was made since. The history says why it tells of the host.
func TestALaterEnrollmentSurvivesARevocation(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	first := r.enroll(t, "h1")
	number := r.enroll(t, "h1")
	r.invite(t, "h1", "next")
	last := r.enroll(t, "h2")
	at := r.endOfFeed(t)
	require.NoError(t, r.RestoreRevocations(t.Context(), map[string]int64{"h1": first, "h2": last - 1}))
	require.Error(t, r.CheckHostIdentity(t.Context(), "h1", first))
	require.NoError(t, r.CheckHostIdentity(t.Context(), "h1", number))
	require.NoError(t, r.CheckHostIdentity(t.Context(), "h2", last))

	r.endOfFeed(t)
	var told []string
	for _, event := range r.eventsOf(t, at, cyborg.AxisIdentity) {
		told = append(told, fmt.Sprint(event.Subject.ID, ": ", event.From, " -> ", event.To, ", ", event.Data["reason"]))
	}
	require.ElementsMatch(t, []string{
		"h1: invited -> invited, the records had lost a revocation", "h2: enrolled -> enrolled, the records had lost a revocation",
	}, told)

	at = r.endOfFeed(t)
	_, err := r.EnrollHost(t.Context(), "h1", "next")
	require.NoError(t, err)
	r.endOfFeed(t)
	enrolled := r.eventsOf(t, at, cyborg.AxisIdentity)
	require.Len(t, enrolled, 1)
	require.Empty(t, enrolled[0].Data, "nothing is revoked by an enrollment")
}

// TestEnrollmentsAreNotDrawnAgain: what is drawn after a restore is above all that
// the records have lost: an enrollment is no one that was revoked, and a revocation
// is about all of before. If the clock was set back, a number is above the last.
func TestEnrollmentsAreNotDrawnAgain(t *testing.T) {
	t.Parallel()
	old := newRecords(t)
	first := old.enroll(t, "h1")
	dump := old.dump(t)
	second := old.enroll(t, "h1")
	require.NoError(t, old.RevokeHost(t.Context(), "h1", "stolen", alice()))
	third := old.enroll(t, "h1")
	require.Less(t, first, second)
	require.Less(t, second, third)

	r := old.remake(t, dump)
	require.Greater(t, r.enroll(t, "h1"), third)
	require.NoError(t, r.RevokeHost(t.Context(), "h1", "stolen", alice()))
	require.Error(t, r.CheckHostIdentity(t.Context(), "h1", third), "it was lost, and is of before")

	r = r.remake(t, dump)
	require.NoError(t, r.RevokeHost(t.Context(), "h1", "stolen", alice()))
	require.Error(t, r.CheckHostIdentity(t.Context(), "h1", third))

	r.exec(t, "UPDATE host_identities SET enrollment = enrollment + 1000000000000")
	above := scalar[int64](t, r, "SELECT enrollment FROM host_identities")
	require.Equal(t, above+1, r.enroll(t, "h1"))
	require.NoError(t, r.RevokeHost(t.Context(), "h1", "stolen", alice()))
	require.Error(t, r.CheckHostIdentity(t.Context(), "h1", above+1))
}

// enroll enrolls a host, and returns the number.
func (r *records) enroll(t testing.TB, host string) int64 {
	t.Helper()
	token := time.Now().String()
	r.invite(t, host, token)
	number, err := r.EnrollHost(t.Context(), host, token)
	require.NoError(t, err)
	return number
}

// invite invites a host.
func (r *records) invite(t testing.TB, host, token string) {
	t.Helper()
	_, err := r.InviteHost(t.Context(), host, token, time.Hour, alice())
	require.NoError(t, err)
}
