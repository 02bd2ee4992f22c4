package fake_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

// A link that somebody has planted in the directory of the cards leads the
// driver, which may be root, to no file outside it: nothing there is read,
// written or made.
func TestPlantedLinksLeadNowhere(t *testing.T) {
	t.Parallel()
	const identity = "00fa:01:00.0"
	empty := `{"boot_id": "", "deployables": {}, "fail": {}, "latency": {}}`

	for name, test := range map[string]struct {
		link   string // in the directory of the cards
		before string // content of the file outside; empty where there is none
	}{
		"the card":          {identity + ".json", empty},
		"the card, new":     {identity + ".json", ""},
		"the card's copy":   {"." + identity + ".new", "somebody's own"},
		"the card's lock":   {"." + identity + ".lock", ""},
		"an existing lock":  {"." + identity + ".lock", "somebody's own"},
		"another directory": {"..", empty},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &park{dir: t.TempDir()}
			outside := filepath.Join(t.TempDir(), "file")
			if test.before != "" {
				require.NoError(t, os.WriteFile(outside, []byte(test.before), 0o600))
			}
			if test.link == ".." {
				require.NoError(t, os.Symlink(filepath.Dir(outside), filepath.Join(p.dir, "away")))
				require.NoError(t, os.Symlink("away/file", filepath.Join(p.dir, identity+".json")))
			} else {
				require.NoError(t, os.Symlink(outside, filepath.Join(p.dir, test.link)))
			}

			_, err := fake.New(p.environment(), nil)
			if test.link == "."+identity+".new" {
				require.NoError(t, err, "the driver's own new file takes the place of the link")
			} else {
				require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err), "%v", err)
				require.ErrorContains(t, err, "escapes")
			}

			after, err := os.ReadFile(outside)
			if test.before == "" {
				require.ErrorIs(t, err, fs.ErrNotExist)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.before, string(after))
		})
	}
}

// The cards of a host are nobody's business but the agent's.
func TestFilesAreForTheirOwnerAlone(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "park")
	newPark(t, map[string]any{"park_dir": dir})

	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o700), info.Mode().Perm())

	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	for _, entry := range entries {
		info, err := entry.Info()
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode().Perm(), entry.Name())
	}
}
