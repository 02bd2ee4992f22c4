package db_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

const dataPage = "../docs/data.md"

// TestDiagrams: the state diagrams of docs/data.md are drawn from the
// transition tables. After a change of those, run
//
//	go test ./db -run TestDiagrams -update
func TestDiagrams(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(dataPage)
	require.NoError(t, err)
	want := string(page)

	for name, diagram := range map[string]string{
		"lifecycle":           draw(cyborg.LifecycleTransitions()),
		"administration":      draw(cyborg.AdministrationTransitions()),
		"presence":            draw(cyborg.PresenceTransitions()),
		"operation":           draw(cyborg.OperationTransitions()),
		"accelerator request": draw(cyborg.ARQTransitions()),
	} {
		begin, end := "<!-- diagram: "+name+" -->\n", "<!-- end of diagram: "+name+" -->"
		before, rest, ok := strings.Cut(want, begin)
		require.True(t, ok, "%s has no diagram of %s", dataPage, name)

		_, after, ok := strings.Cut(rest, end)
		require.True(t, ok, "the diagram of %s has no end", name)
		want = before + begin + diagram + end + after
	}

	if flag.Lookup("update").Value.String() == "true" {
		require.NoError(t, os.WriteFile(dataPage, []byte(want), 0o600))
		return
	}
	require.Equal(t, want, string(page), "the transition tables changed; run go test ./db -run TestDiagrams -update")
}

// draw writes a state diagram that starts in the first state of the table.
func draw[S ~string](machine []cyborg.Transition[S]) string {
	var text strings.Builder
	fmt.Fprintf(&text, "```mermaid\nstateDiagram-v2\n    [*] --> %s\n", machine[0].From)
	for _, t := range machine {
		fmt.Fprintf(&text, "    %s --> %s: %s\n", t.From, t.To, t.On)
	}
	text.WriteString("```\n")
	return text.String()
}

// TestTablesAreDocumented: docs/data.md names every table.
func TestTablesAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(dataPage)
	require.NoError(t, err)
	r := newRecords(t)
	for _, table := range scalar[[]string](t, r, "SELECT array_agg(tablename::text) FROM pg_tables WHERE schemaname = 'public'") {
		require.Contains(t, string(page), "`"+table+"`")
	}
}
