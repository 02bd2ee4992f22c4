// Package needtest skips tests that need more than every machine has, such as
// root. Where CYBORG_TEST_NEEDS=required, as in .ci/run, they fail instead: a test
// that nobody runs proves nothing.
//
// Only tests import this package.
package needtest

import (
	"os"
	"os/exec"
	"testing"
)

// Variable is the environment variable that makes a test fail that would be
// skipped.
const Variable = "CYBORG_TEST_NEEDS"

// Required is its value that does so.
const Required = "required"

// That skips the test unless the need is met; otherwise says what is missing.
func That(t testing.TB, met bool, otherwise string) {
	t.Helper()
	switch {
	case met:
	case os.Getenv(Variable) == Required:
		t.Fatalf("%s=%s, and %s", Variable, Required, otherwise)
	default:
		t.Skip(otherwise)
	}
}

// Root skips the test unless it runs as root.
func Root(t testing.TB) {
	t.Helper()
	That(t, os.Geteuid() == 0, "this user is not root")
}

// Program skips the test unless the program is installed.
func Program(t testing.TB, name string) {
	t.Helper()
	_, err := exec.LookPath(name)
	That(t, err == nil, "there is no "+name)
}
