package inventory

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// lockWait is how long a change waits until nobody else holds the device. The
// holder may be an operation on another accelerator of the device, a settling,
// a look at the hardware, or an earlier try of the same step: one that Temporal
// has given up while it still runs.
const lockWait = 30 * time.Second

// deviceLocks serialise the changes of each device. The zero value is ready to
// use.
type deviceLocks struct {
	mu    sync.Mutex
	locks map[string]*deviceLock
}

// deviceLock is the lock of one device. It exists while somebody holds it or
// waits for it.
type deviceLock struct {
	// users counts who holds the lock or waits for it. It is guarded by
	// deviceLocks.mu.
	users int
	// token is full while somebody holds the lock.
	token chan struct{}
	// by and since describe the holder, for the error of a caller whose wait is
	// over.
	by    string
	since time.Time
	// step is what holds the lock for an operation; zero for nothing. It is guarded by
	// deviceLocks.mu.
	step lockingStep
}

// lockingStep is a step of an operation that has locked a device.
type lockingStep struct {
	operation  uuid.UUID
	deployable string
}

// Lock keeps every other change off a device until unlock is called. By
// describes the holder. The error is the cause of the context's end, or of kind
// ErrBusy with the present holder.
func (i *Inventory) Lock(ctx context.Context, device, by string) (unlock func(), err error) {
	return i.locks.lock(ctx, device, by, lockWait)
}

// LockFor is Lock for a step of an operation on a deployable of the device. Until
// unlock is called, reports say of attachments in doubt of the deployable that the
// operation is at work. They do not say so of others on the device, because the step
// may not come back from the hardware, long after its operation has ended.
func (i *Inventory) LockFor(ctx context.Context, device, deployable, by string, operation uuid.UUID) (unlock func(), err error) {
	release, err := i.Lock(ctx, device, by)
	if err != nil {
		return nil, err
	}

	i.locks.setStep(device, lockingStep{operation, deployable})
	return func() {
		i.locks.setStep(device, lockingStep{})
		release()
		i.MarkChanged() // what is still in doubt now, is so without an operation at work
	}, nil
}

// setStep sets the step that holds the lock of a device. The caller holds it.
func (l *deviceLocks) setStep(device string, step lockingStep) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locks[device].step = step
}

// steps returns the steps that hold the locks of devices.
func (l *deviceLocks) steps() map[string]lockingStep {
	l.mu.Lock()
	defer l.mu.Unlock()
	steps := map[string]lockingStep{}
	for device, lock := range l.locks {
		if lock.step.operation != uuid.Nil {
			steps[device] = lock.step
		}
	}
	return steps
}

// lock is Lock with the time to wait.
func (l *deviceLocks) lock(ctx context.Context, device, by string, wait time.Duration) (unlock func(), err error) {
	l.mu.Lock()
	if l.locks == nil {
		l.locks = map[string]*deviceLock{}
	}
	lock, ok := l.locks[device]
	if !ok {
		lock = &deviceLock{token: make(chan struct{}, 1)}
		l.locks[device] = lock
	}
	lock.users++
	l.mu.Unlock()

	timer := time.NewTimer(wait)
	defer timer.Stop()

	select {
	case lock.token <- struct{}{}:
		unlock = func() {
			<-lock.token
			l.release(device, lock)
		}
		// Both may have been ready, and select chooses at random. The caller is gone,
		// so give the lock back.
		if ctx.Err() != nil {
			unlock()
			return nil, context.Cause(ctx)
		}

		l.mu.Lock()
		lock.by, lock.since = by, time.Now()
		l.mu.Unlock()
		return unlock, nil
	case <-ctx.Done():
		l.release(device, lock)
		return nil, context.Cause(ctx)
	case <-timer.C:
		l.mu.Lock()
		err := cyborg.Errorf(cyborg.ErrBusy, "device %s is still busy with %s, since %s", device, lock.by, lock.since.UTC().Format(time.RFC3339))
		l.mu.Unlock()
		l.release(device, lock)
		return nil, err
	}
}

// tryLock locks a device that nobody holds or waits for. A look at the hardware
// uses tryLock, because a look must not hold up an operation.
func (l *deviceLocks) tryLock(device, by string) (unlock func(), free bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, used := l.locks[device]; used {
		return nil, false
	}

	if l.locks == nil {
		l.locks = map[string]*deviceLock{}
	}

	lock := &deviceLock{users: 1, token: make(chan struct{}, 1), by: by, since: time.Now()}
	lock.token <- struct{}{}
	l.locks[device] = lock

	return func() {
		<-lock.token
		l.release(device, lock)
	}, true
}

// lockAll locks several devices. It takes them in the order of their
// identities, so that two callers cannot wait for each other.
func (l *deviceLocks) lockAll(ctx context.Context, devices []string, by string) (unlock func(), err error) {
	var unlocks []func()
	unlock = func() {
		for _, one := range unlocks {
			one()
		}
	}

	for _, device := range slices.Sorted(slices.Values(devices)) {
		one, err := l.lock(ctx, device, by, lockWait)
		if err != nil {
			unlock()
			return nil, err
		}
		unlocks = append(unlocks, one)
	}

	return unlock, nil
}

func (l *deviceLocks) release(device string, lock *deviceLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lock.users--; lock.users == 0 {
		delete(l.locks, device)
	}
}
