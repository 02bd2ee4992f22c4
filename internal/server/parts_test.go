package server_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/server"
)

// TestPartsStopLastFirst: a part may need those before it until it has stopped.
func TestPartsStopLastFirst(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var (
		mu      sync.Mutex
		stopped []string
		started sync.WaitGroup
	)

	part := func(name string) server.Part {
		started.Add(1)
		return server.Part{Name: name, Run: func(ctx context.Context) error {
			started.Done()
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			stopped = append(stopped, name)
			return nil
		}}
	}

	parts := []server.Part{part("database"), part("worker"), part("api")}
	go func() { started.Wait(); cancel() }()

	require.NoError(t, server.RunParts(ctx, slog.New(slog.DiscardHandler), parts...))
	require.Equal(t, []string{"api", "worker", "database"}, stopped)
}

func TestOneFailingPartStopsAll(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	stopped := false
	err := server.RunParts(t.Context(), slog.New(slog.DiscardHandler),
		server.Part{Name: "good", Run: func(ctx context.Context) error { <-ctx.Done(); stopped = true; return nil }},
		server.Part{Name: "bad", Run: func(context.Context) error { return boom }})
	require.ErrorIs(t, err, boom)
	require.ErrorContains(t, err, "bad: boom")
	require.True(t, stopped)
}

// TestTheFirstFailureIsTheError: parts that fail only because another one did
// do not hide its error.
func TestTheFirstFailureIsTheError(t *testing.T) {
	t.Parallel()
	err := server.RunParts(t.Context(), slog.New(slog.DiscardHandler),
		server.Part{Name: "collateral", Run: func(ctx context.Context) error { <-ctx.Done(); return errors.New("lost the database") }},
		server.Part{Name: "database", Run: func(context.Context) error { return errors.New("boom") }})
	require.EqualError(t, err, "database: boom")
}

func TestFailureDuringStopIsAnError(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := server.RunParts(ctx, slog.New(slog.DiscardHandler),
		server.Part{Name: "slow", Run: func(ctx context.Context) error { <-ctx.Done(); return errors.New("did not stop") }})
	require.EqualError(t, err, "slow: did not stop")
}

// TestInterruptedStartIsNotAFailure: a part may be told to stop while it still
// starts. That the stop interrupts it is no failure.
func TestInterruptedStartIsNotAFailure(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := server.RunParts(ctx, slog.New(slog.DiscardHandler), server.Part{Name: "starting", Run: func(ctx context.Context) error {
		<-ctx.Done()
		return cyborg.Errorf(cyborg.ErrUnavailable, "the call ended: %w", ctx.Err())
	}})
	require.NoError(t, err)
}

func TestPartEndingByItselfIsAnError(t *testing.T) {
	t.Parallel()
	err := server.RunParts(t.Context(), slog.New(slog.DiscardHandler),
		server.Part{Name: "short", Run: func(context.Context) error { return nil }})
	require.ErrorContains(t, err, "short: ended by itself")
}
