package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/builtin"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/configcmd"
)

// The exit codes; internal/cli has the same for cyborg.
const (
	exitFailed = 1
	exitUsage  = 2 // the command line or the configuration is wrong
)

// execute runs one command line and returns the process's exit code.
func execute(ctx context.Context, args []string, out, errOut io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(errOut, "Error: "+err.Error())
	if e := cyborg.AsError(err); e.Hint != "" {
		fmt.Fprintln(errOut, e.Hint)
	}
	if kind := cyborg.KindOf(err); kind == cyborg.Invalid || kind == cyborg.Internal {
		return exitUsage // cobra's own errors have no kind
	}
	return exitFailed
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "cyborg-agent",
		Short:         "Look after the accelerators of this host",
		Version:       cyborg.Version,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          run,
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
			Args:  cobra.NoArgs,
			RunE:  run,
		},
		&cobra.Command{
			Use:   "discover",
			Short: "Print what the configured backends see, as JSON, and change nothing",
			Args:  cobra.NoArgs,
			RunE:  discover,
		},
		recordCommand(),
		&cobra.Command{
			Use:   "drivers",
			Short: "List the drivers compiled in",
			Args:  cobra.NoArgs,
			RunE:  listDrivers,
		},
		configcmd.For(config.ProcessAgent, checkBackends),
		&cobra.Command{
			Use:   "version",
			Short: "Print the version",
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), cyborg.Version)
				return err
			},
		},
	)
	return root
}

// load reads the agent's configuration.
func load(cmd *cobra.Command) (*config.Config, error) {
	return config.Load(config.LoadOptions{Process: config.ProcessAgent, Flags: cmd.Flags()})
}

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
