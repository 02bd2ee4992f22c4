package conductor

import (
	"sync"

	"github.com/google/uuid"
)

// Runs notifies those who wait in this process for an operation of what happens
// to it here. Nearly every run is worked on by the process that started it, so
// that process need not ask Temporal for what it did itself.
type Runs struct {
	mu      sync.Mutex
	watched map[uuid.UUID]*Watch // guarded by mu
}

// Watch is the view of an operation that a waiter in this process has. Each
// channel is closed at most once.
type Watch struct {
	// Begun is closed when this process has begun to work on the run.
	Begun <-chan struct{}
	// Ended is closed when this process has recorded how the operation ended.
	Ended <-chan struct{}

	begun, ended func()
}

// Watch watches an operation until forget is called. A second watch of the same
// operation replaces the first, whose channels are then never closed; its
// forget leaves the second alone.
func (r *Runs) Watch(operation uuid.UUID) (watch *Watch, forget func()) {
	begun, ended := make(chan struct{}), make(chan struct{})
	watch = &Watch{
		Begun: begun, Ended: ended,
		begun: sync.OnceFunc(func() { close(begun) }), ended: sync.OnceFunc(func() { close(ended) }),
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watched == nil {
		r.watched = map[uuid.UUID]*Watch{}
	}
	r.watched[operation] = watch

	return watch, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.watched[operation] == watch {
			delete(r.watched, operation)
		}
	}
}

// notify calls the function with the watch of the operation, if there is one.
func (r *Runs) notify(operation uuid.UUID, call func(*Watch)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if watch, ok := r.watched[operation]; ok {
		call(watch)
	}
}
