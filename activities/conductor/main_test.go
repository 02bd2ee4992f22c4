package conductor_test

import (
	"testing"

	"go.temporal.io/sdk/activity"

	"github.com/cyborg-project/cyborg/internal/leaktest"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

func TestMain(m *testing.M) { leaktest.Main(postgrestest.Runner(m)) }

// registered are the options that register an activity under its name.
func registered(name string) activity.RegisterOptions { return activity.RegisterOptions{Name: name} }
