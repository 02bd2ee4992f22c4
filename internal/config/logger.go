package config

import (
	"io"
	"log/slog"
)

// Logger returns a logger that writes to w in the configured format. A process
// makes one and passes it to all of its parts.
func (l Log) Logger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: l.Level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
