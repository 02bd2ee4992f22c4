package engine_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/porttest"
)

// TestClientsBeforeTheNamespace: servers and agents may be there before Temporal
// starts for the first time, and ask for a namespace that it has not made yet. The
// start goes on all the same.
func TestClientsBeforeTheNamespace(t *testing.T) {
	t.Parallel()
	const most = 10 // starts, until a client was early enough
	for range most {
		if startUnderClients(t) > 0 {
			return
		}
	}
	require.Fail(t, "no client has asked before the namespace was made")
}

// startUnderClients starts an engine on a new server, while a client asks for its
// namespace all the time. It returns how often there was none.
func startUnderClients(t *testing.T) (unknown int) {
	t.Helper()
	_, server := database(t)
	authority, cfg := newAuthority(t), config(t, server)
	cfg.TrustDomain, cfg.TLS, cfg.Listen = "lab", files(t, authority, t.TempDir()), porttest.Address(t)
	client := clientAs(t, authority, cfg.Listen, identity.Identity{TrustDomain: "lab", Role: identity.Server, Name: "early"})

	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	asking.Go(func() {
		for ctx.Err() == nil { // gRPC would wait a second after a connection that is refused
			connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", cfg.Listen)
			if err == nil {
				_ = connection.Close() // it has shown that there is a listener
				break
			}
		}
		for ctx.Err() == nil {
			_, err := client.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{})
			if _, none := errors.AsType[*serviceerror.NamespaceNotFound](err); none {
				unknown++
			}
		}
	})
	start(t, cfg, t.Output())
	stop()
	asking.Wait()
	return unknown
}
