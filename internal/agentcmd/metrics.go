package agentcmd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// listenForMetrics opens the agent's port for metrics; nil where none is
// configured. Beyond loopback the port speaks TLS with the agent's certificate,
// and serves only clients whose certificate is from the same authorities, and
// whom mayScrape lets in.
func listenForMetrics(ctx context.Context, c config.Agent, trustDomain string, log *slog.Logger) (net.Listener, error) {
	if c.MetricsListen == "" {
		return nil, nil //nolint:nilnil // no port is a configuration, too
	}

	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.MetricsListen)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "agent.metrics_listen: %w", err).
			WithHint("Set it to another address, or to an empty text in the file for no metrics.")
	}

	if config.Loopback(c.MetricsListen) {
		return listener, nil
	}

	secure, err := pki.Server(pki.ServerOptions{
		Files: c.TLS.Files(), ClientAuth: tls.RequireAndVerifyClientCert, TrustDomain: trustDomain, Allow: mayScrape, Log: log,
		MinVersion: tls.VersionTLS12, // Prometheus is not ours
	})
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}

	return tls.NewListener(listener, secure), nil
}

// mayScrape returns an error for those who have no business with the metrics of
// this host: other hosts, and members.
func mayScrape(who identity.Identity) error {
	switch who.Role {
	case identity.Server, identity.Admin, identity.Reader:
		return nil
	case identity.Host, identity.Member:
	}
	return cyborg.Errorf(cyborg.ErrForbidden, "%s may not read the agent's metrics: only a server, an admin and a reader may", who)
}

// serveMetrics serves GET /metrics and GET /healthz until ctx ends. It returns
// an error only where the listener failed by itself.
func serveMetrics(ctx context.Context, listener net.Listener, metrics prometheus.Gatherer, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })

	// The timeouts keep a slow client from holding a connection of the agent for
	// long.
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}

	stop := context.AfterFunc(ctx, func() { server.Close() }) //nolint:errcheck // nobody waits for a scrape
	err := server.Serve(listener)
	if stop() { // ctx has not ended
		return cyborg.Errorf(cyborg.ErrUnavailable, "the metrics listener failed: %w", err)
	}

	return nil
}
