package cli

import (
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg/internal/commandline"
)

// deployableCommand offers some verbs of `accelerator` under OpenStack's noun
// for accelerators, for its users.
func (s *shell) deployableCommand() *cobra.Command {
	cmd := commandline.Noun("deployable", "Accelerators, under OpenStack's name for them",
		s.acceleratorList(), s.acceleratorShow(), s.acceleratorProgram())
	cmd.Aliases = []string{"deployables"}
	return cmd
}
