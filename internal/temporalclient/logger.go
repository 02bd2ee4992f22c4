package temporalclient

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	temporallog "go.temporal.io/sdk/log"

	"github.com/cyborg-project/cyborg/workflows"
)

// NewLogger brings what Temporal's SDK says into our log. That a step has failed an agent says itself, with its kind and at
// its level: the SDK's own line on it, always an error, is for debugging.
func NewLogger(log *slog.Logger) temporallog.Logger {
	return temporallog.NewStructuredLogger(slog.New(&handler{Handler: log.Handler()}))
}

// handler lowers that line.
type handler struct {
	slog.Handler

	agent bool // the worker that speaks is an agent's
}

// What the SDK calls its line, and the attribute of a worker that has its queue; there are no constants for them.
const (
	activityFailed = "Activity error."
	queueAttribute = "TaskQueue"
)

// Handle logs a record, that line as debug.
func (h *handler) Handle(ctx context.Context, record slog.Record) error {
	if h.agent && record.Message == activityFailed {
		record.Level = slog.LevelDebug
		if !h.Enabled(ctx, record.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, record)
}

// WithAttrs returns a handler that adds attributes.
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
