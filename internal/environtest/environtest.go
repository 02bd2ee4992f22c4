// Package environtest removes environment variables that would change the
// result of tests: those by which the shell of a developer points to a Cyborg,
// a Temporal, an OpenStack, a PostgreSQL, a proxy, or directories with
// settings. The package calls them foreign.
//
// A package whose tests read the environment as a program does has
//
//	func TestMain(m *testing.M) { environtest.Main(m) }
//
// Package postgrestest does the same for the packages that use it.
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

// foreignTable lists the prefixes of foreign variables, in capitals. The names
// are compared in capitals because proxies are also set in small letters, such
// as http_proxy. A prefix that ends in "=" is a whole name.
var foreignTable = []string{
	"CYBORG_", "TEMPORAL_", "OS_", "PG", "XDG_", "HTTP_PROXY=", "HTTPS_PROXY=", "ALL_PROXY=", "NO_PROXY=",
}

// oursTable lists the prefixes of variables that look foreign but are settings
// of the tests themselves.
var oursTable = []string{"CYBORG_TEST_", "CYBORG_BIN="}

// Main runs the tests of a package without foreign variables, and exits. It is
// for TestMain.
func Main(m *testing.M) {
	if err := Clear(); err != nil {
		fmt.Fprintln(os.Stderr, "environtest:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// Clear removes foreign variables from the environment of this process. It
// keeps the settings of the tests.
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

// Strip returns a copy of an environment without foreign variables, for a
// program that a test runs. The settings of the tests are removed too: they are
// not for programs.
func Strip(environ []string) []string { return slices.DeleteFunc(slices.Clone(environ), foreign) }

// foreign reports whether a variable, as NAME=VALUE, has a prefix of
// foreignTable.
func foreign(variable string) bool { return begins(variable, foreignTable) }

// begins reports whether a variable begins with one of the prefixes, whatever
// the case of its letters.
func begins(variable string, with []string) bool {
	name := strings.ToUpper(variable)
	return slices.ContainsFunc(with, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}
