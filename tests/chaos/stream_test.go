package chaos_test

import (
	"context"
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
	seen chan cyborg.Cursor // events that compare has not taken yet
	done chan error         // gets the reader's error, or nil, at its end
	stop context.CancelFunc
	got  []cyborg.Cursor
}

// startReader starts a reader, which runs until stop.
func startReader(c *harness.Cluster) *reader {
	ctx, stop := context.WithCancel(context.Background())
	r := &reader{seen: make(chan cyborg.Cursor, 1024), done: make(chan error, 1), stop: stop}

	go func() {
		defer close(r.seen)
		last := "0-0"

		for n := 0; ctx.Err() == nil; n++ {
			limited, cancel := context.WithTimeout(ctx, hop)
			for event, err := range c.APIs[n%len(c.APIs)].Events(limited, apiclient.EventFilter{}, last, nil) {
				if err != nil {
					if limited.Err() == nil {
						cancel()
						r.done <- err
						return
					}
					break
				}

				last = event.Cursor.String()
				r.seen <- event.Cursor
			}
			cancel()
		}
		r.done <- nil
	}()

	return r
}

// compare waits until the reader has got as many events as the feed has. It
// returns an error where the reader missed an event or got one twice.
func (r *reader) compare(events []event, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()

	for len(r.got) < len(events) {
		select {
		case cursor, ok := <-r.seen:
			if !ok {
				return fmt.Errorf("the stream ended: %w", <-r.done)
			}
			r.got = append(r.got, cursor)
		case <-timer.C:
			return fmt.Errorf("the stream brought %d of %d events: %w", len(r.got), len(events), r.difference(events))
		}
	}

	return r.difference(events)
}

// difference returns an error for the first event that is not the recorded one.
func (r *reader) difference(events []event) error {
	for i := range min(len(events), len(r.got)) {
		if r.got[i] != events[i].cursor {
			return fmt.Errorf("event %d of the stream is %s, but %s in the records", i, r.got[i], events[i].cursor)
		}
	}
	return nil
}
