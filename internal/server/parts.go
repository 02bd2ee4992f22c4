package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
)

// Part is something that runs until its context ends. When it was told to stop it returns nil, or an error that wraps
// context.Canceled where that interrupted its start.
type Part struct {
	Name string
	Run  func(ctx context.Context) error
}

// RunParts starts the parts in order and runs them until ctx ends or one of them fails; then it stops them one by one,
// last first, each before the one it stands on. The error is the first thing that went wrong, with the part's name; what
// came of it, or went wrong while stopping, is logged.
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
		// A part outlives ctx until it is its turn to stop.
		partCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
		r := running{Part: part, stop: stop, done: make(chan error, 1)}
		all = append(all, r)
		go func() {
			err := part.Run(partCtx)
			if partCtx.Err() == nil { // nobody told it to stop
				if err == nil {
					err = errors.New("ended by itself")
				}
				failed <- fmt.Errorf("%s: %w", r.Name, err)
				err = nil // said
			} else if errors.Is(err, context.Canceled) {
				err = nil // it did as it was told
			}
			r.done <- err
		}()
	}
	var cause error
	select {
	case <-ctx.Done():
	case cause = <-failed:
	}
	also := func(err error) {
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
			also(fmt.Errorf("%s: %w", r.Name, err))
		}
	}
	close(failed)
	for err := range failed {
		also(err)
	}
	return cause
}
