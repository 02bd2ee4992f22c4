package commandline_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/commandline"
)

// TestManualListsNounsBeforeVerbs: after a verb, a noun would look like one of
// the verb's flags.
func TestManualListsNounsBeforeVerbs(t *testing.T) {
	t.Parallel()
	does := func(use string) *cobra.Command {
		return &cobra.Command{Use: use, Short: "Do it", Run: func(*cobra.Command, []string) {}}
	}

	act := does("act")
	act.Example = commandline.Examples("program act", "program act --twice    # \\o/")
	root := commandline.Noun("program", "A program", act, commandline.Noun("thing", "Things", does("list")))

	dir := t.TempDir()
	root.AddCommand(commandline.Manual(root, 1, nil))
	root.SetArgs([]string{"man", dir})
	require.NoError(t, root.Execute())

	page, err := os.ReadFile(filepath.Join(dir, "program.1"))
	require.NoError(t, err)

	_, commands, found := strings.Cut(string(page), ".SH \"COMMANDS\"")
	require.True(t, found)

	noun, verb := strings.Index(commands, "see the page program\\-thing"), strings.Index(commands, ".SS \"program act")
	require.Positive(t, noun)
	require.Greater(t, verb, noun)

	require.Contains(t, commands, "Examples:\n.PP\n.nf\n  program act\n  program act \\-\\-twice    # \\eo/\n.fi\n")
	require.FileExists(t, filepath.Join(dir, "program-thing.1"))
}
