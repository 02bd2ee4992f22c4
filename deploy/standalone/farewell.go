package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

const (
	// farewellLimit bounds the query for operations in flight: it must not delay
	// the stop.
	farewellLimit = 5 * time.Second
	// farewellMost is how many operations are listed at most.
	farewellMost = 10
)

// farewell tells the person that everything stops, and which operations the
// stop may have to wait for.
func (s *standalone) farewell(ctx context.Context, databaseURL string) {
	s.say("Stopping; what is in flight goes on at the next start.")

	// ctx has ended: that is why the process stops.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellLimit)
	defer cancel()

	inFlight, err := s.inFlight(ctx, databaseURL)
	if err != nil {
		s.log.WarnContext(ctx, "cannot tell what is in flight", slog.String("error", err.Error()))
	} else if len(inFlight) == 0 {
		return
	}

	s.say("A step that runs has %s to end; a second Ctrl-C does not wait for it.", min(s.config.Agent.StopTimeout, stopLimit))
	for i := range inFlight {
		o := &inFlight[i]
		s.say("  %s of %s on %s, admitted %s ago", o.Kind, o.Actor.Name, o.Host, time.Since(o.CreatedAt).Round(time.Second))
	}
}

// inFlight returns the newest running operations, farewellMost at most.
func (s *standalone) inFlight(ctx context.Context, databaseURL string) ([]cyborg.Operation, error) {
	store, err := db.Open(ctx, databaseURL, db.Options{MaxConns: 1, SilentAfter: s.config.Conductor.SilentAfter}, s.log)
	if err != nil {
		return nil, err
	}
	defer store.Close()

	return store.Operations(ctx, db.OperationFilter{States: []cyborg.OperationState{cyborg.OperationRunning}}, db.Page{Limit: farewellMost})
}
