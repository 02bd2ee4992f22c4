package hosts_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/deploy/standalone/hosts"
)

// TestParse: each value of --hosts becomes a host, whose name is derived where
// none is given.
func TestParse(t *testing.T) {
	t.Parallel()
	found, err := hosts.Parse([]string{
		"fake:8xfpga,2xgpu", "fake:1xnic", "sysfs:/", "sysfs:/captures/linux-amd64-abc.tar.gz", "rack1=sysfs:/captures/x", "r2=fake:1xssd",
	}, "me.example.org")
	require.NoError(t, err)

	require.Equal(t, []hosts.Host{
		{"fake", "fake", "8xfpga,2xgpu"},
		{"fake-2", "fake", "1xnic"},
		{"me.example.org", "sysfs", "/"},
		{"linux-amd64-abc", "sysfs", "/captures/linux-amd64-abc.tar.gz"},
		{"rack1", "sysfs", "/captures/x"},
		{"r2", "fake", "1xssd"},
	}, found)
}

// TestParseRefuses: a malformed value and a second host of the same name are
// refused.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for value, says := range map[string]string{
		"":                  "is not a host",
		"fake":              "is not a host",
		"fake:":             "is not a host",
		"gpu:2":             "is not a host",
		"fake:lots":         "lots",
		"a b=fake:1xgpu":    "cannot be the name of a host",
		"sysfs:/my capture": "cannot be the name of a host",
	} {
		t.Run(value, func(t *testing.T) {
			t.Parallel()
			_, err := hosts.Parse([]string{value}, "me")
			require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
			require.ErrorContains(t, err, says)
			require.ErrorContains(t, err, "--hosts")
		})
	}

	_, err := hosts.Parse([]string{"sysfs:/", "sysfs:/"}, "me")
	require.ErrorContains(t, err, "there is a host me already")
	_, err = hosts.Parse([]string{"a=fake:1xgpu", "a=fake:1xgpu"}, "me")
	require.ErrorContains(t, err, "there is a host a already")
}
