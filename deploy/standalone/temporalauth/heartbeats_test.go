package temporalauth

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/server/common/authorization"
	"google.golang.org/grpc"
)

// beat sends a heartbeat of a step, by way of what bounds them.
func beat(t *testing.T, g *Guard, who caller, token, details string) error {
	t.Helper()
	ctx := context.WithValue(t.Context(), authorization.MappedClaims, &authorization.Claims{Extensions: who})
	_, err := g.limitHeartbeats(ctx, &workflowservice.RecordActivityTaskHeartbeatRequest{
		TaskToken: []byte(token), Details: &commonpb.Payloads{Payloads: []*commonpb.Payload{{Data: []byte(details)}}},
	}, &grpc.UnaryServerInfo{FullMethod: workflowService + "RecordActivityTaskHeartbeat"}, func(context.Context, any) (any, error) { return "recorded", nil })
	return err
}

// TestHeartbeatsOfAStepAreBounded: a host that sends heartbeats without end writes no
// more into Temporal's database than one that is slow to stop. Other steps of the same
// host go on, and servers beat as they like.
func TestHeartbeatsOfAStepAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, h1 := newGuard(t), as(host, "h1")
		for range heartbeatsAtOnce {
			require.NoError(t, beat(t, g, h1, "a step", "half"))
		}
		var exhausted *serviceerror.ResourceExhausted
		require.ErrorAs(t, beat(t, g, h1, "a step", "half"), &exhausted)
		require.ErrorContains(t, exhausted, "spiffe://lab/host/h1 sends heartbeats of one step faster than 5 a second")
		require.NoError(t, beat(t, g, h1, "another step", "half"))
		for range 10 * heartbeatsAtOnce {
			require.NoError(t, beat(t, g, as(server, "s"), "a step", "half"))
		}

		<-time.After(time.Second)
		for range heartbeatsPerSecond {
			require.NoError(t, beat(t, g, h1, "a step", "half"))
		}
		require.Error(t, beat(t, g, h1, "a step", "half"))
	})
}

// TestHeartbeatsAreSmall: the details of a heartbeat are kept with the workflow.
func TestHeartbeatsAreSmall(t *testing.T) {
	t.Parallel()
	g, h1 := newGuard(t), as(host, "h1")
	require.NoError(t, beat(t, g, h1, "a step", strings.Repeat("x", 65_000)))

	var invalid *serviceerror.InvalidArgument
	require.ErrorAs(t, beat(t, g, h1, "a step", strings.Repeat("x", mostDetails)), &invalid)
	require.ErrorContains(t, invalid, "bytes, and it may have 65536")
}

// TestSoundAgentsMeetNoBoundOfHeartbeats: as many steps as a host can run at all may
// begin at once, and go on.
func TestSoundAgentsMeetNoBoundOfHeartbeats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, h1 := newGuard(t), as(host, "h1")
		for range 60 {
			for step := range 1024 { // the most that agent.slots can be
				require.NoError(t, beat(t, g, h1, fmt.Sprint(step), "half"))
			}
			<-time.After(time.Second / 3) // a third of the shortest operations.heartbeat
		}
	})
}

// TestSilentStepsAreForgotten: steps that are over cost no memory.
func TestSilentStepsAreForgotten(t *testing.T) {
	t.Parallel()
	var p paces
	now := time.Now()
	for step := range 100_000 {
		require.True(t, p.allow([]byte(fmt.Sprint(step)), now))
		now = now.Add(time.Millisecond) // after 200, each may do what a new one may
	}
	require.Less(t, len(p.of), 2000)
}
