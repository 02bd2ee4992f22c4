package engine

import (
	"bytes"
	"errors"
	"log" //nolint:depguard // see RedirectLibraries
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/server/common/log/tag"

	"github.com/cyborg-project/cyborg"
)

// logged returns what a logger writes at debug, without the times.
func logged(do func(*logger)) string {
	var out bytes.Buffer
	do(newLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))))
	return out.String()
}

// all logs one line of each level.
func all(l *logger) {
	l.Debug("d")
	l.Info("i")
	l.Warn("w")
	l.Error("e", tag.Error(errors.New("no")), tag.ShardID(3))
}

// TestLoggerWarnsOnlyWhileTemporalRuns: while Temporal starts or stops, its
// warnings and errors are normal, so they are logged at debug.
func TestLoggerWarnsOnlyWhileTemporalRuns(t *testing.T) {
	t.Parallel()
	quiet := "level=DEBUG msg=i component=temporal\n" +
		"level=DEBUG msg=w component=temporal\n" +
		"level=DEBUG msg=e component=temporal error=no shard_id=3\n"

	require.Equal(t, quiet, logged(all), "while it starts")
	require.Equal(t, quiet, logged(func(l *logger) { l.ready(); l.stopping(); all(l) }), "while it stops")
	require.Equal(t, "level=DEBUG msg=i component=temporal\n"+
		"level=WARN msg=w component=temporal\n"+
		"level=ERROR msg=e component=temporal error=no shard_id=3\n", logged(func(l *logger) { l.ready(); all(l) }))
}

// TestLoggerLogsCancelledRequestsAtDebug: a request that its caller has given
// up is no trouble of Temporal's, whatever Temporal says.
func TestLoggerLogsCancelledRequestsAtDebug(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		serviceerror.NewUnavailable("UpdateTaskQueue operation failed. Failed to commit transaction. Error: context canceled"),
		errors.New("rpc error: code = Internal desc = transport: SendHeader called multiple times"), // of grpc.SetTrailer
	} {
		require.Equal(t, "level=DEBUG msg=e component=temporal error=\""+err.Error()+"\"\n",
			logged(func(l *logger) { l.ready(); l.Error("e", tag.Error(err)) }))
	}
}

// TestLoggerLogsRefusedCallsAtDebug: whoever is refused can ask again without end,
// and the guard has said it.
func TestLoggerLogsRefusedCallsAtDebug(t *testing.T) {
	t.Parallel()
	require.Equal(t, "level=DEBUG msg=\"Authorization error\" component=temporal error=no\n",
		logged(func(l *logger) { l.ready(); l.Error("Authorization error", tag.Error(errors.New("no"))) }))
}

// TestDerivedLoggersKeepTheirTags: a derived logger keeps its tags, and shares
// the phase of the one that it comes from.
func TestDerivedLoggersKeepTheirTags(t *testing.T) {
	t.Parallel()
	require.Equal(t, "level=WARN msg=w component=temporal wf_id=x shard_id=1\nlevel=WARN msg=w component=temporal wf_id=y\n",
		logged(func(l *logger) {
			first := l.With(tag.WorkflowID("x"))
			second := l.With(tag.WorkflowID("y"))
			l.ready() // holds for those derived before, too
			first.Warn("w", tag.ShardID(1))
			second.Warn("w")
		}))

	require.Equal(t, "level=DEBUG msg=i component=temporal a=1 g.b=2\n", logged(func(l *logger) {
		l.ready()
		l.SLog().With("a", 1).WithGroup("g").Info("i", "b", 2)
		l.SLog().Debug("d")
	}))
}

// TestFatalEndsTheGoroutineAndIsReported: Fatal must not end the process, which
// has others to stop in order.
func TestFatalEndsTheGoroutineAndIsReported(t *testing.T) {
	t.Parallel()
	e := &Engine{log: newLogger(slog.New(slog.DiscardHandler)), done: make(chan struct{})}
	e.log.fatal = e.fail
	require.NoError(t, e.Err())

	ended, survived := make(chan struct{}), false
	for range 2 { // the second Fatal changes nothing
		go func() {
			defer func() { ended <- struct{}{} }()
			e.log.With(tag.ShardID(1)).Fatal("cannot listen", tag.Error(errors.New("port taken")))
			survived = true
		}()
		<-ended
	}

	require.False(t, survived)
	<-e.Done()
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(e.Err()))
	require.EqualError(t, e.Err(), "Temporal gave up: cannot listen: port taken")
	require.Panics(t, func() { e.log.Panic("p") })
}

// TestLibrariesPrintToTheLog: what the Web UI prints at each start is for
// developers; whatever else is printed is for operators.
func TestLibrariesPrintToTheLog(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	printed := log.New(libraries{slog.New(slog.NewTextHandler(&out, nil))}, "", 0)
	printed.Printf("Loaded CA cert from base64")
	require.Empty(t, out.String())
	printed.Printf("it is broken")
	require.Contains(t, out.String(), `level=WARN msg="a library says" text="it is broken"`)
}
