package v1

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
)

const (
	healthFresh = time.Second
	pingLimit   = 2 * time.Second
)

// health remembers for a moment whether Temporal answers, so that not every change asks.
type health struct {
	ping func(context.Context) error
	log  *slog.Logger

	mu    sync.Mutex
	asked time.Time
	away  bool
}

// check returns an error of kind ErrUnavailable while Temporal is away.
func (h *health) check(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.asked) > healthFresh {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingLimit)
		defer cancel()
		err := h.ping(ctx)
		h.asked = time.Now()
		if away := err != nil; away != h.away {
			h.away = away
			if away {
				h.log.WarnContext(ctx, "Temporal does not answer; changes are refused", slog.String("error", err.Error()))
			} else {
				h.log.InfoContext(ctx, "Temporal answers again")
			}
		}
	}
	if !h.away {
		return nil
	}
	return cyborg.Errorf(cyborg.ErrUnavailable, "Temporal does not answer, so nothing can be changed at the moment").
		WithHint("Reads go on. Try again after the time in Retry-After; /readyz?verbose says when it is back.")
}
