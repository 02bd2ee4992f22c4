package hosts_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/deploy/standalone/hosts"
	"github.com/cyborg-project/cyborg/internal/fuzztest"
)

// FuzzParse reads any two values of --hosts. Where they are accepted, each host
// has a valid name of its own.
func FuzzParse(f *testing.F) {
	for _, text := range append(fuzztest.Texts(), "fake:8xfpga", "a=fake:1xgpu", "fake-2=fake:1xgpu", "sysfs:/", "sysfs:..", "sysfs:/a/b.tar.gz", "sysfs:.tgz", "me=sysfs:x", "a=b=fake:1xgpu") {
		f.Add(text, text)
		f.Add("fake:1xgpu", text)
	}

	f.Fuzz(func(t *testing.T, first, second string) {
		found, err := hosts.Parse([]string{first, second}, "me")
		if err != nil {
			require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "%v", err)
			return
		}

		require.Len(t, found, 2)
		require.NotEqual(t, found[0].Name, found[1].Name)
		for _, h := range found {
			require.NoError(t, cyborg.CheckHostName(h.Name))
			require.NotEmpty(t, h.Arg)
		}
	})
}
