package commandline

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Takes demands exactly the named arguments, none of them empty. Its errors are
// UsageErrors that name the argument.
func Takes(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > len(names):
			return UsageErrorf(cmd, "%q is one argument too many", args[len(names)])
		case len(args) < len(names):
			return UsageErrorf(cmd, "%s is missing", strings.Join(names[len(args):], " "))
		}

		if i := slices.Index(args, ""); i >= 0 {
			return UsageErrorf(cmd, "%s is empty", names[i])
		}

		return nil
	}
}
