package harness_test

import (
	"testing"

	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestNeedDisks is how make test asks whether disks can be made here: it fails where
// they cannot, and CYBORG_TEST_ROOT=required.
func TestNeedDisks(t *testing.T) {
	t.Parallel()
	harness.NeedDisks(t)
}
