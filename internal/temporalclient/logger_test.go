package temporalclient

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	temporallog "go.temporal.io/sdk/log"
)

// A step's failure is told once, by the agent; that of a conductor's activity
// only the SDK tells.
func TestStepFailuresAreNotLoggedTwice(t *testing.T) {
	t.Parallel()
	said := func(level slog.Level, queue, message string) string {
		var out bytes.Buffer
		log := NewLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level})))
		temporallog.With(temporallog.With(log, "Namespace", "cyborg", "TaskQueue", queue), "WorkerID", "1").Error(message, "Error", "link is down")
		return out.String()
	}
	require.Empty(t, said(slog.LevelInfo, "agent.h1", "Activity error."))
	require.Contains(t, said(slog.LevelDebug, "agent.h1", "Activity error."), "level=DEBUG")
	require.Contains(t, said(slog.LevelInfo, "conductor", "Activity error."), "level=ERROR")
	require.Contains(t, said(slog.LevelInfo, "agent.h1", "Activity panic."), "level=ERROR")
}
