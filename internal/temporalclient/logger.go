package temporalclient

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	temporallog "go.temporal.io/sdk/log"

	"github.com/cyborg-project/cyborg/workflows"
)

// NewLogger returns the logger for Temporal's SDK, which writes to log. An
// agent logs the failure of a step itself, with its kind and at the level of
// that kind. The SDK's own line about the same failure is always an error, so
// it is lowered to debug.
func NewLogger(log *slog.Logger) temporallog.Logger {
	return temporallog.NewStructuredLogger(slog.New(&handler{Handler: log.Handler()}))
}

// handler lowers the level of that line where an agent's worker writes it.
type handler struct {
	slog.Handler

	// agent is true for the logger of an agent's worker.
	agent bool
}

// The SDK's message, and the attribute with a worker's task queue; the SDK has
// no constants for them.
const (
	activityFailed = "Activity error."
	queueAttribute = "TaskQueue"
)

// Handle writes a record, the SDK's line about a failed step at the level
// debug.
func (h *handler) Handle(ctx context.Context, record slog.Record) error {
	if h.agent && record.Message == activityFailed {
		record.Level = slog.LevelDebug
		if !h.Enabled(ctx, record.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, record)
}

// WithAttrs returns a handler that adds attributes. The SDK's worker adds its
// task queue this way, which identifies an agent's worker.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	agent := slices.ContainsFunc(attrs, func(a slog.Attr) bool {
		return a.Key == queueAttribute && strings.HasPrefix(a.Value.String(), workflows.AgentQueue(""))
	})
	return &handler{Handler: h.Handler.WithAttrs(attrs), agent: h.agent || agent}
}

// WithGroup returns a handler that puts attributes into a group.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{Handler: h.Handler.WithGroup(name), agent: h.agent}
}
