package engine

import (
	"context"
	"fmt"
	stdlog "log" //nolint:depguard // it is what libraries print by
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/log/tag"
)

// levelTrace is below debug. Temporal's own debug messages get it: they are for
// developers of Temporal.
const levelTrace = slog.LevelDebug - 4

// phase is the phase of the engine's life. While the engine starts and stops,
// Temporal warns about many things that are normal then, such as shards without
// an owner and connections that end.
type phase = int32

const (
	starting phase = iota
	running
	stopping
)

// logger writes Temporal's messages to the log of the process. Temporal's
// information becomes debug. Its warnings and errors keep their level while the
// engine runs, and become debug in other phases.
type logger struct {
	out   *slog.Logger
	tags  []tag.Tag     // converted to attributes only for messages that are logged
	phase *atomic.Int32 // shared with the loggers that With returns
	// fatal is called when Temporal wants to end the process. It must not return.
	fatal func(message string)
}

var (
	_ log.Logger      = (*logger)(nil)
	_ log.WithLogger  = (*logger)(nil)
	_ log.SLogWrapper = (*logger)(nil)
)

// newLogger returns a logger in the phase starting. The caller sets fatal.
func newLogger(out *slog.Logger) *logger {
	return &logger{out: out.With(slog.String("component", "temporal")), phase: &atomic.Int32{}}
}

func (l *logger) ready()    { l.phase.Store(running) }
func (l *logger) stopping() { l.phase.Store(stopping) }

// level converts one of Temporal's levels to the level in the log.
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

// log logs a message of Temporal.
func (l *logger) log(theirs slog.Level, msg string, tags []tag.Tag) {
	level := l.level(theirs)
	if level > slog.LevelDebug && (msg == callRefused || givenUp(tags)) {
		level = slog.LevelDebug
	}

	if !l.out.Enabled(context.Background(), level) {
		return
	}

	//nolint:sloglint // the message is Temporal's
	l.out.LogAttrs(context.Background(), level, msg, append(attributes(l.tags), attributes(tags)...)...)
}

// callRefused is what Temporal logs for each stream that is refused
// (authorization.Interceptor, InterceptStream). The guard has logged the refusal
// with its reason already, once a minute: clients can be refused as often as
// they like.
const callRefused = "Authorization error"

// streamEnded is what gRPC says to whoever adds a trailer to a call that has
// ended (transport.ErrIllegalHeaderWrite, which is in an internal package).
const streamEnded = "transport: SendHeader called multiple times"

// givenUp reports whether the message is about a request whose caller has
// cancelled it, as a worker does with its polls when it stops. That is no
// failure. Temporal's stores wrap the cancellation in an error of their own
// that keeps only the text, so the text is what can be compared. Where the call
// has ended before Temporal notices, gRPC takes no trailer of it any more.
func givenUp(tags []tag.Tag) bool {
	return slices.ContainsFunc(tags, func(t tag.Tag) bool {
		if t.Key() != "error" {
			return false
		}

		text := fmt.Sprint(t.Value())
		return strings.HasSuffix(text, context.Canceled.Error()) || strings.HasSuffix(text, streamEnded)
	})
}

// RedirectLibraries has the log take what libraries print on their own by Go's
// package log, such as Temporal's Web UI.
func RedirectLibraries(out *slog.Logger) {
	stdlog.SetFlags(0)
	stdlog.SetOutput(libraries{out})
}

// libraries writes each line that is printed to the log.
type libraries struct{ out *slog.Logger }

// Write logs a line. It is a warning, as nobody prints so what goes well, but for
// the Web UI.
func (l libraries) Write(line []byte) (int, error) {
	level, text := slog.LevelWarn, strings.TrimSpace(string(line))
	// The Web UI prints this at each start about each of its certificates.
	if strings.HasPrefix(text, "Loaded ") && strings.HasSuffix(text, " from base64") {
		level = slog.LevelDebug
	}
	l.out.LogAttrs(context.Background(), level, "a library says", slog.String("text", text))
	return len(line), nil
}

// attributes converts tags to attributes, with underscores in their keys as in
// the rest of the log.
func attributes(tags []tag.Tag) []slog.Attr {
	attrs := make([]slog.Attr, 0, len(tags))
	for _, t := range tags {
		attrs = append(attrs, slog.Any(strings.ReplaceAll(t.Key(), "-", "_"), t.Value()))
	}
	return attrs
}

// Debug logs a message for developers of Temporal.
func (l *logger) Debug(msg string, tags ...tag.Tag) { l.log(slog.LevelDebug, msg, tags) }

// Info logs a message for operators of Temporal.
func (l *logger) Info(msg string, tags ...tag.Tag) { l.log(slog.LevelInfo, msg, tags) }

// Warn logs a problem that Temporal copes with.
func (l *logger) Warn(msg string, tags ...tag.Tag) { l.log(slog.LevelWarn, msg, tags) }

// Error logs a problem that Temporal may not cope with.
func (l *logger) Error(msg string, tags ...tag.Tag) { l.log(slog.LevelError, msg, tags) }

// DPanic logs a defect of Temporal that causes a panic only in development.
func (l *logger) DPanic(msg string, tags ...tag.Tag) { l.log(slog.LevelError, msg, tags) }

// Panic logs a defect of Temporal and panics.
func (l *logger) Panic(msg string, tags ...tag.Tag) {
	l.log(slog.LevelError, msg, tags)
	panic(msg)
}

// Fatal logs a problem after which Temporal cannot continue, and passes it to
// fatal. It does not return.
func (l *logger) Fatal(msg string, tags ...tag.Tag) {
	l.log(slog.LevelError, msg, tags)

	for _, t := range tags {
		if t.Key() == "error" {
			msg = fmt.Sprintf("%s: %v", msg, t.Value())
		}
	}

	l.fatal(msg)
}

// With returns a logger that adds the tags to each message.
func (l *logger) With(tags ...tag.Tag) log.Logger {
	added := *l
	added.tags = slices.Concat(l.tags, tags)
	return &added
}

// SLog returns a logger for the parts of Temporal that use log/slog.
func (l *logger) SLog() *slog.Logger {
	return slog.New(&levelHandler{Handler: l.out.Handler(), logger: l})
}

// levelHandler changes the level of records in the way that the logger does.
type levelHandler struct {
	slog.Handler
	logger *logger
}

// Enabled reports whether a record at one of Temporal's levels is logged.
func (h *levelHandler) Enabled(ctx context.Context, theirs slog.Level) bool {
	return h.Handler.Enabled(ctx, h.logger.level(theirs))
}

// Handle logs a record at its new level.
func (h *levelHandler) Handle(ctx context.Context, record slog.Record) error {
	record.Level = h.logger.level(record.Level)
	return h.Handler.Handle(ctx, record)
}

// WithAttrs returns a handler that adds the attributes to each record.
func (h *levelHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &levelHandler{Handler: h.Handler.WithAttrs(attrs), logger: h.logger}
}

// WithGroup returns a handler that puts the attributes of each record into a
// group.
func (h *levelHandler) WithGroup(name string) slog.Handler {
	return &levelHandler{Handler: h.Handler.WithGroup(name), logger: h.logger}
}
