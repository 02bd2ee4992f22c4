package inventory

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// grace is how long a driver may take to return after its time is over.
const grace = 2 * time.Second

// Guard calls a driver. A panic becomes an error of kind ErrInternal and is
// logged with its stack, because one driver must not end the agent of all
// others. An error without a kind becomes one of kind ErrHardware, unless it is
// the end of a context.
func Guard(log *slog.Logger, what string, call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("a driver panicked", "call", what, "panic", p, "stack", string(debug.Stack()))
			err = cyborg.Errorf(cyborg.ErrInternal, "%s: the driver panicked: %v", what, p).
				WithHint("This is a defect of the driver; the agent's log has the stack.")
		}
	}()

	err = call()
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}

	if _, ok := errors.AsType[*cyborg.Error](err); !ok {
		err = cyborg.Errorf(cyborg.ErrHardware, "%s: %w", what, err)
	}

	return err
}

// watchdog limits calls that may hang, such as a read from a broken device in
// the kernel. The caller gets an error instead of hanging too; and while the
// hanging call has not returned, no second one is made, so that hanging
// goroutines do not pile up.
type watchdog struct {
	// hangs is closed when the call that hung has returned; nil where none has
	// hung.
	hangs atomic.Pointer[chan struct{}]
}

// withWatchdog calls f and returns soon after the limit, even if f does not.
// The error is then of kind ErrTimeout. Where ctx has ended, the error is its
// cause.
func withWatchdog[T any](ctx context.Context, w *watchdog, limit time.Duration, what string, f func(context.Context) (T, error)) (T, error) {
	var nothing T
	if ended := w.hangs.Load(); ended != nil {
		select {
		case <-*ended:
		default:
			return nothing, hangs(what)
		}
	}

	type answer struct {
		value T
		err   error
	}

	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	// The channel has room for the answer, so that the goroutine of a hanging call
	// can end when nobody waits any more.
	answers, ended := make(chan answer, 1), make(chan struct{})
	go func() {
		defer close(ended)
		value, err := f(limited)
		answers <- answer{value, err}
	}()

	var a answer
	select {
	case a = <-answers:
	case <-limited.Done():
		// Most drivers notice the end of their context, and their own error says more
		// than a timeout.
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case a = <-answers:
		case <-timer.C:
			w.hangs.Store(&ended)
			a.err = limited.Err()
		}
	}

	switch {
	case a.err == nil:
		return a.value, nil
	case ctx.Err() != nil:
		return nothing, context.Cause(ctx)
	case limited.Err() != nil:
		return nothing, cyborg.Errorf(cyborg.ErrTimeout, "%s did not end within %s", what, limit)
	default:
		return nothing, a.err
	}
}

// hangs is the error of a call that is not made because an earlier one has not returned.
func hangs(what string) error {
	return cyborg.Errorf(cyborg.ErrTimeout, "an earlier %s has not come to an end", what).
		WithHint("The driver, or the kernel below it, hangs. The kernel's log may say why; restarting the agent may help.")
}

// instance is a driver that was made for a backend.
type instance struct {
	backend string
	driver  drivers.Driver
	log     *slog.Logger
	// discovery limits looks at the hardware, and asking limits questions about
	// attachments. They are apart, so that one can hang without the other.
	discovery watchdog
	asking    watchdog
	measuring measuring
	// health is what the driver's HealthChecker has said last.
	health *health

	// mu guards the close of replaced, which says that the backend has another driver
	// now, or none. No question begins after that.
	mu        sync.Mutex
	replaced  chan struct{}
	questions sync.WaitGroup
}

// errReplaced is the error of a question to a driver that was replaced.
var errReplaced = cyborg.Errorf(cyborg.ErrBusy, "its driver was replaced meanwhile")

// isReplaced reports whether the backend has another driver now, or none.
func (n *instance) isReplaced() bool {
	select {
	case <-n.replaced:
		return true
	default:
		return false
	}
}

// ask asks the driver a question. No lock of a device keeps Configure from replacing the
// driver meanwhile, so the context of the question ends then. The error is errReplaced
// where the answer no longer matters.
func (n *instance) ask(ctx context.Context, what string, question func(context.Context) error) error {
	n.mu.Lock()
	if n.isReplaced() {
		n.mu.Unlock()
		return errReplaced
	}
	n.questions.Add(1) // under mu, so that close waits for it
	n.mu.Unlock()
	defer n.questions.Done()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-n.replaced:
			cancel()
		case <-ctx.Done():
		}
	}()

	err := Guard(n.log, what, func() error { return question(ctx) })
	if err != nil && n.isReplaced() {
		return errReplaced
	}
	return err
}

// close ends the questions to a driver that was replaced, and closes it once they have
// ended. It does not wait for one that hangs, nor for a close that does.
func (n *instance) close() {
	n.mu.Lock()
	close(n.replaced)
	n.mu.Unlock()

	closed := make(chan struct{})
	go func() {
		defer close(closed)
		n.questions.Wait()
		if closer, ok := n.driver.(io.Closer); ok {
			if err := Guard(n.log, "closing", closer.Close); err != nil {
				n.log.Warn("the driver before did not close", "error", err)
			}
		}
	}()

	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
		n.log.Warn("the driver before still hangs, and is closed once its calls have returned")
	}
}

// inspect asks the driver for one device as it is now. It returns false where
// the driver can only look at all devices, or where looking at this one failed.
func (n *instance) inspect(ctx context.Context, limit time.Duration, identity string) (cyborg.DeviceReport, bool) {
	inspector, ok := n.driver.(drivers.Inspector)
	if !ok {
		return cyborg.DeviceReport{}, false
	}
	if n.health.checkFirst(ctx, n, limit) != nil {
		return cyborg.DeviceReport{}, false
	}

	devices, err := withWatchdog(ctx, &n.discovery, limit, "look at a device", func(ctx context.Context) (devices []cyborg.DeviceReport, err error) {
		err = n.ask(ctx, "look at "+identity, func(ctx context.Context) error {
			device, err := inspector.Inspect(ctx, identity)
			if err != nil {
				return err
			}
			devices, err = normalise([]cyborg.DeviceReport{device})
			return err
		})
		return devices, err
	})
	if err != nil || devices[0].Identity != identity {
		return cyborg.DeviceReport{}, false // a look at all devices finds out what is wrong
	}

	n.health.addTo(devices)
	return devices[0], true
}

// discover asks the driver for all its devices, and returns them in a fixed
// order.
func (n *instance) discover(ctx context.Context, limit time.Duration) ([]cyborg.DeviceReport, error) {
	if err := n.health.checkFirst(ctx, n, limit); err != nil {
		return nil, err
	}

	devices, err := withWatchdog(ctx, &n.discovery, limit, "discovery", func(ctx context.Context) (devices []cyborg.DeviceReport, err error) {
		err = n.ask(ctx, "discovery", func(ctx context.Context) error {
			devices, err = n.driver.Discover(ctx)
			if err != nil {
				return err
			}
			devices, err = normalise(devices)
			return err
		})
		return devices, err
	})
	n.health.addTo(devices)
	return devices, err
}
