package harness

import (
	"os"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg/internal/environtest"
)

// Environ returns the environment of the programs that a test runs: the
// environment of the test, without the variables that point to other systems of
// the user, with its own home directory, and with the given variables. The home
// keeps the programs away from the files of the user.
func Environ(home string, more ...string) []string {
	env := slices.DeleteFunc(environtest.Strip(os.Environ()), func(variable string) bool { return strings.HasPrefix(variable, "HOME=") })
	return append(append(env, "HOME="+home), more...)
}
