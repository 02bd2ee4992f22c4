package engine

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"

	"go.temporal.io/server/temporal"

	"github.com/cyborg-project/cyborg"
)

// instance is one start of Temporal's server, with what it holds until it is
// stopped.
type instance struct {
	tuning *tuning
	server temporal.Server // nil if Temporal did not start
	lock   *lock
	ports  *reservation // of Temporal's own services
	log    *logger

	failed   chan struct{} // closed when this Temporal cannot go on
	failOnce sync.Once
	err      error // why; set before failed is closed

	stopOnce sync.Once
	stopErr  error
}

// launch starts Temporal over databases that are prepared and locked, and opens
// the namespace. The instance releases the lock, also if launch fails.
func (e *Engine) launch(ctx context.Context, held *lock) (*instance, error) {
	i := newInstance(held, e.log)

	// If the start fails, stop releases the lock and ends whatever has started. The
	// context may be the reason of the failure, so stop gets one of its own.
	if err := i.start(ctx, e); err != nil {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startStopLimit)
		defer cancel()
		return nil, errors.Join(err, i.stop(stopCtx))
	}

	i.log.ready()
	held.keep(i.fail, e.log) //nolint:contextcheck // it outlives the context, until stop
	return i, nil
}

// newInstance returns an instance that has not started.
func newInstance(held *lock, log *slog.Logger) *instance {
	i := &instance{tuning: newTuning(), lock: held, ports: &reservation{}, log: newLogger(log), failed: make(chan struct{})}
	i.log.fatal = i.fail
	return i
}

// start starts Temporal and opens the namespace. On an error the caller stops
// what has started.
func (i *instance) start(ctx context.Context, e *Engine) error {
	// Preparing the databases may take long. The ports are chosen after that, so
	// that little time passes before Temporal listens on them.
	addrs := e.addrs
	ports, err := addrs.reserveInternal()
	if err != nil {
		return err
	}
	i.ports = ports

	if err := i.startServer(e, addrs); err != nil { //nolint:contextcheck // its connections outlive the context
		return err
	}

	if err := i.openNamespace(ctx, e); err != nil {
		return err
	}

	// Temporal's services looked for new namespaces often, to find this one soon.
	// From now on they need not.
	i.tuning.open.Store(true)
	return nil
}

// startServer starts Temporal in a goroutine of its own. If Temporal gives up,
// it calls Fatal of its logger, which here ends the calling goroutine and not
// the process. The goroutine of the caller must survive that.
func (i *instance) startServer(e *Engine, addrs addresses) error {
	ended := make(chan struct{}) // closed also if the goroutine is ended by Fatal
	var server temporal.Server
	var err error

	go func() {
		defer close(ended)
		var options []temporal.ServerOption
		if options, err = serverOptions(e.cfg, addrs, e.identity, i.lock.timeline, i.tuning, i.log); err == nil {
			server, err = temporal.NewServer(options...)
		}
		if err == nil {
			err = server.Start()
		}
		if err == nil {
			i.server = server
		}
	}()
	<-ended

	switch {
	case err != nil:
		return cyborg.Errorf(cyborg.ErrUnavailable, "Temporal does not start: %w", err)
	case i.server == nil:
		<-i.failed
		return i.err
	}
	return nil
}

// fail is called when Temporal wants to end the process. It closes failed, and
// ends the calling goroutine, which must not go on. Only the first message is
// kept.
func (i *instance) fail(message string) {
	i.failOnce.Do(func() {
		i.err = cyborg.Errorf(cyborg.ErrUnavailable, "Temporal gave up: %s", message)
		close(i.failed)
	})

	runtime.Goexit()
}

// stop ends Temporal, and gives up the lock on the databases. It also stops an
// instance that has started only in part. Later calls return what the first one
// did.
func (i *instance) stop(ctx context.Context) error {
	i.stopOnce.Do(func() { i.stopErr = i.end(ctx) })
	return i.stopErr
}

// end does the work of stop.
func (i *instance) end(ctx context.Context) error {
	i.log.stopping()

	// The channel has a buffer, so that the goroutine can end after stop has
	// returned.
	stopped := make(chan error, 1)
	go func() {
		if i.server == nil {
			stopped <- nil
			return
		}
		stopped <- i.server.Stop()
	}()

	var err error
	select {
	case err = <-stopped:
		if err != nil {
			err = cyborg.Errorf(cyborg.ErrInternal, "Temporal did not stop as it should: %w", err)
		}
	case <-ctx.Done():
		err = cyborg.Errorf(cyborg.ErrTimeout, "Temporal did not stop in time: %w", context.Cause(ctx))
	}

	// The lock is released last, because the server writes to the databases until
	// it ends.
	i.lock.release(ctx)
	i.ports.release()
	return err
}
