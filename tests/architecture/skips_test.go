package architecture_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// skipPattern matches a call that skips a test.
var skipPattern = regexp.MustCompile(`\b[a-z]+\.Skip(f|Now)?\(`)

// skipsTable has the files that skip tests by themselves, with the reason.
var skipsTable = map[string]string{
	"internal/needtest/needtest.go":                       "it fails them where nothing may be missing",
	"tests/clock/clock.go":                                "it fails them where CYBORG_TEST_CLOCKS demands it",
	"tests/harness/disk.go":                               "it fails them where CYBORG_TEST_ROOT demands it",
	"tests/openstack/rig/rig.go":                          "make test-openstack runs them",
	"tests/hardware/rig/rig.go":                           "make test-hardware runs them",
	"tests/hardware/fakebus/fakebus.go":                   "make test-hardware runs them",
	"tests/mutants/mutants_test.go":                       "make mutants runs it",
	"internal/postgres/place_test.go":                     "another test runs it as another user",
	"internal/postgres/postgrestest/postgrestest_test.go": "it is a process of another test",
	"drivers/sysfs/function_test.go":                      "a machine may have no PCI bus",
	"drivers/sysfs/protection_test.go":                    "a machine may have no virtio disk",
	"db/property_test.go":                                 "rapid draws another action",
}

// TestNothingIsSkippedUnseen: a test that a machine cannot run fails in .ci/run,
// because it says what it needs with internal/needtest. What may be skipped there
// is in skipsTable.
func TestNothingIsSkippedUnseen(t *testing.T) {
	t.Parallel()
	var skips []string
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "bin" || name == "testdata") {
			return fs.SkipDir
		}
		if entry.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}

		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if skipPattern.Match(text) {
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			skips = append(skips, name)
		}
		return nil
	}))

	var listed []string
	for name := range skipsTable {
		listed = append(listed, name)
	}
	slices.Sort(listed)
	slices.Sort(skips)
	require.Equal(t, listed, skips)
}
