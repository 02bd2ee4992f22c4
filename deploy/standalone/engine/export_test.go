package engine

import (
	"context"
	"errors"
	"log/slog"

	"go.temporal.io/sdk/client"
	"go.temporal.io/server/temporal"
)

// StartOpen starts Temporal as Start does, but without TLS and without a guard.
// Only a benchmark does that, to tell what they cost. It returns the address of
// the frontend, and what stops Temporal.
func StartOpen(ctx context.Context, cfg Config) (address string, stop func() error, err error) {
	cfg = cfg.withDefaults()
	addrs, err := settleAddresses(cfg)
	if err != nil {
		return "", nil, err
	}

	log := slog.New(slog.DiscardHandler)
	held, err := prepareDatabases(ctx, cfg.PostgresURL, log)
	if err != nil {
		return "", nil, err
	}

	ports, err := addrs.reserveInternal()
	if err != nil {
		return "", nil, err
	}

	tuned, quiet := newTuning(), newLogger(log)
	server, err := temporal.NewServer(openOptions(cfg, addrs, tuned, quiet)...)
	if err != nil {
		return "", nil, err
	}
	if err := server.Start(); err != nil {
		return "", nil, err
	}

	stop = func() error {
		err := server.Stop()
		held.release(ctx)
		ports.release()
		return err
	}

	address = addrs.frontend.dial()
	conn, err := client.DialContext(ctx, client.Options{HostPort: address, Namespace: cfg.Namespace})
	if err != nil {
		return "", nil, errors.Join(err, stop())
	}
	defer conn.Close()

	n := namespace{name: cfg.Namespace, workflows: conn.WorkflowService(), operator: conn.OperatorService()}
	for _, step := range []func(context.Context, Config) error{n.ensure, n.ensureAttributes, n.awaitUsable} {
		if err := step(ctx, cfg); err != nil {
			return "", nil, errors.Join(err, stop())
		}
	}
	tuned.open.Store(true)

	return address, stop, nil
}
