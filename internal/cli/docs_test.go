package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// TestDocumentationIsComplete: docs/cli.md names every verb and every flag.
func TestDocumentationIsComplete(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../../docs/cli.md")
	require.NoError(t, err)
	docs := string(content)

	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		require.NotEmpty(t, cmd.Short, cmd.CommandPath())
		if !cmd.HasSubCommands() {
			require.Contains(t, docs, "`"+strings.TrimPrefix(cmd.CommandPath(), "cyborg ")+"`")
			for line := range strings.SplitSeq(cmd.LocalFlags().FlagUsages(), "\n") {
				if _, after, ok := strings.Cut(line, "--"); ok {
					require.Contains(t, docs, "--"+strings.Fields(after)[0], cmd.CommandPath())
				}
			}
		}

		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}

	walk((&shell{Streams: System()}).root(nil))
}
