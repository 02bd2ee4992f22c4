package cli

import (
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg/internal/commandline"
)

// deployableCommand has the verbs of OpenStack's clients under OpenStack's noun for what else is called accelerator here.
func (s *shell) deployableCommand() *cobra.Command {
	cmd := commandline.Noun("deployable", "Accelerators, under OpenStack's name for them",
		s.acceleratorList(), s.acceleratorShow(), s.acceleratorProgram())
	cmd.Aliases = []string{"deployables"}
	return cmd
}
