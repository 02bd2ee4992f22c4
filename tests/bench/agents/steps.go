package main

import (
	"context"
	"fmt"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"

	"github.com/cyborg-project/cyborg/workflows"
)

// reachWithin and reachAgain are how an agent tries to reach Temporal.
const (
	reachWithin = 5 * time.Second
	reachAgain  = 15 * time.Second
)

// dial makes the client of the hosts of one share; it connects when it is used.
func (c *cloud) dial(share int) (client.Client, error) {
	return client.NewLazyClient(client.Options{
		HostPort: c.options.temporal, Namespace: "cyborg", Identity: fmt.Sprintf("agent@share-%d", share), Logger: quiet{},
		ConnectionOptions: client.ConnectionOptions{GrpcCompression: &client.GrpcCompressionNone{}},
	})
}

// serve waits for steps as an agent's worker does (workers/agent), from when
// Temporal answers. Nobody has work for these hosts.
func (h *host) serve(ctx context.Context) error {
	connected, err := h.cloud.temporal[h.number/h.cloud.options.shared]()
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
		if !wait(ctx, spread(retry)) {
			return err
		}
	}
}

func reach(ctx context.Context, connected client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, reachWithin)
	defer cancel()
	_, err := connected.WorkflowService().GetSystemInfo(ctx, &workflowservice.GetSystemInfoRequest{})
	return err
}

func (h *host) worker(connected client.Client) worker.Worker {
	w := worker.New(connected, workflows.AgentQueue(h.name), worker.Options{
		DisableWorkflowWorker: true, DisableEagerActivities: true, MaxConcurrentActivityTaskPollers: 1,
		MaxConcurrentActivityExecutionSize: 8, Identity: "agent@" + h.name,
	})
	w.RegisterActivityWithOptions(func(context.Context) error { return nil }, activity.RegisterOptions{Name: "nothing"})
	return w
}

// quiet is a log that keeps nothing.
type quiet struct{}

var _ log.Logger = quiet{}

func (quiet) Debug(string, ...any) {}
func (quiet) Info(string, ...any)  {}
func (quiet) Warn(string, ...any)  {}
func (quiet) Error(string, ...any) {}
