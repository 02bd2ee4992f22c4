package operate

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
)

const (
	// healthFresh is how long an answer of Temporal counts.
	healthFresh = time.Second
	// pingLimit is how long Temporal may take to answer.
	pingLimit = 5 * time.Second
)

// temporalHealth remembers for a moment whether Temporal answers, so that not
// every request asks again.
type temporalHealth struct {
	ping func(context.Context) error
	log  *slog.Logger

	mu    sync.Mutex
	asked time.Time // when Temporal was asked last
	away  bool      // it did not answer then
}

// check returns an error of kind ErrUnavailable while Temporal does not answer.
//
// The lock is held while Temporal is asked: requests that arrive meanwhile wait
// for the same answer instead of asking too. The question is detached from the
// request, because a caller that disconnects must not make Temporal look
// unavailable to the others.
func (h *temporalHealth) check(ctx context.Context) error {
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
