package needtest_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/needtest"
)

// watched is a test that says what becomes of it.
type watched struct {
	testing.TB

	became string
}

func (w *watched) Helper()          {}
func (w *watched) Skip(args ...any) { w.became = "skipped: " + fmt.Sprint(args...) }
func (w *watched) Fatalf(text string, args ...any) {
	w.became = "failed: " + fmt.Sprintf(text, args...)
}

// TestThat: what is needed and missing skips a test, or fails it where nothing may
// be missing.
func TestThat(t *testing.T) {
	became := func(met bool) string {
		w := &watched{TB: t}
		needtest.That(w, met, "it rains")
		return w.became
	}

	t.Setenv(needtest.Variable, "")
	require.Empty(t, became(true))
	require.Equal(t, "skipped: it rains", became(false))

	t.Setenv(needtest.Variable, needtest.Required)
	require.Empty(t, became(true))
	require.Equal(t, "failed: CYBORG_TEST_NEEDS=required, and it rains", became(false))
}
