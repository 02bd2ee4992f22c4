package engine

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/log/tag"
)

// levelTrace is below debug: Temporal's own debug messages are for those who write Temporal.
const levelTrace = slog.LevelDebug - 4

// phase is what the engine is doing. While it starts and stops, Temporal warns of much that is as it should be (shards
// that nobody owns yet, connections that end).
type phase = int32

const (
	starting phase = iota
	running
	stopping
)

// logger brings Temporal's messages into our log: its information as debug, its warnings and errors as they are once it
// runs.
type logger struct {
	out   *slog.Logger
	tags  []tag.Tag // turned into attributes only for what is logged
	phase *atomic.Int32
	// fatal is called where Temporal wants to end the process, and must not return.
	fatal func(message string)
}

var (
	_ log.Logger      = (*logger)(nil)
	_ log.WithLogger  = (*logger)(nil)
	_ log.SLogWrapper = (*logger)(nil)
)

func newLogger(out *slog.Logger) *logger {
	return &logger{out: out.With(slog.String("component", "temporal")), phase: &atomic.Int32{}}
}

func (l *logger) ready()    { l.phase.Store(running) }
func (l *logger) stopping() { l.phase.Store(stopping) }

// level is where one of Temporal's levels goes.
func (l *logger) level(theirs slog.Level) slog.Level {
	switch {
	case theirs < slog.LevelInfo:
		return levelTrace
	case theirs < slog.LevelWarn:
		return slog.LevelDebug
	case l.phase.Load() != running:
		return slog.LevelDebug
	default:
		return theirs
	}
}

func (l *logger) log(theirs slog.Level, msg string, tags []tag.Tag) {
	level := l.level(theirs)
	if level > slog.LevelDebug && givenUp(tags) {
		level = slog.LevelDebug
	}
	if !l.out.Enabled(context.Background(), level) {
		return
	}
	//nolint:sloglint // the message is Temporal's
	l.out.LogAttrs(context.Background(), level, msg, append(attributes(l.tags), attributes(tags)...)...)
}

// givenUp says that the caller did not wait for the end of its request, as a worker of ours that stops does with its polls. Temporal's
// stores tell it as an error of theirs, of which but the text is left.
func givenUp(tags []tag.Tag) bool {
	return slices.ContainsFunc(tags, func(t tag.Tag) bool {
		return t.Key() == "error" && strings.HasSuffix(fmt.Sprint(t.Value()), context.Canceled.Error())
	})
}

func attributes(tags []tag.Tag) []slog.Attr {
	attrs := make([]slog.Attr, 0, len(tags))
	for _, t := range tags {
		attrs = append(attrs, slog.Any(strings.ReplaceAll(t.Key(), "-", "_"), t.Value()))
	}
	return attrs
}

// Debug is for those who write Temporal.
func (l *logger) Debug(msg string, tags ...tag.Tag) { l.log(slog.LevelDebug, msg, tags) }

// Info is for those who operate Temporal.
func (l *logger) Info(msg string, tags ...tag.Tag) { l.log(slog.LevelInfo, msg, tags) }

// Warn is for what Temporal copes with.
func (l *logger) Warn(msg string, tags ...tag.Tag) { l.log(slog.LevelWarn, msg, tags) }

// Error is for what it may not.
func (l *logger) Error(msg string, tags ...tag.Tag) { l.log(slog.LevelError, msg, tags) }

// DPanic is for what panics in development only.
func (l *logger) DPanic(msg string, tags ...tag.Tag) { l.log(slog.LevelError, msg, tags) }

// Panic is for defects of Temporal.
func (l *logger) Panic(msg string, tags ...tag.Tag) {
	l.log(slog.LevelError, msg, tags)
	panic(msg)
}

// Fatal is for what Temporal cannot go on after. It does not return.
func (l *logger) Fatal(msg string, tags ...tag.Tag) {
	l.log(slog.LevelError, msg, tags)
	for _, t := range tags {
		if t.Key() == "error" {
			msg = fmt.Sprintf("%s: %v", msg, t.Value())
		}
	}
	l.fatal(msg)
}

// With returns a logger that adds tags.
func (l *logger) With(tags ...tag.Tag) log.Logger {
	added := *l
	added.tags = slices.Concat(l.tags, tags)
	return &added
}

// SLog is for the parts of Temporal that log to slog themselves.
func (l *logger) SLog() *slog.Logger {
	return slog.New(&levelHandler{Handler: l.out.Handler(), logger: l})
}

// levelHandler changes the level of records as the logger does.
type levelHandler struct {
	slog.Handler
	logger *logger
}

// Enabled says whether a record of one of Temporal's levels is logged.
func (h *levelHandler) Enabled(ctx context.Context, theirs slog.Level) bool {
	return h.Handler.Enabled(ctx, h.logger.level(theirs))
}

// Handle logs a record at the level that it gets.
func (h *levelHandler) Handle(ctx context.Context, record slog.Record) error {
	record.Level = h.logger.level(record.Level)
	return h.Handler.Handle(ctx, record)
}

// WithAttrs returns a handler that adds attributes.
func (h *levelHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &levelHandler{Handler: h.Handler.WithAttrs(attrs), logger: h.logger}
}

// WithGroup returns a handler that puts attributes into a group.
func (h *levelHandler) WithGroup(name string) slog.Handler {
	return &levelHandler{Handler: h.Handler.WithGroup(name), logger: h.logger}
}
