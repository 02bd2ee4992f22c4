package conductor

import (
	"sync"

	"github.com/google/uuid"
)

// Runs tells who waits in this process for an operation what happens to it here: nearly every run is worked on by the
// process that started it, which then need not ask Temporal for what it did itself.
type Runs struct {
	mu      sync.Mutex
	watched map[uuid.UUID]*Watch
}

// Watch is what one who waits for an operation sees of it. Each channel is closed at most once.
type Watch struct {
	// Begun is closed when this process has begun to work on the run.
	Begun <-chan struct{}
	// Ended is closed when this process has recorded how the operation ended.
	Ended <-chan struct{}

	begun, ended func()
}

// Watch watches an operation until forget is called.
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

// tell tells who watches the operation, if anybody does.
func (r *Runs) tell(operation uuid.UUID, what func(*Watch)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if watch, ok := r.watched[operation]; ok {
		what(watch)
	}
}
