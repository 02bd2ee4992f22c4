// Package clocks_test does the ordinary work of a cluster while the clocks of
// its processes differ by hours, and jump. Nothing may notice, because deadlines
// are Temporal's, ages are the database's, and nobody compares two machines'
// clocks: see docs/architecture.md.
package clocks_test

import (
	"testing"

	"github.com/cyborg-project/cyborg/internal/environtest"
)

func TestMain(m *testing.M) { environtest.Main(m) }
