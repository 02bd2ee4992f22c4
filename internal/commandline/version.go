package commandline

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
)

// Version is the command that prints the release.
func Version() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the release of this program",
		Args:  Takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), cyborg.Version)
			return err
		},
	}
}
