// Package configcmd is the command line's view of the configuration: "config check" and "config dump", the same in
// every binary.
package configcmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/config"
)

// For returns the command "config" of the given process's binary. It takes --config, and whatever other flags of the
// configuration its parents have. Further are checks of "config check" that only the process can make; they are given a
// configuration that is good otherwise.
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
