package chaos_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/tests/clock"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestRequiredFaults: what the machine does not let the test do is left out and said,
// and is an error where the environment requires it.
func TestRequiredFaults(t *testing.T) {
	t.Parallel()
	wanted := []faultKind{kill, full, power, jump}
	for _, test := range []struct {
		machine  machine
		missing  []faultKind
		variable string // that requires it
	}{
		{machine{disks: true, losesPower: true}, nil, ""},
		{machine{disks: true}, []faultKind{power}, harness.RootRequired},
		{machine{}, []faultKind{full, power}, harness.RootRequired},
		{machine{disks: true, losesPower: true, clocks: errors.New("refused")}, []faultKind{jump}, clock.Required},
	} {
		possible, without := test.machine.do(wanted)
		require.Len(t, without, len(test.missing))
		require.ElementsMatch(t, wanted, append(possible, test.missing...))

		for _, variable := range []string{"", harness.RootRequired, clock.Required} {
			environment := func(name string) string {
				if name == variable {
					return "required"
				}
				return ""
			}
			err := mayDoWithout(wanted, possible, environment)
			require.Equal(t, variable != "" && variable == test.variable, err != nil, "%q: %v", variable, err)
			for _, kind := range test.missing {
				if err != nil {
					require.ErrorContains(t, err, string(kind))
				}
			}
			require.NoError(t, mayDoWithout([]faultKind{kill}, []faultKind{kill}, environment), "nobody wants it")
		}
	}
}
