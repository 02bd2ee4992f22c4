// Package configcmd is the command "config" of every binary, with its verbs
// "check" and "dump".
package configcmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/config"
)

// For returns the command "config" for the binary of a process. It takes
// --config, and the flags of the configuration that its parents have. The
// further checks of "config check" are those that only the process can make;
// they get a configuration that has passed all others.
func For(process config.Process, further ...func(*cobra.Command, *config.Config) error) *cobra.Command {
	load := func(cmd *cobra.Command) (*config.Config, error) {
		return config.Load(config.LoadOptions{Process: process, Flags: cmd.Flags()})
	}

	command := commandline.Noun("config", "Check the configuration, or show what is in force",
		&cobra.Command{
			Use:   "check",
			Short: "Say everything that is wrong with the configuration",
			Args:  commandline.Takes(),
			RunE: func(cmd *cobra.Command, _ []string) error {
				loaded, err := load(cmd)
				if err != nil {
					return err
				}

				if err := loaded.CheckCertificates(process); err != nil {
					return err
				}
				for _, check := range further {
					if err := check(cmd, loaded); err != nil {
						return err
					}
				}

				_, err = fmt.Fprintln(cmd.OutOrStdout(), "The configuration is good.")
				return err
			},
		},
		&cobra.Command{
			Use:   "dump",
			Short: "Print the configuration in force, with secrets masked and the source of what is no default",
			Args:  commandline.Takes(),
			RunE: func(cmd *cobra.Command, _ []string) error {
				loaded, err := load(cmd)
				if err != nil {
					return err
				}

				return loaded.Dump(cmd.OutOrStdout(), process)
			},
		},
	)

	config.AddFlags(command.PersistentFlags())
	return command
}
