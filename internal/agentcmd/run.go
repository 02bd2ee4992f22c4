package agentcmd

import (
	"cmp"
	"log/slog"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/workers/agent"
)

// run runs the agent until the command's context ends.
func (p program) run(cmd *cobra.Command, _ []string) error {
	c, err := load(cmd)
	if err != nil {
		return err
	}

	ctx, log := cmd.Context(), c.Log.Logger(cmd.ErrOrStderr())
	settings, err := agentConfig(c, log)
	if err != nil {
		return err
	}
	if err := c.Agent.TLS.Files().CheckOwn("agent.tls.cert", ownIdentity(c)); err != nil {
		return err
	}
	temporalclient.WarnOfIdentity(ctx, c.Temporal, ownIdentity(c), log)

	allowed, err := p.allowed(c.Agent)
	if err != nil {
		return err
	}

	listener, err := listenForMetrics(ctx, c.Agent, c.Identity.TrustDomain, log)
	if err != nil {
		return err
	}
	if listener != nil {
		defer listener.Close()
	}

	// The client is lazy: the agent starts, and keeps its journal, while Temporal
	// is away.
	temporal, err := temporalclient.Lazy(c.Temporal, log, "agent@"+c.Agent.Host)
	if err != nil {
		return err
	}
	defer temporal.Close()

	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	a, err := agent.New(settings, agent.Deps{
		Temporal: temporal, Drivers: allowed, Log: log, Version: cyborg.Version, Metrics: metrics, Clock: clock.System(),
	})
	if err != nil {
		return err
	}

	// If the agent or the listener fails, the group stops the other one, and the
	// process ends with that error.
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.Run(ctx) })
	if listener != nil {
		group.Go(func() error { return serveMetrics(ctx, listener, metrics, log) })
	}

	return group.Wait()
}

// ownIdentity is what the agent's certificates must say, if anything.
func ownIdentity(c *config.Config) identity.Identity {
	return identity.Identity{TrustDomain: c.Identity.TrustDomain, Role: identity.Host, Name: c.Agent.Host}
}

// checkIdentity warns of a certificate for Temporal that is somebody else's. It
// returns no error.
func checkIdentity(cmd *cobra.Command, c *config.Config) error {
	temporalclient.WarnOfIdentity(cmd.Context(), c.Temporal, ownIdentity(c), c.Log.Logger(cmd.ErrOrStderr()))
	return nil
}

// agentConfig turns the operator's configuration into that of the agent.
func agentConfig(all *config.Config, log *slog.Logger) (agent.Config, error) {
	c := all.Agent
	identified, err := pki.NewClient(pki.ClientOptions{Files: c.TLS.Files(), TrustDomain: all.Identity.TrustDomain, Log: log})
	if err != nil {
		return agent.Config{}, err
	}

	settings := agent.Config{
		Host:              c.Host,
		StateDir:          c.StateDir,
		Root:              c.Root,
		ImageDir:          cmp.Or(c.ImageDir, filepath.Join(c.StateDir, "image-files")),
		NovaConfDir:       c.NovaConfDir,
		ImageMaxBytes:     int64(c.ImageMax),
		ImageCacheBytes:   int64(c.ImageCache),
		Endpoints:         c.Endpoints,
		TLS:               identified,
		Renews:            c.TLS.Cert == agent.EnrolledFiles(c.StateDir).Cert,
		TrustDomain:       all.Identity.TrustDomain,
		HeartbeatInterval: c.Heartbeat,
		FullScanInterval:  c.FullScan,
		HealthInterval:    c.Health,
		ScanTimeout:       c.ScanTimeout,
		UsageTimeout:      c.UsageTimeout,
		StopTimeout:       c.StopTimeout,
		Slots:             c.Slots,
		Activities:        append([]cyborg.OperationKind{}, c.Activities...), // an empty list allows none
	}

	for _, backend := range c.Backends {
		settings.Backends = append(settings.Backends, agent.BackendConfig{
			Name: backend.Name, Driver: backend.Driver, Options: backend.Options, Enabled: backend.Enabled,
		})
	}

	return settings, nil
}
