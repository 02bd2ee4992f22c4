package db_test

import (
	"context"
	"log/slog"
	"net/url"
	"testing"

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
	_, err = r.Admit(t.Context(), db.Admission{ID: uuid.New(), Request: &cyborg.RetireRequest{}})
	requireKind(t, cyborg.ErrInternal, err, "cyborg.RetireRequest, not a *cyborg.RetireRequest")
}

// TestMigrateRecordsKinds: a new kind needs no migration of the schema. Migrate
// records it, and until then the binary that needs it does not start.
func TestMigrateRecordsKinds(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	r.exec(t, "DELETE FROM operation_kinds WHERE kind IN ('retire', 'rescue')")
	r.exec(t, "INSERT INTO operation_kinds VALUES ('of a newer release')")
	_, err := db.Open(t.Context(), r.url, defaults(), slog.New(slog.DiscardHandler))
	requireKind(t, cyborg.ErrInvalid, err, "operations of kind rescue, retire")
	require.Contains(t, cyborg.AsError(err).Hint, "cyborg migrate")

	var together errgroup.Group
	for range 3 {
		together.Go(func() error { _, _, err := db.Migrate(t.Context(), r.url); return err })
	}
	require.NoError(t, together.Wait())
	openStore(t, r.url, defaults())
	require.Equal(t, len(cyborg.OperationKinds())+1, scalar[int](t, r, "SELECT count(*) FROM operation_kinds"))
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

	other, err := url.Parse(r.url)
	require.NoError(t, err)
	query := other.Query()
	query.Set("role", role)
	other.RawQuery = query.Encode()

	server := records{Store: openStore(t, other.String(), defaults())}
	server.do(t, toAttach(a.UUID, instance("vm1")), cyborg.OperationSucceeded)
	server.Close()
}
