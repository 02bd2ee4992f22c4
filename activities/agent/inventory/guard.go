package inventory

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// grace is how long a driver whose time is over may take to notice.
const grace = 2 * time.Second

// Guard calls a driver. A panic becomes an error of kind ErrInternal and is logged with its stack; an error that has no
// kind becomes one of kind ErrHardware, unless it is the end of a context.
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

// leash keeps a call that does not come to an end from taking its caller with it, and from being made again and again.
type leash struct {
	hangs atomic.Pointer[chan struct{}]
}

// leashed calls f and returns soon after the limit, even where f does not. The error is then of kind ErrTimeout; that of a
// context that ended is its cause.
func leashed[T any](ctx context.Context, l *leash, limit time.Duration, what string, f func(context.Context) (T, error)) (T, error) {
	var nothing T
	if ended := l.hangs.Load(); ended != nil {
		select {
		case <-*ended:
		default:
			return nothing, cyborg.Errorf(cyborg.ErrTimeout, "an earlier %s has not come to an end", what).
				WithHint("The driver, or the kernel below it, hangs. The kernel's log may say why; restarting the agent may help.")
		}
	}
	type answer struct {
		value T
		err   error
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
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
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case a = <-answers:
		case <-timer.C:
			l.hangs.Store(&ended)
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

// instance is one driver that was made.
type instance struct {
	backend string
	driver  drivers.Driver
	log     *slog.Logger
	leash   leash // of discovery
	asking  leash // of questions about attachments
}

// inspect asks the driver for one device as it is now. It is false where the driver cannot tell without all others.
func (n *instance) inspect(ctx context.Context, limit time.Duration, identity string) (cyborg.DeviceReport, bool) {
	inspector, ok := n.driver.(drivers.Inspector)
	if !ok {
		return cyborg.DeviceReport{}, false
	}
	devices, err := leashed(ctx, &n.leash, limit, "look at a device", func(ctx context.Context) (devices []cyborg.DeviceReport, err error) {
		err = Guard(n.log, "look at "+identity, func() error {
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
		return cyborg.DeviceReport{}, false // a look at all of them says what is wrong
	}
	return devices[0], true
}

// discover asks the driver what is there and returns it in a fixed order.
func (n *instance) discover(ctx context.Context, limit time.Duration) ([]cyborg.DeviceReport, error) {
	return leashed(ctx, &n.leash, limit, "discovery", func(ctx context.Context) (devices []cyborg.DeviceReport, err error) {
		err = Guard(n.log, "discovery", func() error {
			if devices, err = n.driver.Discover(ctx); err != nil {
				return err
			}
			devices, err = normalise(devices)
			return err
		})
		return devices, err
	})
}
