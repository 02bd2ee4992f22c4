package standalone_test

import (
	"context"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/porttest"
	"github.com/cyborg-project/cyborg/internal/postgres"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestExistingPostgres runs a standalone on an existing PostgreSQL, over TCP
// and with a password. Wrong URLs are refused with the reason, and the
// PostgreSQL outlives the standalone.
func TestExistingPostgres(t *testing.T) {
	t.Parallel()
	pg, err := postgres.Start(t.Context(), postgres.Config{
		Dir: filepath.Join(harness.Place(t), "postgres"), TCP: true, Port: porttest.Ports(t, 1)[0], FsyncOff: true, DieWithParent: true,
	}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pg.Stop(context.WithoutCancel(t.Context()))) })

	require.NoError(t, pg.CreateDatabase(t.Context(), "accelerators"))

	right, err := url.Parse(pg.TCPURL("accelerators"))
	require.NoError(t, err)

	s := harness.New(t, harness.Options{Env: []string{"CYBORG_DATABASE_URL=" + right.String()}})

	wrong := func(change func(*url.URL)) string {
		u := *right
		change(&u)
		return u.String()
	}

	badPassword := wrong(func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), "guessed") })
	requireMistakes(t, s, []string{"database.url"}, "--database-url", badPassword)

	// reaching is the standalone with another URL in its environment.
	reaching := func(database string) *harness.Standalone {
		return harness.New(t, harness.Options{Dir: filepath.Dir(s.StateDir), Env: []string{"CYBORG_DATABASE_URL=" + database}})
	}

	requireRefusal(t, reaching(badPassword), commandline.ExitUsage, []string{"refuses the connection", "password authentication failed"})

	_, stderr, _ := reaching(badPassword).Refused(t)
	require.NotContains(t, stderr, "guessed", "the error message must not show the password")

	requireRefusal(t, reaching(wrong(func(u *url.URL) { u.Path = "/nowhere" })), commandline.ExitUsage, []string{`database "nowhere" does not exist`})
	requireRefusal(t, reaching(wrong(func(u *url.URL) { u.Host = "127.0.0.1:1" })), commandline.ExitUnavailable,
		[]string{"127.0.0.1:1/", "does not answer", "connection refused"})
	requireMistakes(t, s, []string{"database.url"}, "--database-url", "mysql://127.0.0.1/x")

	entries, err := os.ReadDir(s.StateDir)
	require.NoError(t, err)
	for _, entry := range entries {
		require.NotEqual(t, "postgres", entry.Name(), "the standalone has created a PostgreSQL of its own")
	}

	s.Restart(t)
	keep(t, s)
	require.Equal(t, 0, s.Stop(t))

	s.Restart(t)
	requireKept(t, s)

	// Two standalones must not share the databases of one Temporal.
	other := harness.New(t, harness.Options{Env: []string{"CYBORG_DATABASE_URL=" + right.String()}})
	requireRefusal(t, other, commandline.ExitConflict, []string{"is used by the Temporal of another process"})
	requireKept(t, s)

	require.Equal(t, 0, s.Stop(t))

	select {
	case <-pg.Done():
		t.Fatal("the standalone has stopped a PostgreSQL that is not its own")
	default:
	}
}
