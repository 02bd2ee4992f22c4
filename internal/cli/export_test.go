package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// HelpExamples returns the examples in the help of each command.
func HelpExamples() map[string][]string {
	examples := map[string][]string{}

	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.HasExample() {
			examples[strings.TrimPrefix(cmd.CommandPath(), "cyborg ")] = strings.Split(strings.TrimPrefix(cmd.Example, "  "), "\n  ")
		}
		for _, below := range cmd.Commands() {
			walk(below)
		}
	}

	walk((&shell{Streams: System()}).root(nil))
	return examples
}
