package agentcmd

import (
	"testing"

	"github.com/cyborg-project/cyborg/internal/environtest"
)

func TestMain(m *testing.M) { environtest.Main(m) }
