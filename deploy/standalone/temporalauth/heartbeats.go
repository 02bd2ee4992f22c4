package temporalauth

import (
	"context"
	"fmt"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/cyborg-project/cyborg/internal/identity"
)

// Each heartbeat is a transaction in Temporal's database, with its details. An agent
// sends one a step every three seconds, and never more than two in a second, however
// many steps it runs; the details are a few words about how far the step is.
const (
	heartbeatsPerSecond = 5 // of one step, in the long run
	heartbeatsAtOnce    = 10
	mostDetails         = 64 << 10 // bytes
)

// paces says how fast the heartbeats of each step come.
type paces struct {
	mu      sync.Mutex
	of      map[string]*rate.Limiter // by the token of the step
	cleanAt int                      // the number of steps at which those that are silent are forgotten
}

// allow counts one more heartbeat of a step, and reports whether it may come already.
func (p *paces) allow(token []byte, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	pace := p.of[string(token)]
	if pace == nil {
		p.clean(now)
		pace = rate.NewLimiter(heartbeatsPerSecond, heartbeatsAtOnce)
		p.of[string(token)] = pace
	}
	return pace.AllowN(now, 1)
}

// clean forgets the steps that have been silent for so long that they may do what a
// new one may. It looks at all of them only when there are twice as many as were left
// last time.
func (p *paces) clean(now time.Time) {
	const few = 1000
	if p.of == nil {
		p.of = map[string]*rate.Limiter{}
	}
	if len(p.of) < max(few, p.cleanAt) {
		return
	}

	for token, pace := range p.of {
		if pace.TokensAt(now) >= heartbeatsAtOnce {
			delete(p.of, token)
		}
	}
	p.cleanAt = 2 * len(p.of)
}

// limitHeartbeats refuses heartbeats of a host that come too fast for one step, or are
// too large. It is an interceptor of Temporal's frontend, within the authorization.
func (g *Guard) limitHeartbeats(ctx context.Context, request any, call *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	beat, ok := request.(*workflowservice.RecordActivityTaskHeartbeatRequest)
	who, known := callerIn(ctx)
	if !ok || !known || who.Role != identity.Host {
		return handler(ctx, request)
	}

	var err error
	if size := proto.Size(beat.GetDetails()); size > mostDetails {
		err = serviceerror.NewInvalidArgument(fmt.Sprintf("%s has sent a heartbeat with details of %d bytes, and it may have %d", who, size, mostDetails))
	} else if !g.paces.allow(beat.GetTaskToken(), time.Now()) {
		err = serviceerror.NewResourceExhausted(enumspb.RESOURCE_EXHAUSTED_CAUSE_RPS_LIMIT,
			fmt.Sprintf("%s sends heartbeats of one step faster than %d a second", who, heartbeatsPerSecond))
	}
	if err != nil {
		g.tell(ctx, who, call.FullMethod, err)
		return nil, err
	}
	return handler(ctx, request)
}
