package db_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// TestAdmitNeedsARequest: an admission without a request, or with one of an
// unknown type, is refused.
func TestAdmitNeedsARequest(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	_, err := r.Admit(t.Context(), db.Admission{ID: uuid.New()})
	requireKind(t, cyborg.ErrInvalid, err, "a request")

	for _, request := range []cyborg.Request{&cyborg.RetireRequest{}, (*cyborg.RetireRequest)(nil)} {
		_, err = r.Admit(t.Context(), db.Admission{ID: uuid.New(), Request: request})
		requireKind(t, cyborg.ErrInternal, err, "a *cyborg.RetireRequest is the request of no operation")
	}
}

// TestMigrateRecordsKinds: a new kind needs no migration of the schema. Migrate
// records it, and until then the binary that needs it does not start.
func TestMigrateRecordsKinds(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	r.exec(t, "DELETE FROM operation_kinds WHERE kind IN ('retire', 'rescue')")
	_, err := db.Open(t.Context(), r.url, defaults(), slog.New(slog.DiscardHandler))
	requireKind(t, cyborg.ErrInvalid, err, "operations of kind rescue, retire")
	require.Contains(t, cyborg.AsError(err).Hint, "cyborg migrate")

	var together errgroup.Group
	for range 3 {
		together.Go(func() error { _, err := db.Migrate(t.Context(), r.url); return err })
	}
	require.NoError(t, together.Wait())
	openStore(t, r.url, defaults())
	require.Len(t, cyborg.OperationKinds(), scalar[int](t, r, "SELECT count(*) FROM operation_kinds"))

	r.exec(t, "UPDATE operation_kinds SET closes_placement = NOT closes_placement WHERE kind = 'attach'")
	done, err := db.Migrate(t.Context(), r.url)
	require.NoError(t, err)
	require.Equal(t, []string{"attach"}, done.Kinds)
}

// TestMigrateWritesNothingTwice: a database that needs nothing may be
// read-only.
func TestMigrateWritesNothingTwice(t *testing.T) {
	t.Parallel()
	r := newRecords(t)

	done, err := db.Migrate(t.Context(), withParameter(t, r.url, "default_transaction_read_only", "on"))
	require.NoError(t, err)
	require.Equal(t, done.From, done.To)
	require.Empty(t, done.Kinds)
}

// TestKindOfANewerRelease: a binary does not start on, or migrate, a database
// that has operations of a kind that it does not know. A server that runs
// already keeps Placement away from what such an operation has claimed.
func TestKindOfANewerRelease(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	r.exec(t, "INSERT INTO operation_kinds VALUES ('survey', true)")

	_, err := db.Open(t.Context(), r.url, defaults(), slog.New(slog.DiscardHandler))
	requireKind(t, cyborg.ErrInvalid, err, "operations of kind survey", "does not know")
	_, err = db.Migrate(t.Context(), r.url)
	requireKind(t, cyborg.ErrInvalid, err, "operations of kind survey", "does not know")

	require.True(t, cyborg.OperationKind("survey").ClosesPlacement())
}

// TestClaimsThatClosePlacement: a claim puts its host out of step with
// Placement if the table says so of its kind, whatever kind that is.
func TestClaimsThatClosePlacement(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, time.Hour))
	a := r.addHost(t, "h1", 1).ready(t, "card0")

	// changes counts how often the host is marked during an attach.
	changes := func() int64 {
		const wanted = "SELECT wanted FROM placement_sync WHERE host = 'h1'"
		before := scalar[int64](t, r, wanted)
		r.do(t, toAttach(a.UUID, instance("vm1")), cyborg.OperationCancelled)
		return scalar[int64](t, r, wanted) - before
	}

	open := changes()
	r.exec(t, "UPDATE operation_kinds SET closes_placement = true WHERE kind = 'attach'")
	require.Equal(t, open+2, changes(), "when it claims the accelerator, and when it gives it back")
}

// TestRoleOfTheServerAdmits: the server may have another role than Migrate,
// with no more rights than doctor asks for.
func TestRoleOfTheServerAdmits(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")

	role := "server_" + uuid.NewString()[:8]
	r.exec(t, "CREATE ROLE "+role)
	t.Cleanup(func() { // a role outlives the test's database
		_, err := r.sql.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+role+"; DROP ROLE "+role)
		require.NoError(t, err)
	})
	r.exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO "+role)
	// The rights were granted before the migration that made this table.
	r.exec(t, "REVOKE ALL ON feed_epochs FROM "+role)
	at := r.endOfFeed(t)

	url := withParameter(t, r.url, "role", role)
	health, err := db.CheckHealth(t.Context(), url)
	require.NoError(t, err)
	require.Empty(t, health.Denied)

	server := records{Store: openStore(t, url, defaults())}
	server.do(t, toAttach(a.UUID, instance("vm1")), cyborg.OperationSucceeded)
	r.endOfFeed(t) // waits until all events can be read
	require.NotEmpty(t, server.events(t, at))
	r.exec(t, "UPDATE feed_epochs SET server_started = server_started - interval '1 day'")
	server.do(t, toDetach(a.UUID, nil), cyborg.OperationSucceeded)
	server.Close()
}
