package main

import (
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/configcmd"
)

// command returns the command with its subcommands. Without a subcommand it
// runs everything.
func command() *cobra.Command {
	root := &cobra.Command{
		Use:     "cyborg-standalone",
		Short:   "The accelerator manager in one process",
		Long:    "The accelerator manager in one process: API, conductor, agents, Temporal and PostgreSQL.\nEvery option can also be set in a file (--config) or the environment: see docs/configuration.md.",
		Version: cyborg.Version,
		Args:    commandline.NoVerb,
	}

	config.AddFlags(root.PersistentFlags(),
		config.Flag{Name: "state-dir", Key: "standalone.state_dir"},
		config.Flag{Name: "hosts", Key: "standalone.hosts", Usage: "a host to run an agent for, [NAME=]KIND: fake:8xfpga,2xgpu pretends, sysfs:/ is this machine, sysfs:FILE.tar.gz a recorded one; may be given several times"},
		config.Flag{Name: "database-url", Key: "database.url", Usage: "an existing PostgreSQL to use instead of a private one"},
		config.Flag{Name: "listen", Key: "api.listen"},
		config.Flag{Name: "agent-listen", Key: "agent_endpoint.listen", Usage: "address and port of an endpoint for agents outside this process; there is none unless you name it", NoDefault: true},
		config.Flag{Name: "temporal-listen", Key: "standalone.temporal_listen"},
		config.Flag{Name: "temporal-ui-listen", Key: "standalone.temporal_ui_listen"},
		config.Flag{Name: "log-level", Key: "log.level"},
	)

	root.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := config.Load(config.LoadOptions{Process: config.ProcessStandalone, Flags: cmd.Flags()})
		if err != nil {
			return err
		}
		return run(cmd.Context(), c, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}

	root.AddCommand(temporalCommand(), configcmd.For(config.ProcessStandalone, checkEnrollment), commandline.Completion(root),
		commandline.Manual(root, 8, nil), commandline.Version())

	return root
}
