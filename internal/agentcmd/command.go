// Package agentcmd is the command line of cyborg-agent, for the programs that
// differ in the drivers that they have: that of production, and that of the
// tests.
package agentcmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/configcmd"
	"github.com/cyborg-project/cyborg/workers/agent"
)

// program is an agent's program with its commands.
type program struct {
	compiled *drivers.Registry // the drivers that are compiled in
}

// Command is cyborg-agent with its subcommands, for an agent with these drivers
// compiled in. Without a subcommand it runs the agent.
func Command(compiled *drivers.Registry) *cobra.Command {
	p := program{compiled: compiled}

	root := &cobra.Command{
		Use:     "cyborg-agent",
		Short:   "Look after the accelerators of this host",
		Version: cyborg.Version,
		Args:    commandline.NoVerb,
		RunE:    p.run,
	}

	config.AddFlags(root.PersistentFlags(),
		config.Flag{Name: "host", Key: "agent.host"},
		config.Flag{Name: "state-dir", Key: "agent.state_dir"},
		config.Flag{Name: "root", Key: "agent.root"},
		config.Flag{Name: "endpoints", Key: "agent.endpoints"},
		config.Flag{Name: "backends", Key: "agent.backends", Usage: "the drivers to run, as YAML: [{driver: generic, options: {…}}]"},
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
			RunE:  p.run,
		},
		&cobra.Command{
			Use:   "discover",
			Short: "Print what the configured backends see, as JSON, and change nothing",
			Args:  commandline.Takes(),
			RunE:  p.discover,
		},
		recordCommand(),
		enrollCommand(),
		forgetCommand(),
		p.doctorCommand(),
		&cobra.Command{
			Use:   "drivers",
			Short: "List the drivers compiled in",
			Args:  commandline.Takes(),
			RunE:  p.listDrivers,
		},
		configcmd.For(config.ProcessAgent, p.checkBackends, checkIdentity),
		commandline.Completion(root),
		commandline.Manual(root, 8, nil),
		commandline.Version(),
	)

	return root
}

// allowed returns the drivers that the configuration allows on this host.
func (p program) allowed(c config.Agent) (*drivers.Registry, error) {
	allowed, err := p.compiled.Only(c.Drivers...)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "agent.drivers: %w", err)
	}
	return allowed, nil
}

// load reads the agent's configuration. Where it names no certificates, those of
// the host's enrollment are used, if there are any.
func load(cmd *cobra.Command) (*config.Config, error) {
	c, err := config.Load(config.LoadOptions{Process: config.ProcessAgent, Flags: cmd.Flags()})
	if err != nil {
		return nil, err
	}

	enrolled, err := agent.Enrolled(c.Agent.StateDir)
	if err != nil || !enrolled {
		return c, err
	}

	files := agent.EnrolledFiles(c.Agent.StateDir)
	if c.Agent.TLS == (config.ClientTLS{}) {
		c.Agent.TLS = config.ClientTLS{Cert: files.Cert, Key: files.Key, CA: files.CA}
	}
	if c.Temporal.TLS == (config.TemporalTLS{}) && c.Temporal.APIKey == "" && !c.Given("temporal.tls.enabled") {
		c.Temporal.TLS = config.TemporalTLS{Cert: files.Cert, Key: files.Key, CA: files.CA}
	}
	return c, nil
}

// listDrivers prints the names of the compiled-in drivers, one on a line.
func (p program) listDrivers(cmd *cobra.Command, _ []string) error {
	for _, name := range p.compiled.Names() {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), name); err != nil {
			return err
		}
	}

	return nil
}
