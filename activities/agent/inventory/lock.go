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
	// working is the operation that holds the lock for a step; zero for none. It is
	// guarded by deviceLocks.mu.
	working uuid.UUID
}

// Lock keeps every other change off a device until unlock is called. By
// describes the holder. The error is the cause of the context's end, or of kind
// ErrBusy with the present holder.
func (i *Inventory) Lock(ctx context.Context, device, by string) (unlock func(), err error) {
	return i.locks.lock(ctx, device, by, lockWait)
}

// LockFor is Lock for a step of an operation. Until unlock is called, reports say of
// attachments in doubt on the device that the operation is at work.
func (i *Inventory) LockFor(ctx context.Context, device, by string, operation uuid.UUID) (unlock func(), err error) {
	release, err := i.Lock(ctx, device, by)
	if err != nil {
		return nil, err
	}

	i.locks.setWorking(device, operation)
	return func() {
		i.locks.setWorking(device, uuid.Nil)
		release()
		i.MarkChanged() // what is still in doubt now, is so without an operation at work
	}, nil
}

// setWorking sets the operation that holds the lock of a device. The caller holds it.
func (l *deviceLocks) setWorking(device string, operation uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locks[device].working = operation
}

// working returns the operation that has a step at work on a device; zero for none.
func (l *deviceLocks) working(device string) uuid.UUID {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lock, ok := l.locks[device]; ok {
		return lock.working
	}
	return uuid.Nil
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
