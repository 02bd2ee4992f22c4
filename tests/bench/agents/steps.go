package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"

	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/workflows"
)

// These are the times of an agent that tries to reach Temporal, as in
// workers/agent.
const (
	// reachWithin limits one try.
	reachWithin = 5 * time.Second
	// reachAgain is the longest pause between two tries.
	reachAgain = 15 * time.Second
)

// dial returns the host's own connection to Temporal, with a certificate of the
// host, which Temporal asks for. It connects at its first use.
func (h *host) dial() (client.Client, error) {
	certificate, key, err := h.cloud.authority.IssuePair(pki.Leaf{
		Identity: identity.Identity{TrustDomain: identity.DefaultTrustDomain, Role: identity.Host, Name: h.name},
	})
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}

	trusted := x509.NewCertPool()
	trusted.AddCert(h.cloud.authority.Certificate())
	return client.NewLazyClient(client.Options{
		HostPort: h.cloud.options.temporal, Namespace: "cyborg", Identity: "agent@" + h.name, Logger: quiet{},
		ConnectionOptions: client.ConnectionOptions{
			TLS:             &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: trusted, Certificates: []tls.Certificate{pair}},
			GrpcCompression: &client.GrpcCompressionNone{},
		},
		WorkerHeartbeatInterval: temporalclient.NoWorkerHeartbeats,
	})
}

// serve tries to reach Temporal until that succeeds, and then starts a worker
// that polls for steps like that of an agent (workers/agent). It returns when
// the worker polls. No steps ever come, because nobody gives these hosts work.
func (h *host) serve(ctx context.Context) error {
	connected, err := h.dial()
	if err != nil {
		return err
	}

	for retry := firstRetry; ; retry = min(2*retry, reachAgain) {
		if err = reach(ctx, connected); err == nil {
			w := h.worker(connected)
			if err = w.Start(); err == nil {
				h.cloud.later(w.Stop)
				return nil
			}
		}

		h.cloud.counts.unreached.Add(1)
		if clock.Sleep(ctx, spread(retry)) != nil {
			return err
		}
	}
}

// reach returns an error unless Temporal answers in time.
func reach(ctx context.Context, connected client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()

	_, err := connected.WorkflowService().GetSystemInfo(ctx, &workflowservice.GetSystemInfoRequest{})
	return err
}

// worker returns a worker that polls the task queue of the host like that of an
// agent. Its only activity is never called.
func (h *host) worker(connected client.Client) worker.Worker {
	w := worker.New(connected, workflows.AgentQueue(h.name), worker.Options{
		DisableWorkflowWorker: true, DisableEagerActivities: true, MaxConcurrentActivityTaskPollers: 1,
		MaxConcurrentActivityExecutionSize: 8, Identity: "agent@" + h.name,
	})

	w.RegisterActivityWithOptions(func(context.Context) error { return nil }, activity.RegisterOptions{Name: "nothing"})
	return w
}

// quiet is a logger that discards everything.
type quiet struct{}

var _ log.Logger = quiet{}

func (quiet) Debug(string, ...any) {}
func (quiet) Info(string, ...any)  {}
func (quiet) Warn(string, ...any)  {}
func (quiet) Error(string, ...any) {}
