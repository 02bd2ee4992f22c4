package inventory

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
)

// lockPatience is how long a change waits for another on the same device. Operations claim what they work on, so only
// one that was given up and still runs can be in the way.
const lockPatience = 30 * time.Second

// deviceLocks let one change of a device happen at a time. The zero value is ready.
type deviceLocks struct {
	mu    sync.Mutex
	locks map[string]*deviceLock
}

type deviceLock struct {
	users int // that hold it or wait for it
	token chan struct{}
	by    string
	since time.Time
}

// Lock keeps every other change off a device until unlock is called. The error is the context's cause, or of kind ErrBusy
// with what is in the way.
func (i *Inventory) Lock(ctx context.Context, device, by string) (unlock func(), err error) {
	return i.locks.lock(ctx, device, by, lockPatience)
}

func (l *deviceLocks) lock(ctx context.Context, device, by string, patience time.Duration) (unlock func(), err error) {
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

	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case lock.token <- struct{}{}:
		unlock = func() {
			<-lock.token
			l.leave(device, lock)
		}
		if ctx.Err() != nil { // both were there; nobody wants it any more
			unlock()
			return nil, context.Cause(ctx)
		}
		l.mu.Lock()
		lock.by, lock.since = by, time.Now()
		l.mu.Unlock()
		return unlock, nil
	case <-ctx.Done():
		l.leave(device, lock)
		return nil, context.Cause(ctx)
	case <-timer.C:
		l.mu.Lock()
		err := cyborg.Errorf(cyborg.ErrBusy, "device %s is still busy with %s, since %s", device, lock.by, lock.since.UTC().Format(time.RFC3339))
		l.mu.Unlock()
		l.leave(device, lock)
		return nil, err
	}
}

// tryLock locks a device that nobody holds or waits for.
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
		l.leave(device, lock)
	}, true
}

// lockAll locks several devices, in an order that everyone keeps.
func (l *deviceLocks) lockAll(ctx context.Context, devices []string, by string) (unlock func(), err error) {
	var unlocks []func()
	unlock = func() {
		for _, one := range unlocks {
			one()
		}
	}
	for _, device := range slices.Sorted(slices.Values(devices)) {
		one, err := l.lock(ctx, device, by, lockPatience)
		if err != nil {
			unlock()
			return nil, err
		}
		unlocks = append(unlocks, one)
	}
	return unlock, nil
}

func (l *deviceLocks) leave(device string, lock *deviceLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lock.users--; lock.users == 0 {
		delete(l.locks, device)
	}
}
