package temporalauth

import (
	"context"
	"fmt"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/server/common/authorization"
	"google.golang.org/grpc"

	"github.com/cyborg-project/cyborg/internal/identity"
)

// mostPolls is how many polls of one host may be open at once. An agent has one,
// and for a moment those of the connections that it has lost. Temporal bounds
// only the polls of all together, so one host could otherwise leave none to the
// others. Servers have no such bound: a worker of theirs polls up to two hundred
// times at once, and several may share one identity.
const mostPolls = 100

// limitPolls refuses further polls of a host that has many open. It is an
// interceptor of Temporal's frontend, within the authorization.
func (g *Guard) limitPolls(ctx context.Context, request any, call *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	who, known := callerIn(ctx)
	if call.FullMethod != workflowService+"PollActivityTaskQueue" || !known || who.Role != identity.Host {
		return handler(ctx, request)
	}

	if !g.polls.begin(who.Identity, mostPolls) {
		err := serviceerror.NewResourceExhausted(enumspb.RESOURCE_EXHAUSTED_CAUSE_CONCURRENT_LIMIT, fmt.Sprintf(
			"%s has %d polls open already, and no agent needs more than one: find out who else uses its certificate, and revoke it with `cyborg host revoke`", who, mostPolls))
		g.tell(ctx, who, call.FullMethod, err)
		return nil, err
	}
	defer g.polls.end(who.Identity) // also where the handler panics

	return handler(ctx, request)
}

// callerIn returns who makes the call with this context; known is false where
// nobody has asked.
func callerIn(ctx context.Context) (who caller, known bool) {
	claims, _ := ctx.Value(authorization.MappedClaims).(*authorization.Claims)
	if claims == nil {
		return caller{}, false
	}
	who, _ = claims.Extensions.(caller)
	return who, true
}
