package main

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/deploy/standalone/engine"
	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/statedir"
)

// temporalCommand runs only the embedded Temporal. It is for servers and agents
// that run as processes of their own, where there is no Temporal cluster.
func temporalCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "temporal",
		Short: "Run the embedded Temporal and its Web UI alone, over a PostgreSQL that is there",
		Long: "Runs the embedded Temporal and its Web UI alone, over the PostgreSQL that database.url names, in which it makes\n" +
			"databases of its own. One runs at a time: a second one is refused while the first lives. Without\n" +
			"standalone.temporal_tls it makes an authority and its certificate in the state directory, in certificates/.\n" +
			"Which hosts were revoked, it reads in the database of database.url, or of standalone.temporal_records.",
		Args: commandline.Takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := config.Load(config.LoadOptions{Process: config.ProcessTemporal, Flags: cmd.Flags()})
			if err != nil {
				return err
			}
			return runTemporal(cmd.Context(), c, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}

// runTemporal runs the engine until ctx ends, which is no error, or until the
// engine cannot go on.
func runTemporal(ctx context.Context, c *config.Config, out, stderr io.Writer) error {
	urls, err := urlsBeside(c.Database.URL.Reveal())
	if err != nil {
		return err
	}

	// The directory is only for the certificates.
	var state *statedir.Dir
	if c.Standalone.TemporalTLS.Cert == "" {
		if state, err = statedir.Open(c.Standalone.StateDir); err != nil {
			return err
		}
		defer state.Close() //nolint:errcheck // the process ends, which unlocks it as well
	}

	embedded, held, err := engineConfig(c, state)
	if err != nil {
		return err
	}
	guard := web.GuardBrowsers(true)
	embedded.PostgresURL, embedded.UIGuard = urls, func(ui http.Handler) http.Handler { return web.Identified(guard(ui)) }

	log := c.Log.Logger(stderr)
	revoked, err := followRevocations(ctx, c, log)
	if err != nil {
		return err
	}
	defer revoked.stop()
	embedded.Revocations = revoked.list

	engine.LogRefusedConnections(log)
	engine.RedirectLibraries(log)
	e, err := engine.Start(ctx, embedded, log)
	if ctx.Err() != nil && e == nil {
		return nil // the process was told to stop during the start
	}
	if err != nil {
		return err
	}

	go held.keep(ctx, log)
	fmt.Fprintf(out, "Temporal is ready at %s, namespace %s; its UI at %s.\n", e.FrontendAddress(), e.Namespace(), e.UIURL())

	select {
	case <-ctx.Done():
	case <-e.Done():
	}

	// ctx has ended, but the stop needs time.
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	if stopErr := e.Stop(stopping); e.Err() == nil {
		return stopErr
	}
	return e.Err()
}
