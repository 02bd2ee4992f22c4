package cyborg_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// parameters are one of each type.
func parameters() []cyborg.Parameter {
	return []cyborg.Parameter{
		{Name: "mac", Type: cyborg.ParameterMAC},
		{Name: "vlan", Type: cyborg.ParameterInteger, Max: 4094},
		{Name: "trust", Type: cyborg.ParameterBoolean},
		{Name: "link_state", Type: cyborg.ParameterChoice, Values: []string{"auto", "enable"}},
	}
}

// TestParametersTakeTheirValues: each type has its values, and whoever gives another
// one reads which these are.
func TestParametersTakeTheirValues(t *testing.T) {
	t.Parallel()
	p := cyborg.Preparation{Parameters: parameters()}
	for _, given := range []map[string]string{
		nil, {"mac": "52:54:00:12:34:56", "vlan": "0"}, {"vlan": "4094", "trust": "true"}, {"trust": "false", "link_state": "auto"}, {"mac": "52:54:00:AB:cd:EF"},
	} {
		require.NoError(t, p.Check(given), "%v", given)
	}

	for name, wrong := range map[string]struct {
		values []string
		takes  string
	}{
		"mac": {
			[]string{"", "52:54:00:12:34", "52-54-00-12-34-56", "01:00:5e:00:00:01", "00:00:00:00:00:00", "5254.0012.3456", "52:54:00:12:34:56:78:9a"},
			"the MAC address of one interface",
		},
		"vlan":       {[]string{"", "-1", "4095", "+5", "05", "5.0", "five", "99999999999999999999"}, "a whole number from 0 to 4094"},
		"trust":      {[]string{"", "True", "yes", "1"}, "true or false"},
		"link_state": {[]string{"", "Auto", "disable"}, "one of auto, enable"},
	} {
		for _, value := range wrong.values {
			err := p.Check(map[string]string{name: value})
			require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "%s=%s", name, value)
			require.ErrorContains(t, err, wrong.takes)
		}
	}
}

// TestUnknownParameters: whoever gives one reads which there are.
func TestUnknownParameters(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, (&cyborg.Preparation{Parameters: parameters()}).Check(map[string]string{"speed": "1"}),
		`there is no parameter "speed": it has mac, vlan, trust, link_state`)
	require.ErrorContains(t, (&cyborg.Preparation{}).Check(map[string]string{"mac": "x"}), `there is no parameter "mac": it has none`)
	require.ErrorContains(t, (*cyborg.Preparation)(nil).Check(map[string]string{"mac": "x"}), `there is no parameter "mac": it has none`)
	require.NoError(t, (*cyborg.Preparation)(nil).Check(nil))

	newer := cyborg.Parameter{Name: "color", Type: "color"}
	require.ErrorContains(t, newer.Check("red"), "does not know")
	require.Contains(t, newer.Takes(), "does not know")
}

// TestParameterNames: a name is words in small letters, connected by underscores.
func TestParameterNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"mac", "link_state", "a1", strings.Repeat("a", 64)} {
		require.True(t, cyborg.IsParameterName(name), name)
	}
	for _, name := range []string{"", "MAC", "1a", "_a", "a_", "a__b", "a-b", "a b", "a\n", strings.Repeat("a", 65)} {
		require.False(t, cyborg.IsParameterName(name), name)
	}
}

// TestParametersAreShownInOrder: what was chosen is shown in the order of the names.
func TestParametersAreShownInOrder(t *testing.T) {
	t.Parallel()
	require.Equal(t, "mac=52:54:00:12:34:56, vlan=5", cyborg.ParametersText(map[string]string{"vlan": "5", "mac": "52:54:00:12:34:56"}))
	require.Empty(t, cyborg.ParametersText(nil))
}
