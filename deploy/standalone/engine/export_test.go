package engine

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"time"

	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/server/temporal"
)

// StartWithoutAuth starts Temporal as Start does, but without TLS and without a
// guard. Only a benchmark does that, to tell what they cost. It returns the
// address of the frontend, and what stops Temporal.
func StartWithoutAuth(ctx context.Context, cfg Config) (address string, stop func() error, err error) {
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
		held.release(ctx)
		return "", nil, err
	}

	var server temporal.Server
	stop = func() error {
		var err error
		if server != nil {
			err = server.Stop()
		}
		ports.release()
		held.release(context.WithoutCancel(ctx))
		return err
	}

	tuned := newTuning()
	if server, err = temporal.NewServer(optionsWithoutAuth(cfg, addrs, held.timeline, tuned, newLogger(log))...); err != nil {
		return "", nil, errors.Join(err, stop())
	}
	if err := server.Start(); err != nil {
		return "", nil, errors.Join(err, stop())
	}

	address = addrs.frontend.dial()
	conn, err := client.DialContext(ctx, client.Options{
		HostPort: address, Namespace: cfg.Namespace, Logger: sdklog.NewStructuredLogger(log),
		ConnectionOptions: client.ConnectionOptions{GetSystemInfoTimeout: time.Minute},
	})
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

// ConnectOn opens one of Temporal's connections, which may lead only to this
// timeline.
func ConnectOn(ctx context.Context, databaseURL, on string) error {
	db, err := connect(databaseURL, 1, timeline(on))
	if err != nil {
		return err
	}
	defer db.Close()
	return db.PingContext(ctx)
}

// InsideAddresses returns where Temporal's services listen that only it calls itself.
func (e *Engine) InsideAddresses() []string {
	var addresses []string
	for _, name := range e.ports.names {
		port := strings.TrimPrefix(name.Addr().String(), "@cyborg-temporal-port-")
		addresses = append(addresses, net.JoinHostPort("127.0.0.1", port))
	}
	return addresses
}
