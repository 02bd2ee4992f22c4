// Package operationkind_test holds the test that docs/workflows.md is enough to
// add a kind of operation. It is a directory of its own, because the code of a
// kind is spread over several packages: the test builds all of them again, with
// the files and lines of the page.
package operationkind_test

import (
	"encoding/json"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
)

func TestMain(m *testing.M) { postgrestest.Main(m) }

// kind is the kind that the page adds.
const kind cyborg.OperationKind = "survey"

// root is the directory of the module.
const root = "../.."

// block matches a block of Go on the page that is a file of the kind, or its
// line in a table.
var block = regexp.MustCompile("(?s)<!-- (file|line): (\\S+) -->\n```go\n(.*?)```")

// built is set in the environment of a build with the kind of the page.
const built = "CYBORG_TEST_KIND_OF_THE_PAGE"

// TestKindOfThePage runs itself again in a build with the kind of the page. The
// build is an overlay: nothing is written into the tree, and Cyborg needs no
// way to register a kind while it runs. TestEveryKind of the API and of the
// history says whether their lines are there; the survey needs all other lines
// to run.
func TestKindOfThePage(t *testing.T) {
	t.Parallel()
	if os.Getenv(built) != "" {
		require.Contains(t, cyborg.OperationKinds(), kind)
		surveyAnAccelerator(t)
		return
	}

	command := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-vet=off", "-overlay", overlay(t),
		"-run", "^(TestKindOfThePage|TestEveryKind)$", "./api/v1", "./internal/history", "./tests/operationkind")
	command.Dir = root
	command.Env = append(os.Environ(), built+"=1")

	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// overlay writes the files of a build with the blocks of the page, and their
// list for go test -overlay.
func overlay(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs/workflows.md"))
	require.NoError(t, err)

	dir := t.TempDir()
	replaced := map[string]string{}

	for i, found := range block.FindAllStringSubmatch(string(page), -1) {
		what, path, code := found[1], filepath.Join(root, found[2]), found[3]
		if what == "line" {
			code = withLine(t, path, code)
		} else {
			require.NoFileExists(t, path)
			formatted, err := format.Source([]byte(code))
			require.NoError(t, err, found[2])
			require.Equal(t, string(formatted), code, "%s on the page is not formatted", found[2])
		}

		absolute, err := filepath.Abs(path)
		require.NoError(t, err)
		replaced[absolute] = filepath.Join(dir, fmt.Sprintf("%d.go", i))
		require.NoError(t, os.WriteFile(replaced[absolute], []byte(code), 0o600))
	}
	require.Len(t, replaced, 8, "the page has three files and five lines")

	list, err := json.Marshal(map[string]any{"Replace": replaced})
	require.NoError(t, err)
	out := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(out, list, 0o600))
	return out
}

// withLine returns a file of the tree with a line at the end of its table.
func withLine(t *testing.T, path, line string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)

	before, after, ok := strings.Cut(string(text), "Table = ")
	require.True(t, ok, "%s has no table", path)
	lines, after, ok := strings.Cut(after, "\n}\n")
	require.True(t, ok, "the table in %s has no end", path)

	return before + "Table = " + lines + "\n" + line + "}\n" + after
}
