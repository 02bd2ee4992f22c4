package apiclient

import (
	"bytes"
	"context"
	"iter"
	"sync"
	"time"

	"github.com/google/uuid"
)

// watchInterval is how often a watched operation is read where its stream says nothing: progress within a step is no
// event, and a stream can be away.
const watchInterval = time.Second

// Watch yields an operation now and whenever it has changed, until it has ended; the last one yielded is the end. It
// waits out an API that is away, and tells trouble meanwhile. An error ends it: the context's, or one that trying again
// would not mend.
func (c *Client) Watch(ctx context.Context, id uuid.UUID, trouble Trouble) iter.Seq2[Operation, error] {
	return func(yield func(Operation, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		changed := make(chan struct{}, 1)
		var stream sync.WaitGroup
		stream.Go(func() { c.notice(ctx, id, changed) })
		defer stream.Wait()
		defer cancel()

		w := &watch{client: c, id: id, trouble: trouble}
		for {
			operation, fresh, err := w.read(ctx)
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

// notice says on changed when the operation's stream sent something. Whatever ends the stream, reading goes on by the
// clock, so an error here is not lost: the read meets it too.
func (c *Client) notice(ctx context.Context, id uuid.UUID, changed chan<- struct{}) {
	f := &feed{client: c, path: operationPath(id) + "/events"}
	defer f.stop()
	for {
		if _, err := f.next(ctx); err != nil {
			return
		}
		select {
		case changed <- struct{}{}:
		default: // one that waits to be read is enough
		}
	}
}

type watch struct {
	client  *Client
	id      uuid.UUID
	trouble Trouble
	last    []byte // the operation as it last came
	failing bool
}

// read reads the operation and says whether it has changed. While the API is away it returns what it last saw.
func (w *watch) read(ctx context.Context) (operation Operation, fresh bool, err error) {
	operation, text, err := w.client.readOperation(ctx, w.id)
	switch {
	case err == nil:
		if w.failing {
			w.failing = false
			w.trouble.tell(nil)
		}
		fresh = !bytes.Equal(w.last, text)
		w.last = text
		return operation, fresh, nil
	case ctx.Err() != nil:
		return operation, false, context.Cause(ctx)
	case !passes(err):
		return operation, false, err
	}
	w.failing = true
	w.trouble.tell(err)
	return Operation{}, false, nil
}

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
