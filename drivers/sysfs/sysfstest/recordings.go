package sysfstest

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Recordings are the archives of real machines' PCI trees that ghw ships with its module, for capture.Open.
func Recordings(t testing.TB) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(ghw(t), "snapshots", "*.tar.gz"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(list), 8)
	return list
}

// PCIIDs is the pci.ids file that ghw ships for its own tests.
func PCIIDs(t testing.TB) string {
	t.Helper()
	return filepath.Join(ghw(t), "usr", "share", "hwdata", "pci.ids")
}

// ghw is the directory of ghw's test data.
func ghw(t testing.TB) string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/jaypipes/ghw").Output()
	require.NoError(t, err)
	return filepath.Join(strings.TrimSpace(string(dir)), "testdata")
}
