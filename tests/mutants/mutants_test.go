// Package mutants breaks the code on purpose, one promise at a time, and
// requires that a test notices. The list is in list_test.go; make mutants runs
// it, and make test only checks that each mutant still applies.
package mutants_test

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// run is the flag of make mutants.
var run = flag.Bool("mutants", false, "run the tests against each mutant, which takes minutes")

// root is the directory of the module.
const root = "../.."

// standalone is the directory of the other module.
const standalone = "deploy/standalone/"

// limit is when a test that a mutant makes hang is ended.
const limit = "10m"

// A mutant must be noticed by a test that says what is wrong: the test has
// failed with a message of its own, at a line of a file. What the compiler
// refuses proves nothing, and neither does a panic or a hang, which anything
// else could cause as well.
var (
	message = regexp.MustCompile(`(?m)^\s+\w+\.go:\d+: `)
	crash   = regexp.MustCompile(`(?m)^(panic: |fatal error: |SIG[A-Z]+: )|\[(build|setup) failed\]|\bpanic: test timed out`)
)

// noticed returns why the output of a test that failed is no proof that the test
// has noticed the mutant; empty where it is one.
func noticed(output, test string) (why string) {
	switch {
	case crash.MatchString(output):
		return "it did not compile, panicked or hung: " + crash.FindString(output)
	case !strings.Contains(output, "--- FAIL: "+test+" ("):
		return "the test did not get as far as to fail"
	case !message.MatchString(output):
		return "the test does not say what is wrong"
	}
	return ""
}

// mutant is a change of one file that breaks a promise.
type mutant struct {
	// breaks is the promise that the change breaks.
	breaks string
	file   string
	// old is a text that occurs once in the file, and is replaced by the new one.
	old, new string
	// pkg and test are the package and the name of a test that then fails.
	pkg, test string
}

// apply returns the content of the file with the mutant in it.
func (m mutant) apply(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, m.file))
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(text), m.old),
		"the text must occur once in %s; change the mutant together with the code:\n%s", m.file, m.old)
	require.NotEqual(t, m.old, m.new)
	return strings.Replace(string(text), m.old, m.new, 1)
}

// TestMutantsApply: each mutant changes the code as it is now, and its test
// exists.
func TestMutantsApply(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}

	for _, m := range mutants() {
		require.False(t, names[m.breaks], "two mutants break %q", m.breaks)
		names[m.breaks] = true

		t.Run(m.breaks, func(t *testing.T) {
			t.Parallel()
			m.apply(t)

			files, err := filepath.Glob(filepath.Join(root, m.pkg, "*_test.go"))
			require.NoError(t, err)
			defines := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(m.test) + `\(`)
			require.True(t, slices.ContainsFunc(files, func(file string) bool {
				text, err := os.ReadFile(file)
				require.NoError(t, err)
				return defines.Match(text)
			}), "there is no %s in %s", m.test, m.pkg)
		})
	}
}

// TestOnlyAMessageIsANotice: a test that fails for another reason than what it
// says has noticed nothing.
func TestOnlyAMessageIsANotice(t *testing.T) {
	t.Parallel()
	const failed = "--- FAIL: TestX (0.05s)\n"
	for name, test := range map[string]struct {
		output  string
		noticed bool
	}{
		"a message":            {failed + "    x_test.go:12: \n        \tError Trace:\tx_test.go:12\nFAIL\n", true},
		"of a subtest":         {failed + "    --- FAIL: TestX/one (0.00s)\n        x_test.go:12: no\nFAIL\n", true},
		"a panic":              {failed + "    x_test.go:12: no\npanic: boom [recovered]\n", false},
		"a hang":               {"panic: test timed out after 10m0s\n\trunning tests:\n\t\tTestX (10m0s)\n", false},
		"a mutant that is bad": {"# x\n./x.go:3:2: declared and not used: y\nFAIL\tx [build failed]\n", false},
		"another test":         {"--- FAIL: TestXY (0.05s)\n    x_test.go:12: no\n", false},
		"no message":           {failed + "FAIL\n", false},
	} {
		require.Equal(t, test.noticed, noticed(test.output, "TestX") == "", name)
	}
}

// TestMutantsDie runs the test of each mutant with the mutant in the code. Nothing
// in the tree is changed: the compiler reads the changed file from elsewhere.
func TestMutantsDie(t *testing.T) {
	t.Parallel()
	if !*run {
		t.Skip("make mutants runs it, in some minutes")
	}

	t.Run("without a mutant", func(t *testing.T) {
		t.Parallel()
		tests := map[string][]string{}
		for _, m := range mutants() {
			tests[m.pkg] = append(tests[m.pkg], m.test)
		}
		for pkg, names := range tests {
			output, err := test(t, pkg, names, "")
			require.NoError(t, err, "the tests fail without a mutant:\n%s", output)
		}
	})

	for _, m := range mutants() {
		t.Run(m.breaks, func(t *testing.T) {
			t.Parallel()
			mutated := filepath.Join(t.TempDir(), filepath.Base(m.file))
			require.NoError(t, os.WriteFile(mutated, []byte(m.apply(t)), 0o600))

			original, err := filepath.Abs(filepath.Join(root, m.file))
			require.NoError(t, err)
			text, err := json.Marshal(map[string]any{"Replace": map[string]string{original: mutated}})
			require.NoError(t, err)
			overlay := filepath.Join(t.TempDir(), "overlay.json")
			require.NoError(t, os.WriteFile(overlay, text, 0o600))

			output, err := test(t, m.pkg, []string{m.test}, overlay)
			require.Error(t, err, "the mutant survives %s in %s", m.test, m.pkg)
			require.Empty(t, noticed(output, m.test), "%s in %s:\n%s", m.test, m.pkg, output)
		})
	}
}

// test runs tests of a package, and returns what they print.
func test(t *testing.T, pkg string, names []string, overlay string) (string, error) {
	t.Helper()
	slices.Sort(names)
	pattern := "^(" + strings.Join(slices.Compact(names), "|") + ")$"

	args := []string{"test", "-count=1", "-timeout=" + limit, "-run=" + pattern}
	if overlay != "" {
		args = append(args, "-failfast", "-overlay="+overlay)
	}

	// The standalone is a module of its own.
	dir := root
	if inside, ok := strings.CutPrefix(pkg, standalone); ok {
		dir, pkg = filepath.Join(root, standalone), inside
	}

	command := exec.CommandContext(t.Context(), "go", append(args, "./"+pkg)...)
	command.Dir = dir
	output, err := command.CombinedOutput()
	return string(output), err
}
