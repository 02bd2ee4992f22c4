// Package release holds the test of what a release leaves behind for all later
// ones: files that databases and running workflows in the field go by. It reads
// the tree, and imports nothing of it.
package release_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the directory of the module, which the paths in a release's list
// start from.
const root = "../.."

// TestFilesOfReleasesAreFrozen: the files that testdata/<release>.sha256 lists
// are as they were in that release. A database that has applied a migration
// never sees a change of it, and a run that a release has begun must replay
// with every later one.
func TestFilesOfReleasesAreFrozen(t *testing.T) {
	t.Parallel()
	releases, err := filepath.Glob("testdata/*.sha256")
	require.NoError(t, err)
	require.NotEmpty(t, releases)

	for _, release := range releases {
		t.Run(strings.TrimSuffix(filepath.Base(release), ".sha256"), func(t *testing.T) {
			t.Parallel()
			list, err := os.Open(release)
			require.NoError(t, err)
			defer list.Close()

			lines := bufio.NewScanner(list)
			files := 0
			for ; lines.Scan(); files++ {
				sum, name, found := strings.Cut(lines.Text(), "  ") // as sha256sum writes it
				require.True(t, found, lines.Text())

				content, err := os.ReadFile(filepath.Join(root, name))
				require.NoError(t, err, "this file of the release is gone")
				now := sha256.Sum256(content)
				require.Equal(t, sum, hex.EncodeToString(now[:]), "%s has changed since the release: "+
					"add a migration instead, or guard the change of the workflow with workflow.GetVersion", name)
			}

			require.NoError(t, lines.Err())
			require.NotZero(t, files)
		})
	}
}
