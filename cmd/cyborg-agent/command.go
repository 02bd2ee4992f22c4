package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/builtin"
	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/configcmd"
)

// rootCommand is cyborg-agent with its subcommands. Without one it runs the
// agent.
func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:     "cyborg-agent",
		Short:   "Look after the accelerators of this host",
		Version: cyborg.Version,
		Args:    commandline.NoVerb,
		RunE:    run,
	}

	config.AddFlags(root.PersistentFlags(),
		config.Flag{Name: "host", Key: "agent.host"},
		config.Flag{Name: "state-dir", Key: "agent.state_dir"},
		config.Flag{Name: "root", Key: "agent.root"},
		config.Flag{Name: "endpoints", Key: "agent.endpoints"},
		config.Flag{Name: "backends", Key: "agent.backends", Usage: "the drivers to run, as YAML: [{driver: fake, options: {…}}]"},
		config.Flag{Name: "image-dir", Key: "agent.image_dir"},
		config.Flag{Name: "metrics-listen", Key: "agent.metrics_listen"},
		config.Flag{Name: "temporal-address", Key: "temporal.address"},
		config.Flag{Name: "temporal-namespace", Key: "temporal.namespace"},
		config.Flag{Name: "log-level", Key: "log.level"},
		config.Flag{Name: "log-format", Key: "log.format"},
	)

	root.AddCommand(
		&cobra.Command{
			Use:   "run",
			Short: "Run the agent (what happens without a command, too)",
			Args:  commandline.Takes(),
			RunE:  run,
		},
		&cobra.Command{
			Use:   "discover",
			Short: "Print what the configured backends see, as JSON, and change nothing",
			Args:  commandline.Takes(),
			RunE:  discover,
		},
		recordCommand(),
		doctorCommand(),
		&cobra.Command{
			Use:   "drivers",
			Short: "List the drivers compiled in",
			Args:  commandline.Takes(),
			RunE:  listDrivers,
		},
		configcmd.For(config.ProcessAgent, checkBackends),
		commandline.Completion(root),
		commandline.Manual(root, 8, nil),
		commandline.Version(),
	)

	return root
}

// load reads the agent's configuration.
func load(cmd *cobra.Command) (*config.Config, error) {
	return config.Load(config.LoadOptions{Process: config.ProcessAgent, Flags: cmd.Flags()})
}

// listDrivers prints the names of the compiled-in drivers, one on a line.
func listDrivers(cmd *cobra.Command, _ []string) error {
	registry, err := builtin.Registry()
	if err != nil {
		return err
	}

	for _, name := range registry.Names() {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), name); err != nil {
			return err
		}
	}

	return nil
}
