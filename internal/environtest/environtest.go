// Package environtest keeps from tests what the shell of whoever runs them says
// of other systems: of a Cyborg, a Temporal, an OpenStack or a PostgreSQL of
// theirs, of a proxy, of directories with settings.
//
// A package whose tests read the environment as a program does has
//
//	func TestMain(m *testing.M) { environtest.Main(m) }
//
// Package postgrestest does the same for those that use it.
//
// Only tests import this package.
package environtest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// foreignTable has how the names of such variables begin, in capitals.
var foreignTable = []string{
	"CYBORG_", "TEMPORAL_", "OS_", "PG", "XDG_", "HTTP_PROXY=", "HTTPS_PROXY=", "ALL_PROXY=", "NO_PROXY=",
}

// oursTable has how the names of those begin that are meant for the tests.
var oursTable = []string{"CYBORG_TEST_", "CYBORG_BIN="}

// Main runs the tests of a package without such variables, and exits.
func Main(m *testing.M) {
	if err := Clear(); err != nil {
		fmt.Fprintln(os.Stderr, "environtest:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// Clear takes such variables from this process, except for what is meant for
// the tests.
func Clear() error {
	for _, variable := range os.Environ() {
		if !foreign(variable) || begins(variable, oursTable) {
			continue
		}
		name, _, _ := strings.Cut(variable, "=")
		if err := os.Unsetenv(name); err != nil {
			return err
		}
	}
	return nil
}

// Strip removes such variables from an environment that a program is to have.
func Strip(environ []string) []string { return slices.DeleteFunc(slices.Clone(environ), foreign) }

func foreign(variable string) bool { return begins(variable, foreignTable) }

func begins(variable string, with []string) bool {
	name := strings.ToUpper(variable)
	return slices.ContainsFunc(with, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}
