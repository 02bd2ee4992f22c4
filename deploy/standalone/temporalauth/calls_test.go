package temporalauth

import (
	"context"
	"crypto/x509"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/cyborg-project/cyborg"
)

// callBegins begins a call with a certificate that has this URI, and returns what ends it.
func callBegins(t *testing.T, g *Guard, uri string) (end context.CancelFunc, err error) {
	t.Helper()
	ctx, end := context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{AuthInfo: *shown(certificate(t, uri))}))
	_, err = g.admit(ctx, &tap.Info{FullMethodName: workflowService + "PollActivityTaskQueue"})
	return end, err
}

// TestCallsOfOneAreBounded: whoever begins calls without end gets a sentence before
// gRPC keeps anything of them, also whoever may call nothing at all. Only servers have
// as many as they like.
func TestCallsOfOneAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := settings()
		c.Refuse = func(certificate *x509.Certificate) error {
			if certificate.URIs[0].Path == "/host/gone" || certificate.URIs[0].Path == "/server/gone" {
				return cyborg.Errorf(cyborg.ErrForbidden, "it is revoked")
			}
			return nil
		}
		g, err := New(c)
		require.NoError(t, err)

		for _, uri := range []string{
			"spiffe://lab/host/h1", "spiffe://lab/member/mel", "spiffe://lab/admin/ann", "spiffe://lab/host/gone", "spiffe://lab/server/gone",
			"spiffe://another/server/s",
		} {
			var ends []context.CancelFunc
			for range mostCalls {
				end, err := callBegins(t, g, uri)
				require.NoError(t, err, uri)
				ends = append(ends, end)
			}
			end, err := callBegins(t, g, uri)
			end()
			require.Equal(t, codes.ResourceExhausted, status.Code(err), uri)
			require.ErrorContains(t, err, "has 256 calls open already")

			end, err = callBegins(t, g, "spiffe://lab/host/h2")
			require.NoError(t, err, "another one's")
			end()

			ends[0]()
			synctest.Wait()
			end, err = callBegins(t, g, uri)
			require.NoError(t, err, "one is over")
			ends[0] = end
			end, err = callBegins(t, g, uri)
			require.Error(t, err, "and only one")
			end()

			for _, end := range ends {
				end()
			}
		}

		for range 2 * mostCalls {
			end, err := callBegins(t, g, "spiffe://lab/server/s")
			require.NoError(t, err)
			defer end()
		}
		synctest.Wait()
		require.Empty(t, g.calls.of, "what has ended costs no memory")
	})
}
