package temporalclient

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	temporallog "go.temporal.io/sdk/log"
)

// TestStepFailuresAreNotLoggedTwice: the agent logs the failure of a step
// itself, so that of the SDK goes to debug. The failure of a conductor's
// activity is logged by the SDK alone.
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
