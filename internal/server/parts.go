package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
)

// Part is a piece of a process that runs until its context ends.
type Part struct {
	Name string
	// Run returns nil when its context ends, or an error that wraps
	// context.Canceled where that interrupted its start. If it returns before, it
	// has failed.
	Run func(ctx context.Context) error
}

// RunParts starts the parts in order and runs them until ctx ends or one of
// them fails. Then it stops them one by one in the reverse order, because a
// part may need those that were started before it. The error is the first
// failure, with the part's name; later failures, and those while stopping, are
// logged.
func RunParts(ctx context.Context, log *slog.Logger, parts ...Part) error {
	type running struct {
		Part
		stop context.CancelFunc
		done chan error
	}
	var (
		all    []running
		failed = make(chan error, len(parts))
	)

	for _, part := range parts {

		// Detached from ctx: a part goes on until it is its turn to stop.
		partCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
		r := running{Part: part, stop: stop, done: make(chan error, 1)}
		all = append(all, r)

		go func() {
			err := part.Run(partCtx)
			if partCtx.Err() == nil { // it ended before it was stopped
				if err == nil {
					err = errors.New("ended by itself")
				}
				failed <- fmt.Errorf("%s: %w", r.Name, err)
				err = nil // reported through failed
			} else if errors.Is(err, context.Canceled) {
				err = nil // the stop is no failure
			}

			r.done <- err
		}()
	}

	var cause error
	select {
	case <-ctx.Done():
	case cause = <-failed:
	}

	// fail keeps the first error as the cause, and logs the others.
	fail := func(err error) {
		if cause == nil {
			cause = err
			return
		}
		log.ErrorContext(ctx, "a part failed, too", slog.String("error", err.Error()))
	}

	for _, r := range slices.Backward(all) {
		log.DebugContext(ctx, "stopping", slog.String("part", r.Name))
		r.stop()
		if err := <-r.done; err != nil {
			fail(fmt.Errorf("%s: %w", r.Name, err))
		}
	}

	close(failed)
	for err := range failed {
		fail(err)
	}

	return cause
}
