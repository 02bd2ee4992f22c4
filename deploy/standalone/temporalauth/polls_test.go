package temporalauth

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/server/common/authorization"
	"google.golang.org/grpc"
)

// polling makes a call as the caller, by way of what bounds polls.
func polling(t *testing.T, g *Guard, who caller, method string, handler grpc.UnaryHandler) error {
	t.Helper()
	ctx := context.WithValue(t.Context(), authorization.MappedClaims, &authorization.Claims{Extensions: who})
	_, err := g.limitPolls(ctx, nil, &grpc.UnaryServerInfo{FullMethod: workflowService + method}, handler)
	return err
}

// errDefect ends a poll by a panic.
var errDefect = errors.New("a defect of Temporal")

// openPoll begins a poll that waits in Temporal. It ends with what is sent into
// the channel; the function then waits until that is over.
func openPoll(t *testing.T, g *Guard, who caller) (end func(error)) {
	t.Helper()
	inside, how, over := make(chan struct{}), make(chan error), make(chan struct{})
	go func() {
		defer close(over)
		defer func() { _ = recover() }()
		_ = polling(t, g, who, "PollActivityTaskQueue", func(context.Context, any) (any, error) {
			close(inside)
			err := <-how
			if errors.Is(err, errDefect) {
				panic(err)
			}
			return nil, err
		})
	}()

	<-inside
	return func(err error) {
		how <- err
		<-over
	}
}

// TestPollsOfOneHostAreBounded: a host that polls without end gets a sentence, and
// takes nothing from others. A poll counts until it ends, whatever way that is.
func TestPollsOfOneHostAreBounded(t *testing.T) {
	t.Parallel()
	g := newGuard(t)
	h1, h2, s := as(host, "h1"), as(host, "h2"), as(server, "s")
	at := func(who caller, method string) error {
		return polling(t, g, who, method, func(context.Context, any) (any, error) { return nil, nil })
	}

	var ends, servers []func(error)
	for range mostPolls {
		ends, servers = append(ends, openPoll(t, g, h1)), append(servers, openPoll(t, g, s))
	}

	var exhausted *serviceerror.ResourceExhausted
	require.ErrorAs(t, at(h1, "PollActivityTaskQueue"), &exhausted)
	require.ErrorContains(t, exhausted, "spiffe://lab/host/h1 has 100 polls open already")
	require.NoError(t, at(h2, "PollActivityTaskQueue"), "another host")
	require.NoError(t, at(s, "PollActivityTaskQueue"), "servers need many")
	require.NoError(t, at(h1, "RespondActivityTaskCompleted"), "an answer is no poll")

	// Each way in which a poll ends makes room for one more, and no more.
	for n, how := range []error{nil, context.Canceled, errDefect} {
		ends[n](how)
		ends[n] = openPoll(t, g, h1)
		require.Error(t, at(h1, "PollActivityTaskQueue"), "%v", how)
	}

	for n := range mostPolls {
		ends[n](nil)
		servers[n](nil)
	}
	require.NoError(t, at(h1, "PollActivityTaskQueue"))
	require.Empty(t, g.polls.of, "what has ended costs no memory")
}
