// Package openstack_test runs Cyborg with a real Keystone, Placement, Glance
// and Nova, and with OpenStack's clients. docs/development.md says how to run
// it.
package openstack_test

import (
	"os"
	"testing"

	"github.com/cyborg-project/cyborg/tests/openstack/rig"
)

func TestMain(m *testing.M) {
	// How long Nova waits for a bind: long enough for a busy machine, short enough
	// to wait for its end.
	if os.Getenv("RIG_ARQ_TIMEOUT") == "" {
		if err := os.Setenv("RIG_ARQ_TIMEOUT", "60"); err != nil {
			panic(err)
		}
	}
	os.Exit(rig.Main(m))
}
