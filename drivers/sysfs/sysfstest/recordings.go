package sysfstest

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Recordings returns recordings of real machines' PCI trees, for capture.Open:
// those that are part of the ghw module, and those that cyborg-agent record made of
// machines that ghw has none of, in testdata.
func Recordings(t testing.TB) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(ghw(t), "snapshots", "*.tar.gz"))
	require.NoError(t, err)

	require.GreaterOrEqual(t, len(list), 8)
	_, file, _, ok := runtime.Caller(0)
	require.True(t, ok)
	own, err := filepath.Glob(filepath.Join(filepath.Dir(file), "testdata", "*.tar.gz"))
	require.NoError(t, err)
	require.NotEmpty(t, own)
	return append(list, own...)
}

// PCIIDs returns the pci.ids file that ghw has for its own tests.
func PCIIDs(t testing.TB) string {
	t.Helper()
	return filepath.Join(ghw(t), "usr", "share", "hwdata", "pci.ids")
}

// ghw returns the directory with the test data of ghw.
func ghw(t testing.TB) string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/jaypipes/ghw").Output()
	require.NoError(t, err)
	return filepath.Join(strings.TrimSpace(string(dir)), "testdata")
}
