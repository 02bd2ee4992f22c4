package records_test

import (
	"testing"

	"github.com/cyborg-project/cyborg/internal/leaktest"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

func TestMain(m *testing.M) { leaktest.Main(postgrestest.Runner(m)) }
