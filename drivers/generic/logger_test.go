package generic_test

import (
	"log/slog"
	"testing"
)

// logger writes to the test's log.
func logger(t testing.TB) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
