package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// hop is how long a reader stays with one API before it changes to the other.
const hop = 7 * time.Second

// reader follows the feed from its beginning, through the links, from one API
// and then from the other. It keeps the cursor of every event.
type reader struct {
	seen chan seen  // what compare has not taken yet
	done chan error // gets the reader's error, or nil, at its end
	stop context.CancelFunc
	got  []seen
}

// seen is an event that the reader got; or lost, that the events after it that
// the reader got were lost.
type seen struct {
	cursor cyborg.Cursor
	at     time.Time
	lost   bool
}

// startReader starts a reader, which runs until stop.
func startReader(c *harness.Cluster) *reader {
	ctx, stop := context.WithCancel(context.Background())
	r := &reader{seen: make(chan seen, 1024), done: make(chan error, 1), stop: stop}

	go func() {
		defer close(r.seen)
		var last cyborg.Cursor

		for n := 0; ctx.Err() == nil; n++ {
			limited, cancel := context.WithTimeout(ctx, hop)
			for event, err := range c.APIs[n%len(c.APIs)].Events(limited, apiclient.EventFilter{}, last.String(), nil) {
				if cyborg.ErrorKindOf(err) == cyborg.ErrGone {
					last = cyborg.AsError(err).After
					r.seen <- seen{cursor: last, at: time.Now(), lost: true}
					break
				}
				if err != nil {
					if limited.Err() == nil {
						cancel()
						r.done <- err
						return
					}
					break
				}

				last = event.Cursor
				r.seen <- seen{cursor: last, at: time.Now()}
			}
			cancel()
		}
		r.done <- nil
	}()

	return r
}

// compare waits until the reader has got the events of the feed, and was told of
// those that were lost. It returns an error where the reader missed an event or
// got one twice.
func (r *reader) compare(events []event, losses []loss, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()

	for {
		r.got = withoutUntold(r.got, events, losses)
		err := difference(r.got, events)
		if err == nil && len(r.got) >= len(events) || err != nil && len(losses) == 0 {
			return err
		}

		select {
		case one, ok := <-r.seen:
			if !ok {
				return errors.Join(fmt.Errorf("the stream ended: %w", <-r.done), err)
			}
			if !one.lost {
				r.got = append(r.got, one)
				continue
			}
			if r.got, err = takeBack(r.got, one.cursor, losses); err != nil {
				return err
			}
		case <-timer.C:
			return fmt.Errorf("the stream brought %d of %d events: %w", len(r.got), len(events), err)
		}
	}
}

// difference returns an error for the first event that the reader got and that is
// not the recorded one. The reader may have events that are newer than these.
func difference(got []seen, events []event) error {
	for i := range min(len(events), len(got)) {
		if got[i].cursor != events[i].cursor {
			return fmt.Errorf("event %d of the stream is %s, but %s in the records; around it are %v in the stream and %v in the records",
				i, got[i].cursor, events[i].cursor, around(got, i), around(events, i))
		}
	}
	return nil
}

// around returns some of the elements before and after one.
func around[T any](all []T, i int) []T { return all[max(0, i-3):min(len(all), i+5)] }
