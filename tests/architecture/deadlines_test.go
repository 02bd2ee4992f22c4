package architecture_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A limit for all attempts of an activity together is compared with the clock of the
// process that runs the activity, which may be hours off: see workflows/repeat.go. So
// a run repeats an activity itself, by Temporal's clock, and sets no such limit. Our
// workers do not see one that Temporal sets; workers of release 0.1 do.
//
// A local activity needs one all the same: without it the SDK takes that of one
// attempt for all of them. So it gets one that never ends.

// setsDeadlineTable has the functions that may set another limit than noLimit, by
// their file, and why.
var setsDeadlineTable = map[string]string{
	"workflows/undo.go: undoByTemporal": "the runs that release 0.1 began replay so",
}

// TestNoDeadlineIsComparedWithAnotherClock looks through everything that may start
// activities.
func TestNoDeadlineIsComparedWithAnotherClock(t *testing.T) {
	t.Parallel()
	found, files := map[string]bool{}, 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() && (name == "bin" || name != "." && strings.HasPrefix(entry.Name(), ".")) {
			return filepath.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}

		places, err := deadlines(path, nil)
		if err != nil {
			return err
		}
		files++
		for _, place := range places {
			found[filepath.ToSlash(name)+": "+place] = true
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, files, 300, "the files of the module were looked through")

	for place := range found {
		require.Contains(t, setsDeadlineTable, place, "sets a ScheduleToCloseTimeout, or leaves out noLimit for a local activity; "+
			"the clock of another machine would decide when it ends")
	}
	for place, why := range setsDeadlineTable {
		require.Contains(t, found, place, "it is not there any more, and needs no place in the table (%s)", why)
	}
}

// TestDeadlinesAreFound checks the search.
func TestDeadlinesAreFound(t *testing.T) {
	t.Parallel()
	for body, found := range map[string]bool{
		`_ = workflow.ActivityOptions{StartToCloseTimeout: 1}`:                                         false,
		`_ = workflow.ActivityOptions{ScheduleToCloseTimeout: 1}`:                                      true,
		`_ = workflow.ActivityOptions{ScheduleToCloseTimeout: noLimit}`:                                false,
		`options.ScheduleToCloseTimeout = 1`:                                                           true,
		`options.ScheduleToCloseTimeout += 1`:                                                          true,
		`_ = options.ScheduleToCloseTimeout`:                                                           false,
		`task.ScheduleToCloseTimeout = nil`:                                                            false,
		`_ = workflow.LocalActivityOptions{StartToCloseTimeout: 1}`:                                    true,
		`_ = &workflow.LocalActivityOptions{}`:                                                         true,
		`_ = workflow.LocalActivityOptions{StartToCloseTimeout: 1, ScheduleToCloseTimeout: noLimit}`:   false,
		`_ = workflow.LocalActivityOptions{StartToCloseTimeout: 1, ScheduleToCloseTimeout: 2*noLimit}`: true,
	} {
		places, err := deadlines("a.go", "package a\n\nfunc f() {\n"+body+"\n}\n")
		require.NoError(t, err, body)
		require.Equal(t, found, len(places) > 0, body)
		for _, place := range places {
			require.Equal(t, "f", place)
		}
	}
}

// deadlines returns the functions of a file that set a limit for all attempts of an
// activity together, or leave it to the SDK for a local one. src is the text of the
// file; nil to read it.
func deadlines(path string, src any) (places []string, err error) {
	const limit = "ScheduleToCloseTimeout"
	file, err := parser.ParseFile(token.NewFileSet(), path, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}

	noLimit := func(value ast.Expr) bool { return fmt.Sprint(value) == "noLimit" }
	for _, declaration := range file.Decls {
		place := "outside of functions"
		if function, ok := declaration.(*ast.FuncDecl); ok {
			place = function.Name.Name
		}

		ast.Inspect(declaration, func(node ast.Node) bool {
			sets := false
			switch n := node.(type) {
			case *ast.AssignStmt:
				takesAway := len(n.Rhs) == 1 && fmt.Sprint(n.Rhs[0]) == "nil"
				for _, to := range n.Lhs {
					field, ok := to.(*ast.SelectorExpr)
					sets = sets || ok && field.Sel.Name == limit && !takesAway
				}
			case *ast.CompositeLit:
				limited := false
				for _, element := range n.Elts {
					if pair, ok := element.(*ast.KeyValueExpr); ok && fmt.Sprint(pair.Key) == limit {
						limited, sets = true, !noLimit(pair.Value)
					}
				}
				kind, ok := n.Type.(*ast.SelectorExpr)
				sets = sets || ok && kind.Sel.Name == "LocalActivityOptions" && !limited
			}
			if sets {
				places = append(places, place)
			}
			return true
		})
	}
	return places, nil
}
