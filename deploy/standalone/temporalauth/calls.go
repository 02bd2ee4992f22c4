package temporalauth

import (
	"context"
	"fmt"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/server/common/authorization"
	"google.golang.org/grpc/tap"

	"github.com/cyborg-project/cyborg/internal/identity"
)

// mostCalls is how many calls of one identity may be open at once, the polls of a
// host among them. gRPC reads the whole request of a call, of up to 4 MiB, before
// any interceptor learns of it, and keeps what has arrived for as long as the client
// likes; a connection has no bound of its own that differs among clients. An agent
// has a poll, and an answer or a heartbeat for each of its steps, 64 by default.
// Servers may do everything, so they have only the bound of each connection.
const mostCalls = 256

// admit refuses a further call of an identity that has many open. gRPC asks it when
// a call begins, before it reads the request; it must answer at once.
func (g *Guard) admit(ctx context.Context, call *tap.Info) (context.Context, error) {
	who := g.callerOf(&authorization.AuthInfo{TLSConnection: authorization.TLSInfoFromContext(ctx)})
	if unbounded(who) {
		return ctx, nil
	}

	if !g.calls.begin(who.Identity, mostCalls) {
		err := serviceerror.NewResourceExhausted(enumspb.RESOURCE_EXHAUSTED_CAUSE_CONCURRENT_LIMIT,
			fmt.Sprintf("%s has %d calls open already: find out who else uses its certificate", who, mostCalls))
		g.tell(ctx, who, call.FullMethodName, err)
		return nil, serviceerror.ToStatus(err).Err()
	}

	context.AfterFunc(ctx, func() { g.calls.end(who.Identity) }) // gRPC cancels it when the call is over
	return ctx, nil
}

// unbounded says who has as many connections and calls as the whole server takes:
// the parts of Temporal, and Cyborg's servers.
func unbounded(who caller) bool {
	return who.self || who.err == nil && who.Role == identity.Server
}
