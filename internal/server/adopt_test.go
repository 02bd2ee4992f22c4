package server_test

import (
	"bytes"
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
	"github.com/cyborg-project/cyborg/internal/server"
)

func TestMain(m *testing.M) { postgrestest.Main(m) }

// adopt runs the command as main does, and returns what it printed.
func adopt(t *testing.T, args ...string) (string, error) {
	t.Helper()
	for _, cmd := range server.Commands() {
		if cmd.Name() != "adopt" {
			continue
		}
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(args)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true

		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}

	t.Fatal("there is no command adopt")
	return "", nil
}

// TestAdoptCommand: the command says what it would do, does it, and refuses
// what it cannot do.
func TestAdoptCommand(t *testing.T) {
	t.Parallel()
	to := postgrestest.NewFrom(t, "migrated", func(ctx context.Context, url string) error {
		_, err := db.Migrate(ctx, url)
		return err
	})

	from := postgrestest.New(t)
	cloud, err := sql.Open("pgx", from)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cloud.Close()) })

	for _, file := range []string{"postgresql.sql", "cloud.sql"} {
		text, err := os.ReadFile(filepath.Join("..", "adopt", "testdata", file))
		require.NoError(t, err)
		_, err = cloud.ExecContext(t.Context(), string(text))
		require.NoError(t, err)
	}

	url := filepath.Join(t.TempDir(), "url")
	require.NoError(t, os.WriteFile(url, []byte(from+"\n"), 0o600))

	out, err := adopt(t, "--database-url", to, "--from-file", url)
	require.NoError(t, err, out)
	require.Contains(t, out, "accelerator requests")
	require.Contains(t, out, "Nothing was changed; --apply adopts this.")

	out, err = adopt(t, "--database-url", to, "--from", from, "--apply")
	require.NoError(t, err, out)
	require.Contains(t, out, "Adopted.")

	out, err = adopt(t, "--database-url", to, "--from", from)
	require.NoError(t, err, out)
	require.Contains(t, out, "0 new, 4 adopted before")
	require.Contains(t, out, "There is nothing new to adopt.")
	require.NotContains(t, out, "--apply adopts this")

	_, err = cloud.ExecContext(t.Context(), "UPDATE devices SET uuid = 'x' WHERE id = 1")
	require.NoError(t, err)
	out, err = adopt(t, "--database-url", to, "--from", from, "--apply")
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err))
	require.Contains(t, out, `refused: devices 1 (x): uuid "x" is no UUID`)

	_, err = adopt(t, "--database-url", to)
	require.ErrorContains(t, err, "from")
	_, err = adopt(t, "--database-url", to, "--from", from, "--apply", "--dry-run")
	require.ErrorContains(t, err, "dry-run")
	_, err = adopt(t, "--database-url", to, "--from-file", "/nowhere")
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
}

func TestAdoptExamplesUseExistingFlags(t *testing.T) {
	t.Parallel()
	for _, cmd := range server.Commands() {
		if cmd.Name() != "adopt" {
			continue
		}

		lines := strings.Split(cmd.Example, "\n")
		require.Len(t, lines, 3)
		for _, line := range lines {
			typed, _, _ := strings.Cut(line, "#")
			words := strings.Fields(typed)
			require.Equal(t, []string{"cyborg", "adopt"}, words[:2])
			require.NoError(t, cmd.ParseFlags(words[2:]), line)
			require.Empty(t, cmd.Flags().Args(), line)
		}
	}
}
