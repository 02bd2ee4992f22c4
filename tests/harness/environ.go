package harness

import (
	"os"
	"slices"
	"strings"
)

// foreignTable has how the names of variables begin, in capitals, by which a shell tells a program about a cloud, a database, a
// proxy or a home of its user's.
var foreignTable = []string{
	"CYBORG_", "TEMPORAL_", "OS_", "PG", "XDG_", "HOME=", "HTTP_PROXY=", "HTTPS_PROXY=", "ALL_PROXY=", "NO_PROXY=",
}

// Environ is the environment of the programs that a test runs: that of the test without what its user's shell says of other
// systems, with a home of their own, and with these variables.
func Environ(home string, more ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name := strings.ToUpper(variable)
		return slices.ContainsFunc(foreignTable, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
	return append(append(env, "HOME="+home), more...)
}
