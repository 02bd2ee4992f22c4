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
	watched map[uuid.UUID]*watch // guarded by mu
}

// watch notifies a waiter. Each function may be called again.
type watch struct{ begun, ended func() }

// Watch watches an operation until forget is called. It closes begun when this
// process has begun to work on the run, and ended when this process has
// recorded how the operation ended. A second watch of the same operation
// replaces the first, whose channels are then never closed; its forget leaves
// the second alone.
func (r *Runs) Watch(operation uuid.UUID) (begun, ended <-chan struct{}, forget func()) {
	beginning, end := make(chan struct{}), make(chan struct{})
	w := &watch{
		begun: sync.OnceFunc(func() { close(beginning) }), ended: sync.OnceFunc(func() { close(end) }),
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watched == nil {
		r.watched = map[uuid.UUID]*watch{}
	}
	r.watched[operation] = w

	return beginning, end, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.watched[operation] == w {
			delete(r.watched, operation)
		}
	}
}

// notify calls the function with the watch of the operation, if there is one.
func (r *Runs) notify(operation uuid.UUID, call func(*watch)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w, ok := r.watched[operation]; ok {
		call(w)
	}
}
