package postgres

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTrimKeepsTheLogSmall: the end of a log that has grown too large moves to
// a second file, while the server keeps the first one open.
func TestTrimKeepsTheLogSmall(t *testing.T) {
	t.Parallel()
	path := logFile(filepath.Join(t.TempDir(), "log"))
	writer, err := path.open() // as the server has it, all the time
	require.NoError(t, err)
	write := func(text string) {
		_, err := writer.WriteString(text)
		require.NoError(t, err)
	}

	write("small\n")
	require.NoError(t, path.trim())
	require.Equal(t, "small\n", path.since(0))

	begin := path.size()
	write(strings.Repeat("x", logLimit) + "\nlast\n")
	require.NoError(t, path.trim())
	require.Zero(t, path.size())
	older, err := os.ReadFile(string(path) + ".1")
	require.NoError(t, err)
	require.Len(t, older, logLimit)
	require.True(t, strings.HasSuffix(string(older), "x\nlast\n"))

	write("next\n")
	require.Equal(t, "next\n", path.since(begin), "a position from before is no use")
	require.NoError(t, writer.Close())
}

// TestFailureFromTheLog: the error of a failed start is the line of the log
// that says why.
func TestFailureFromTheLog(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ log, want string }{
		"the failure, not what follows": {
			log: "2026-11-20 10:00:00.000 UTC [1] LOG:  starting\n" +
				"2026-11-20 10:00:00.000 UTC [1] FATAL:  could not map memory\n" +
				"2026-11-20 10:00:00.000 UTC [1] LOG:  database system is shut down\n",
			want: "FATAL: could not map memory",
		},
		"of initdb":    {log: "ok\ninitdb: error: could not do it\ninitdb: removing\n", want: "error: could not do it"},
		"of no format": {log: "ld.so: cannot open libfoo\n", want: "ld.so: cannot open libfoo"},
		"none":         {log: "", want: "it said nothing"},
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, lastWords(test.log))
		})
	}
}

// TestMissingInstallationNamesThePackage: where no PostgreSQL, or none that
// fits the data, is installed, the error says how to install it.
func TestMissingInstallationNamesThePackage(t *testing.T) {
	t.Parallel()
	_, err := choose(nil, 0, layout{dir: "/state"})
	require.EqualError(t, err, "PostgreSQL 15 or newer is needed, and no PostgreSQL server is installed: install it "+
		"(on Debian and Ubuntu `apt-get install postgresql` does it, and the server that the package starts by itself does no harm)")

	_, err = choose(nil, 16, layout{dir: "/state"})
	require.EqualError(t, err, "the database in /state/data was made by PostgreSQL 16, and no PostgreSQL server is installed: "+
		"install that version (on Debian and Ubuntu `apt-get install postgresql-16`); nothing was changed")

	inst, err := choose([]installation{{major: 17}, {major: 15}}, 15, layout{})
	require.NoError(t, err)
	require.Equal(t, 15, inst.major)
}
