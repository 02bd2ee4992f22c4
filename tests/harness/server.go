package harness

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/porttest"
)

// Server is a `cyborg server` in a process of its own. It uses the database and
// the Temporal of a standalone, next to the server of that standalone.
type Server struct {
	// URL is the URL of its API.
	URL string
	API *apiclient.Client

	process
}

// StartServer runs a server with these roles on the standalone's PostgreSQL and
// Temporal, and returns when it is ready. One of the roles must be api, because
// the API tells when the server is ready. The test's cleanup stops the server.
func (s *Standalone) StartServer(t testing.TB, roles ...string) *Server {
	t.Helper()
	return s.StartServerWith(t, nil, roles...)
}

// StartServerWith is StartServer with these variables in the environment, which
// come after those of the standalone.
func (s *Standalone) StartServerWith(t testing.TB, more []string, roles ...string) *Server {
	t.Helper()
	database, err := s.DatabaseURL()
	require.NoError(t, err)

	ports := porttest.Ports(t, 2)
	server := &Server{URL: fmt.Sprintf("http://127.0.0.1:%d", ports[0]), process: newProcess("cyborg")}
	server.API, err = apiclient.New(apiclient.Options{URL: server.URL, Token: s.options.Token})
	require.NoError(t, err)

	// These variables are for the standalone only. The server gets the URL of the
	// database below.
	env := slices.DeleteFunc(slices.Clone(s.env), func(v string) bool {
		return strings.HasPrefix(v, "CYBORG_STANDALONE_") || strings.HasPrefix(v, "CYBORG_DATABASE_URL=")
	})

	t.Cleanup(func() {
		server.API.Close()
		if server.Running() {
			server.Stop(t)
		}
		if t.Failed() {
			t.Logf("server %s said:\n%s", server.URL, server.output)
		}
	})

	env = append(env, "CYBORG_DATABASE_URL="+database)
	env = append(env, s.Certificates(t).Environ(t, identity.Server, fmt.Sprintf("server-%d", ports[0]))...)
	server.start(t, append(env, more...), "server",
		"--roles", strings.Join(roles, ","), "--temporal-address", s.Temporal,
		"--listen", fmt.Sprintf("127.0.0.1:%d", ports[0]), "--agent-listen", fmt.Sprintf("127.0.0.1:%d", ports[1]))

	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	Until(t, ctx, "ready", func() error {
		if !server.Running() {
			t.Fatalf("the server ended instead of getting ready:\n%s", server.output)
		}
		return answers(ctx, http.DefaultClient, server.URL+"/readyz")
	})

	return server
}
