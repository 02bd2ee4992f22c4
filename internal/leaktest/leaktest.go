// Package leaktest requires of the tests of a package that none of their
// goroutines is left at the end. A package whose code starts goroutines has
//
//	func TestMain(m *testing.M) { leaktest.Main(m) }
//
// and one with a database leaktest.Main(postgrestest.Runner(m)).
//
// Only tests import this package.
package leaktest

import (
	"fmt"
	"net/http"
	"os"
	"time"

	"go.uber.org/goleak"
)

// limit is how long goroutines may take to end after the tests. goleak by itself
// gives them less than half a second, which is not enough for connections that
// close while the machine is busy.
const limit = time.Minute

// Main runs the tests of a package, requires that none of their goroutines is
// left, and exits.
func Main(m interface{ Run() int }) {
	code := m.Run()
	if code == 0 {
		http.DefaultClient.CloseIdleConnections()
		if err := left(limit); err != nil {
			fmt.Fprintln(os.Stderr, "leaktest: goroutines are left after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// left returns an error that lists the goroutines that are left at the end of
// the limit; nil as soon as there are none. goleak waits between two looks.
func left(limit time.Duration) error {
	for begin := time.Now(); ; {
		err := goleak.Find()
		if err == nil || time.Since(begin) > limit {
			return err
		}
	}
}
