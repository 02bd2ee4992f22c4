package conductor_test

import (
	"testing"

	"go.temporal.io/sdk/activity"
	"go.uber.org/goleak"

	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(postgrestest.Runner(m)) }

// registered are the options that register an activity under its name.
func registered(name string) activity.RegisterOptions { return activity.RegisterOptions{Name: name} }
