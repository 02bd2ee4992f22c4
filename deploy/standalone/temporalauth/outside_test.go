package temporalauth

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCompiledIntoAnotherServer builds the server of testdata as an operator
// would: as a module of its own, outside of this tree, with the two replace
// directives that the comment of the package shows. Nothing is downloaded.
func TestCompiledIntoAnotherServer(t *testing.T) {
	t.Parallel()
	standalone, err := filepath.Abs("..")
	require.NoError(t, err)
	dir := t.TempDir()

	text, err := os.ReadFile(filepath.Join("testdata", "server", "main.go"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), text, 0o600))

	// The versions are those that Cyborg is tested with.
	module, err := os.ReadFile(filepath.Join(standalone, "go.mod"))
	require.NoError(t, err)
	const own = "github.com/cyborg-project/cyborg"
	replaced := strings.NewReplacer(
		"module "+own+"/deploy/standalone\n", "module example.org/temporal\n",
		"replace "+own+" => ../..\n", "replace "+own+" => "+filepath.Join(standalone, "..", "..")+"\n"+
			"replace "+own+"/deploy/standalone => "+standalone+"\n"+
			"require "+own+"/deploy/standalone v0.0.0\n",
	).Replace(string(module))
	require.Contains(t, replaced, "module example.org/temporal\n")
	require.Contains(t, replaced, "=> "+standalone+"\n")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(replaced), 0o600))

	sums, err := os.ReadFile(filepath.Join(standalone, "go.sum"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o600))

	build := exec.CommandContext(t.Context(), "go", "build", "-mod=mod", "-o", filepath.Join(dir, "server"), ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=-buildvcs=false", "GOWORK=off", "GOTOOLCHAIN=local")
	said, err := build.CombinedOutput()
	require.NoError(t, err, "%s", said)
	require.FileExists(t, filepath.Join(dir, "server"))
}
