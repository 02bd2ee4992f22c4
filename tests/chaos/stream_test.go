package chaos_test

import (
	"context"
	"fmt"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// hop is how long a reader stays with one API before it goes on at the other.
const hop = 7 * time.Second

// reader follows the feed from its beginning, through the links, now from one API and now from the other, and keeps the
// place of every event.
type reader struct {
	seen chan cyborg.Cursor
	done chan error
	stop context.CancelFunc
	got  []cyborg.Cursor
}

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

// compare waits until the reader has come to the end of the feed, and finds what it missed, or saw twice.
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
			return fmt.Errorf("the stream brought %d events, and there are %d: %w", len(r.got), len(events), r.difference(events))
		}
	}
	return r.difference(events)
}

func (r *reader) difference(events []event) error {
	for i := range min(len(events), len(r.got)) {
		if r.got[i] != events[i].cursor {
			return fmt.Errorf("event %d of the stream is %s, and in the records %s", i, r.got[i], events[i].cursor)
		}
	}
	return nil
}
