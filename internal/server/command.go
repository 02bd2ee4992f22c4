package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/cacmd"
	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/configcmd"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/workers/conductor"
)

// Commands returns the commands of the server side: server, migrate, adopt and
// config.
func Commands() []*cobra.Command {
	serve := &cobra.Command{
		Use:   "server",
		Short: "Run the API, the conductor, or both, over PostgreSQL and Temporal",
		Args:  commandline.Takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(config.LoadOptions{Process: config.ProcessServer, Flags: cmd.Flags()})
			if err != nil {
				return err
			}

			return Serve(cmd.Context(), c, c.Log.Logger(cmd.ErrOrStderr()))
		},
	}

	serve.AddCommand(doctorCommand(), policyCommand())
	config.AddFlags(serve.PersistentFlags(),
		config.Flag{Name: "roles", Key: "server.roles"},
		config.Flag{Name: "database-url", Key: "database.url"},
		config.Flag{Name: "listen", Key: "api.listen"},
		config.Flag{Name: "agent-listen", Key: "agent_endpoint.listen"},
		config.Flag{Name: "temporal-address", Key: "temporal.address"},
		config.Flag{Name: "temporal-namespace", Key: "temporal.namespace"},
		config.Flag{Name: "log-level", Key: "log.level"},
	)

	migrate := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the database's schema to this binary's version",
		Args:  commandline.Takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(config.LoadOptions{Process: config.ProcessMigrate, Flags: cmd.Flags()})
			if err != nil {
				return err
			}

			done, err := db.Migrate(cmd.Context(), c.Database.URL.Reveal())
			if err != nil {
				return err
			}

			text := fmt.Sprintf("The schema went from version %d to %d.\n", done.From, done.To)
			if done.From == done.To {
				text = fmt.Sprintf("The schema is at version %d already.\n", done.To)
			}

			if done.From == done.To && len(done.Kinds) > 0 {
				text += fmt.Sprintf("Kinds of operations that were recorded: %s.\n", strings.Join(done.Kinds, ", "))
			}

			_, err = fmt.Fprint(cmd.OutOrStdout(), text)
			return err
		},
	}

	config.AddFlags(migrate.Flags(), config.Flag{Name: "database-url", Key: "database.url"})

	return []*cobra.Command{serve, migrate, adoptCommand(), configcmd.For(config.ProcessServer, checkPolicy, checkIdentity, checkEnrollment), cacmd.Command()}
}

// Serve runs a server process over an external PostgreSQL and Temporal until
// ctx ends.
func Serve(ctx context.Context, c *config.Config, log *slog.Logger) error {
	temporalclient.WarnOfIdentity(ctx, c.Temporal, ownIdentity(c), log)

	listeners, err := Listen(ctx, c, log)
	if err != nil {
		return err
	}
	defer listeners.Close() //nolint:errcheck // Run has closed those that it took, and the process ends

	options, err := temporalclient.Options(c.Temporal, log, conductor.Identity("server", hostname(), cyborg.Version, "0"))
	if err != nil {
		return err
	}
	temporal, err := temporalclient.Lazy(c.Temporal, log, options.Identity)
	if err != nil {
		return err
	}
	defer temporal.Close()

	log.InfoContext(ctx, "serving", slog.Any("roles", c.Server.Roles), slog.String("api", c.API.Listen),
		slog.String("agent_endpoint", c.AgentEndpoint.Listen), slog.String("temporal", options.HostPort))
	err = Run(ctx, c, Deps{
		Temporal: temporal, Namespace: options.Namespace, DatabaseURL: c.Database.URL.Reveal(),
		Listeners: listeners, Registry: NewRegistry(), Log: log,
	})

	if ctx.Err() != nil && errors.Is(err, context.Canceled) { // stopped while it was starting, which is no failure
		return nil
	}

	return err
}

// NewRegistry returns a registry with the metrics of the Go runtime and the
// process.
func NewRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}
