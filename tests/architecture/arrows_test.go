// Package architecture holds the tests of what may import what, also through
// others. The linter's depguard sees direct imports only; the arrows themselves
// are in docs/architecture.md.
package architecture_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/cyborg-project/cyborg"

// root is the directory of the module.
const root = "../.."

// goTool runs the go command in the module's directory.
func goTool(t *testing.T, environment []string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", args...)
	command.Dir = root
	command.Env = append(os.Environ(), environment...)

	var stderr bytes.Buffer
	command.Stderr = &stderr

	out, err := command.Output()
	require.NoError(t, err, "go %s: %s", strings.Join(args, " "), stderr.String())

	return string(out)
}

// dependencies lists every package that the given ones are linked from.
func dependencies(t *testing.T, patterns ...string) []string {
	t.Helper()
	return strings.Fields(goTool(t, nil, append([]string{"list", "-deps"}, patterns...)...))
}

func TestArrows(t *testing.T) {
	t.Parallel()
	engine := []string{"go.temporal.io/server", "github.com/temporalio"}
	records := []string{module + "/db", "github.com/jackc/pgx", "github.com/pressly/goose"}
	serverParts := []string{module + "/api", module + "/internal/server", module + "/activities/conductor", module + "/workers/conductor"}
	temporal := []string{"go.temporal.io"}
	hostParts := []string{module + "/drivers", module + "/activities/agent", module + "/workers/agent"}
	pretended := []string{module + "/drivers/fake"} // a host with real hardware must have no driver that makes cards up

	for name, test := range map[string]struct {
		packages  []string
		forbidden [][]string
	}{
		"everything here":       {[]string{"./..."}, [][]string{engine}},
		"the agent":             {[]string{"./cmd/cyborg-agent", "./internal/agentcmd", "./workers/agent/...", "./activities/agent/..."}, [][]string{engine, records, serverParts, pretended}},
		"drivers":               {[]string{"./drivers/..."}, [][]string{temporal, records, serverParts, {module + "/workflows", module + "/internal"}}},
		"drivers of production": {[]string{"./drivers/builtin"}, [][]string{pretended}},
		"workflows":             {[]string{"./workflows/..."}, [][]string{records, serverParts, hostParts, {module + "/internal"}}},
		"client and server":     {[]string{"./cmd/cyborg"}, [][]string{engine, hostParts}},
		"the store":             {[]string{"./db/..."}, [][]string{temporal, hostParts, serverParts, {module + "/workflows"}}},
		"the conductor":         {[]string{"./workers/conductor/...", "./activities/conductor/..."}, [][]string{hostParts, {module + "/api"}}},
		"the API":               {[]string{"./api/..."}, [][]string{hostParts, {module + "/activities"}}},
		"operations":            {[]string{"./api/operate"}, [][]string{{module + "/api/v1", module + "/api/v2"}}},
		"/v1":                   {[]string{"./api/v1"}, [][]string{{module + "/api/v2"}}},
		"/v2":                   {[]string{"./api/v2"}, [][]string{{module + "/api/v1"}}},
		"the domain":            {[]string{"."}, [][]string{temporal, records, hostParts, serverParts, {module + "/internal"}}},
		"the configuration":     {[]string{"./internal/config"}, [][]string{temporal, records, hostParts, serverParts}},
		"stale requests":        {[]string{"./internal/stalearqs"}, [][]string{temporal, hostParts, serverParts, {module + "/workflows"}}},
		"the way to Temporal":   {[]string{"./internal/temporalclient"}, [][]string{engine, records, hostParts, serverParts}},
		"OpenStack":             {[]string{"./internal/openstack/..."}, [][]string{temporal, records, hostParts, serverParts, {module + "/workflows"}}},
		"the command line":      {[]string{"./internal/cli"}, [][]string{temporal, records, hostParts, serverParts, {module + "/workflows"}}},
		"the sentences":         {[]string{"./internal/history"}, [][]string{temporal, records, hostParts, serverParts, {module + "/workflows", module + "/internal/apiclient", module + "/internal/cli"}}},
		"the client of the API": {[]string{"./internal/apiclient"}, [][]string{temporal, records, hostParts, serverParts}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			linked := dependencies(t, test.packages...)
			require.NotEmpty(t, linked)
			for _, group := range test.forbidden {
				for _, forbidden := range group {
					for _, path := range linked {
						if path == forbidden || strings.HasPrefix(path, forbidden+"/") {
							t.Errorf("%s reaches %s (go list -deps)", name, path)
						}
					}
				}
			}
		})
	}
}

// TestAgentIsSmallAndStatic builds the agent without cgo and bounds its size,
// because it must run on every host, whatever is installed there.
func TestAgentIsSmallAndStatic(t *testing.T) {
	t.Parallel()
	const limit = 40 << 20
	binary := filepath.Join(t.TempDir(), "cyborg-agent")
	absolute, err := filepath.Abs(binary)
	require.NoError(t, err)

	goTool(t, []string{"CGO_ENABLED=0"}, "build", "-ldflags=-s -w", "-o", absolute, "./cmd/cyborg-agent")

	info, err := os.Stat(binary)
	require.NoError(t, err)
	require.LessOrEqual(t, info.Size(), int64(limit), "the agent's binary has grown to %d MiB", info.Size()>>20)
	t.Logf("cyborg-agent is %d MiB", info.Size()>>20)
}
