package apiclient

import (
	"bytes"
	"context"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// watchInterval is how often a watched operation is read without a message of
// its stream: progress within a step sends none, and the stream may be broken.
const watchInterval = time.Second

// Watch yields an operation now and whenever it has changed, until it has
// ended; the last one is the ended operation. While the API is away it waits,
// and reports the failures to trouble. Where the records have lost changes of the
// operation, it reports the error of kind ErrGone to trouble and goes on with
// what they have. An error ends the sequence: the context's, or one that a retry
// would not change.
func (c *Client) Watch(ctx context.Context, id uuid.UUID, trouble Trouble) iter.Seq2[Operation, error] {
	return func(yield func(Operation, error) bool) {
		// The goroutine below ends before Watch returns: the deferred calls cancel its
		// context and then wait for it.
		ctx, cancel := context.WithCancel(ctx)
		// One pending notification is enough: a read after it sees every change.
		changed := make(chan struct{}, 1)
		var stream sync.WaitGroup
		var lost atomic.Pointer[cyborg.Error] // what was not reported yet
		stream.Go(func() { c.notifyChanges(ctx, id, changed, &lost) })
		defer stream.Wait()
		defer cancel()

		w := &watch{client: c, id: id, trouble: trouble}
		for {
			operation, fresh, err := w.read(ctx)
			if err := lost.Swap(nil); err != nil {
				trouble.report(err)
			}

			switch {
			case err != nil:
				yield(Operation{}, err)
				return
			case fresh && !yield(operation, nil), operation.State.Ended():
				return
			}

			if err := w.wait(ctx, changed); err != nil {
				yield(Operation{}, err)
				return
			}
		}
	}
}

// notifyChanges sends on changed for each message of the operation's stream, and
// where the records have lost some, of which lost gets the error. Whatever ends
// the stream, Watch continues by the clock, and its next read meets the same
// error, so it can be ignored here.
func (c *Client) notifyChanges(ctx context.Context, id uuid.UUID, changed chan<- struct{}, lost *atomic.Pointer[cyborg.Error]) {
	f := &feed{client: c, path: operationPath(id) + "/events"}
	defer f.stop()
	for {
		switch _, err := f.next(ctx); {
		case cyborg.ErrorKindOf(err) == cyborg.ErrGone && f.last != cyborg.AsError(err).After.String():
			// Events that the records have lost are a change as well.
			f.last = cyborg.AsError(err).After.String()
			lost.Store(cyborg.AsError(err))
		case err != nil:
			return
		}

		select {
		case changed <- struct{}{}:
		default: // a notification is pending already
		}
	}
}

// watch is the state of one Watch.
type watch struct {
	client  *Client
	id      uuid.UUID
	trouble Trouble

	// last is the text of the last answer, to detect changes.
	last []byte
	// failing is set while the API cannot be reached.
	failing bool
}

// read reads the operation, and reports whether it has changed since the last
// read. While the API is away it returns the zero Operation, which has not
// ended, and no error.
func (w *watch) read(ctx context.Context) (operation Operation, fresh bool, err error) {
	operation, text, err := w.client.readOperation(ctx, w.id)
	switch {
	case err == nil:
		if w.failing {
			w.failing = false
			w.trouble.report(nil)
		}
		fresh = !bytes.Equal(w.last, text)
		w.last = text
		return operation, fresh, nil
	case ctx.Err() != nil:
		return operation, false, context.Cause(ctx)
	case !isTransient(err):
		return operation, false, err
	}

	w.failing = true
	w.trouble.report(err)
	return Operation{}, false, nil
}

// wait returns at the next change or after watchInterval, or with the context's
// error.
func (w *watch) wait(ctx context.Context, changed <-chan struct{}) error {
	timer := time.NewTimer(watchInterval)
	defer timer.Stop()

	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	return nil
}
