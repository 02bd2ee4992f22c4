package harness

import (
	"os"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg/internal/environtest"
)

// Environ is the environment of the programs that a test runs: that of the test
// without what its user's shell says of other systems, with a home of their
// own, and with these variables.
func Environ(home string, more ...string) []string {
	env := slices.DeleteFunc(environtest.Strip(os.Environ()), func(variable string) bool { return strings.HasPrefix(variable, "HOME=") })
	return append(append(env, "HOME="+home), more...)
}
