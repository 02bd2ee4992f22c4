package records_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(postgrestest.Runner(m)) }
