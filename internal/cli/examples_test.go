package cli_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/cli"
)

// words splits a command line as a shell does.
func words(t *testing.T, line string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", "set -- "+line+"\nprintf '%s\\0' \"$@\"").Output()
	require.NoError(t, err, line)
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

// TestExamplesAreRight runs each example against an API that has nothing. The
// objects that an example names are not found, but its command, arguments,
// flags, columns and formats must be valid.
func TestExamplesAreRight(t *testing.T) {
	t.Parallel()
	nothing := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(nothing.Close)

	for path, lines := range cli.HelpExamples() {
		for _, line := range lines {
			t.Run(line, func(t *testing.T) {
				t.Parallel()

				home := t.TempDir()
				streams := cli.Streams{
					Env:    environment("CYBORG_URL", nothing.URL, "XDG_CONFIG_HOME", home, "HOME", home),
					Secret: func(string) (string, error) { return "", io.EOF },
				}

				typed := words(t, line)
				require.Equal(t, "cyborg", typed[0])

				got := run(t.Context(), streams, typed[1:]...)
				require.NotContains(t, got.err, "--help`", "wrong usage")
				require.NotContains(t, got.err, "there is no `cyborg")
			})
		}

		help := run(t.Context(), cli.Streams{Env: environment()}, append(strings.Fields(path), "--help")...)
		require.Zero(t, help.code, path)
		require.Contains(t, help.out, "\nExamples:\n  "+strings.Join(lines, "\n  ")+"\n", path)
	}

	pages := t.TempDir()
	require.Zero(t, run(t.Context(), cli.Streams{Env: environment()}, "man", pages).code)
	for name, shows := range map[string]string{
		"cyborg-accelerator.1": `cyborg accelerator detach crypto\-1 \-\-force \-\-yes`, "cyborg.1": `cyborg attach\-instance 5f5f5f5f`,
	} {
		page, err := os.ReadFile(filepath.Join(pages, name))
		require.NoError(t, err)
		require.Contains(t, string(page), shows, name)
	}
}
