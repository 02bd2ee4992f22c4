package db_test

import (
	"context"
	"net/url"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

// TestRevocations: they can be read without the rest of the records, and it is
// told apart whether nothing was revoked or nothing is known.
func TestRevocations(t *testing.T) {
	t.Parallel()
	read := func(url string) (map[string]int64, error) {
		t.Helper()
		revocations, err := db.OpenRevocations(t.Context(), url)
		require.NoError(t, err)
		t.Cleanup(revocations.Close)
		return revocations.Read(t.Context())
	}

	r := newRecords(t)
	revoked, err := read(r.url)
	require.NoError(t, err)
	require.Empty(t, revoked)

	r.addHost(t, "h1", 1)
	require.NoError(t, r.RevokeHost(t.Context(), "h1", "stolen", cyborg.Actor{Name: "ada"}))
	revoked, err = read(r.url)
	require.NoError(t, err)
	require.Contains(t, revoked, "h1")

	// A role that does not find the records must not take that for no records.
	_, err = read(withParameter(t, r.url, "search_path", "elsewhere"))
	requireKind(t, cyborg.ErrInvalid, err, "does not find them")

	role := "reader_" + uuid.NewString()[:8]
	r.exec(t, "CREATE ROLE "+role)
	t.Cleanup(func() { // a role outlives the test's database
		_, err := r.sql.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+role+"; DROP ROLE "+role)
		require.NoError(t, err)
	})
	r.exec(t, "GRANT SELECT ON host_identities TO "+role+"; REVOKE USAGE ON SCHEMA public FROM PUBLIC")
	asReader := withParameter(t, r.url, "role", role)
	_, err = read(asReader)
	requireKind(t, cyborg.ErrInvalid, err, "does not find them")

	r.exec(t, "GRANT USAGE ON SCHEMA public TO "+role)
	revoked, err = read(asReader)
	require.NoError(t, err)
	require.Contains(t, revoked, "h1")

	empty := postgrestest.New(t)
	_, err = read(empty)
	requireKind(t, cyborg.ErrNotFound, err, "no records")

	missing, err := url.Parse(empty)
	require.NoError(t, err)
	missing.Path += "_missing"
	_, err = read(missing.String())
	requireKind(t, cyborg.ErrNotFound, err, "no records")

	_, err = read("postgres://cyborg@127.0.0.1:1/cyborg?connect_timeout=2")
	requireKind(t, cyborg.ErrUnavailable, err)
	_, err = db.OpenRevocations(t.Context(), "postgres://%zz")
	requireKind(t, cyborg.ErrInvalid, err)
}

// TestRevokeHostInAServersProcess: an agent in the process of a server shows no
// certificate, so to revoke its host would shut nobody out, and is refused. Once it is
// silent, whoever has a certificate of that host can be shut out.
func TestRevokeHostInAServersProcess(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	r.exec(t, "UPDATE hosts SET instance = $1", agentapi.InProcessInstance("agent"))
	revoke := func() error { return r.RevokeHost(t.Context(), "h1", "stolen", cyborg.Actor{Name: "ada"}) }

	requireKind(t, cyborg.ErrChanged, revoke(), "server's own process")
	revoked, err := r.RevokedHosts(t.Context())
	require.NoError(t, err)
	require.Empty(t, revoked)

	h.fall(t)
	require.NoError(t, revoke())
	shows := func(revoked bool) {
		t.Helper()
		host, err := r.Host(t.Context(), "h1")
		require.NoError(t, err)
		require.Equal(t, revoked, !host.Revoked.IsZero())
	}
	shows(true)
	h.report(t)
	shows(true)
	r.exec(t, "UPDATE hosts SET instance = $1", agentapi.InProcessInstance("agent"))
	shows(false)
}
