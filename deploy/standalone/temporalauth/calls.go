package temporalauth

import (
	"context"

	"go.temporal.io/server/common/authorization"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
)

// mostCalls is how many calls of one identity may be open at once, the polls of a
// host among them. gRPC reads the whole request of a call, of up to 4 MiB, before
// any interceptor learns of it, and keeps what has arrived for as long as the client
// likes; a connection has no bound of its own that differs among clients. An agent
// has a poll, and an answer or a heartbeat for each of its steps, 64 by default.
// Servers may do everything, so they have only the bound of each connection.
const mostCalls = 256

// admit refuses a call that the caller may not make, whatever it asks for, and a
// further one of an identity that has many open. gRPC asks it when a call begins,
// before it reads the request; it must answer at once.
func (g *Guard) admit(ctx context.Context, call *tap.Info) (context.Context, error) {
	who := g.callerOf(&authorization.AuthInfo{TLSConnection: authorization.TLSInfoFromContext(ctx)})
	if who.self {
		return ctx, nil
	}

	if _, err := g.ruleFor(who, call.FullMethodName); err != nil {
		return nil, g.refuseCall(ctx, who, call, codes.PermissionDenied, err)
	}
	if unbounded(who) {
		return ctx, nil
	}

	counted := who.countedAs()
	if !g.calls.begin(counted, mostCalls) {
		return nil, g.refuseCall(ctx, who, call, codes.ResourceExhausted,
			cyborg.Errorf(cyborg.ErrBusy, "%s has %d calls open already: find out who else uses its certificate, or lower agent.slots", who, mostCalls))
	}

	context.AfterFunc(ctx, func() { g.calls.end(counted) }) // gRPC cancels it when the call is over
	return ctx, nil
}

// refuseCall logs a refusal, counts it for the connection of whoever has a bound, and
// returns what the client is told. A server's is shared by all that the server does,
// and its doctors ask for something that is always refused.
func (g *Guard) refuseCall(ctx context.Context, who caller, call *tap.Info, code codes.Code, err error) error {
	g.tell(ctx, who, call.FullMethodName, err)
	if client, ok := peer.FromContext(ctx); ok && !unbounded(who) {
		if c := connectionAt(client.Addr); c != nil {
			c.refused()
		}
	}
	return status.Error(code, sentence(err))
}

// connectionEnds has the contexts of all calls of a connection end with it. gRPC
// leaves the context of a call that admit refuses to its deadline, which a client can
// set to some thousand years.
type connectionEnds struct{}

var _ stats.Handler = connectionEnds{}

// TagConn returns the context of the calls of a new connection.
func (connectionEnds) TagConn(ctx context.Context, info *stats.ConnTagInfo) context.Context {
	if c := connectionAt(info.RemoteAddr); c != nil {
		return c.begin(ctx)
	}
	return ctx
}

// TagRPC leaves a call's context as it is.
func (connectionEnds) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC does nothing.
func (connectionEnds) HandleRPC(context.Context, stats.RPCStats) {}

// HandleConn does nothing.
func (connectionEnds) HandleConn(context.Context, stats.ConnStats) {}

// unbounded says who has as many connections and calls as the whole server takes:
// the parts of Temporal, and Cyborg's servers.
func unbounded(who caller) bool {
	return who.self || who.err == nil && who.Role == identity.Server
}
