package example_test

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the code into the page anew")

const page = "../../docs/drivers/writing.md"

// place matches the code of one function or type on the page, from <!-- code:
// attach.go Attach --> to <!-- end of code -->.
var place = regexp.MustCompile(`(?s)(<!-- code: (\S+) (\S+) -->\n).*?(<!-- end of code -->)`)

// TestPageShowsTheExampleCode compares the code on the page with the code of
// this package. With -update it writes the code into the page.
func TestPageShowsTheExampleCode(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Regexp(t, place, string(text))

	current := place.ReplaceAllStringFunc(string(text), func(found string) string {
		parts := place.FindStringSubmatch(found)
		return parts[1] + "```go\n" + code(t, parts[2], parts[3]) + "\n```\n" + parts[4]
	})

	if *update {
		require.NoError(t, os.WriteFile(page, []byte(current), 0o644))
		return
	}
	require.Empty(t, cmp.Diff(current, string(text)), "%s is out of date: run make generate", page)
}

// code returns the declaration of that name in a file, with its comment.
func code(t *testing.T, file, name string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)

	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, text, parser.ParseComments)
	require.NoError(t, err)

	for _, declaration := range parsed.Decls {
		var comment *ast.CommentGroup
		var names []string
		switch declaration := declaration.(type) {
		case *ast.FuncDecl:
			comment, names = declaration.Doc, []string{declaration.Name.Name}
		case *ast.GenDecl:
			comment = declaration.Doc
			for _, spec := range declaration.Specs {
				if spec, ok := spec.(*ast.TypeSpec); ok {
					names = append(names, spec.Name.Name)
				}
			}
		}

		if strings.Join(names, " ") != name {
			continue
		}

		begin := declaration.Pos()
		if comment != nil {
			begin = comment.Pos()
		}
		return string(text[set.Position(begin).Offset:set.Position(declaration.End()).Offset])
	}

	require.Failf(t, "not found", "%s declares no %s", file, name)
	return ""
}
