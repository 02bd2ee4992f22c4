package sysfs_test

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

// TestAnswers looks at functions with different configuration spaces.
func TestAnswers(t *testing.T) {
	t.Parallel()
	ones := strings.Repeat("\xff", 64)
	for name, c := range map[string]struct {
		header, power string
		want          bool
	}{
		"a function":                         {"\xde\x10\xb5\x20\x06\x04\x10\x00" + strings.Repeat("\x00", 56), "active", true},
		"a virtual function":                 {"\xff\xff\xff\xff\x06\x04\x10\x00" + strings.Repeat("\x00", 56), "active", true},
		"one that was pulled out":            {ones, "active", false},
		"one that cannot sleep":              {ones, "unsupported", false},
		"one that sleeps, and is left alone": {ones, "suspended", true},
		"a recording that was emptied":       {"", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := sysfstest.New(t, sysfstest.GPU(t, gpu))
			all, err := tree(t, host.Root()).Functions(t.Context())
			require.NoError(t, err)
			f := all[0]
			asked := func(wake bool) bool {
				answers, err := tree(t, host.Root()).Answers(t.Context(), f, wake)
				require.NoError(t, err)
				return answers
			}
			require.True(t, asked(true), "there is no configuration space to read")

			host.Set(path.Join(f.Path, "config"), c.header+strings.Repeat("\xff", 4000))
			if c.header == "" {
				host.Set(path.Join(f.Path, "config"), "")
			}
			host.Set(path.Join(f.Path, "power/runtime_status"), c.power+"\n")
			require.Equal(t, c.want, asked(false))
			require.Equal(t, c.header != ones, asked(true))
		})
	}
}

// TestAnswersOfWhatCannotBeRead: a kernel that refuses to tell is no card that does
// not answer, and its error says what can be done.
func TestAnswersOfWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.GPU(t, gpu))
	all, err := tree(t, host.Root()).Functions(t.Context())
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(host.Root(), all[0].Path, "config"), 0o755)) // nobody can read a directory

	_, err = tree(t, host.Root()).Answers(t.Context(), all[0], true)
	require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, "/config for "+gpu+" failed")
	require.NotEmpty(t, cyborg.AsError(err).Hint)
}
