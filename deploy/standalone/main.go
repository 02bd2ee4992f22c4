// Command cyborg-standalone is the whole of Cyborg in one process: API, conductor and agents, with an embedded Temporal
// server and a private PostgreSQL that it starts itself. It is the default for a newcomer, a laptop, a single rack and
// the tests; the same parts run apart with cyborg server and cyborg-agent.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/configcmd"
)

func main() {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // by nohup
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := command()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		tell(stderr, err)
		return 1
	}
	return 0
}

// tell prints what is wrong in one line, or one for each mistake in the configuration, and, where the error knows, what to
// do in another.
func tell(w io.Writer, err error) {
	message := strings.Join(strings.Fields(err.Error()), " ")
	if _, ok := errors.AsType[config.Problems](err); ok {
		message = err.Error()
	}
	fmt.Fprintf(w, "cyborg-standalone: %s\n", message)
	if hint := cyborg.AsError(err).Hint; hint != "" {
		fmt.Fprintln(w, hint)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "cyborg-standalone",
		Short:         "The accelerator manager in one process",
		Long:          "The accelerator manager in one process: API, conductor, agents, Temporal and PostgreSQL.\nEvery option can also be set in a file (--config) or the environment: see docs/configuration.md.",
		Version:       cyborg.Version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	config.AddFlags(root.PersistentFlags(),
		config.Flag{Name: "state-dir", Key: "standalone.state_dir"},
		config.Flag{Name: "hosts", Key: "standalone.hosts", Usage: "a host to run an agent for, [NAME=]KIND: fake:8xfpga,2xgpu pretends, sysfs:/ is this machine, sysfs:FILE.tar.gz a recorded one; may be given several times"},
		config.Flag{Name: "database-url", Key: "database.url", Usage: "an existing PostgreSQL to use instead of a private one"},
		config.Flag{Name: "listen", Key: "api.listen"},
		config.Flag{Name: "agent-listen", Key: "agent_endpoint.listen"},
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
	root.AddCommand(configcmd.For(config.ProcessStandalone))
	return root
}
