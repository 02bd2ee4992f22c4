package agents_test

import (
	"encoding/json"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/agents"
	"github.com/cyborg-project/cyborg/workflows"
)

// TestOtherUsersAreNoAgents: without certificates, root and the server's own user
// speak for hosts, and no other user of the machine, whatever he knows. Only who
// asks whether the endpoint is healthy is asked nothing.
func TestOtherUsersAreNoAgents(t *testing.T) {
	t.Parallel()
	var user, asked atomic.Uint32
	var failure atomic.Pointer[cyborg.Error]
	h := setup(t, agents.Config{User: func(_, _ string) (uint32, error) {
		asked.Add(1)
		if err := failure.Load(); err != nil {
			return 0, err
		}
		return user.Load(), nil
	}})
	h.server.Config.ConnContext = agents.Connected
	h.plain()

	own := uint32(os.Geteuid())
	response, body := h.post(agents.ReportsPath, report("h1", 1))
	require.Equal(t, http.StatusOK, response.StatusCode, "root: %s", body)

	other := own + 1000
	user.Store(other)
	response, body = h.post(agents.ReportsPath, report("h1", 2))
	require.Equal(t, http.StatusOK, response.StatusCode, "on the connection that is known: %s", body)
	require.Equal(t, uint32(1), asked.Load(), "the kernel is asked once for each connection")
	h.client.CloseIdleConnections()

	for _, request := range []struct {
		method, path string
		body         any
	}{
		{http.MethodPost, agents.ReportsPath, report("h1", 1<<53)},
		{http.MethodPost, agents.ReportsPath, report("new", 1)},
		{http.MethodPost, agents.DifferencesPath, report("h1", 3)},
		{http.MethodPost, agents.HeartbeatsPath, heartbeatOf("h1")},
		{http.MethodGet, agents.HostsPath + "h1", nil},
		{http.MethodGet, workflows.ImagesPath + uuid.NewString(), nil},
		{http.MethodDelete, workflows.ImagesPath + uuid.NewString(), nil},
		{http.MethodGet, "/nothing", nil},
	} {
		before := asked.Load()
		text, err := json.Marshal(request.body)
		require.NoError(t, err)
		response, body := h.send(request.method, request.path, text)
		problem := h.refused(cyborg.ErrForbidden, response, body)
		require.Contains(t, problem.Detail, strconv.Itoa(int(other)), request.path)
		require.True(t, response.Close, "a stranger has one answer on each connection")
		require.Equal(t, before+1, asked.Load())
	}
	require.Empty(t, h.said.String(), "a stranger leaves nothing in the log")
	_, err := h.store.Host(t.Context(), "new")
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))

	response, body = h.send(http.MethodGet, agents.HealthPath, nil)
	require.Equal(t, http.StatusOK, response.StatusCode, "%s", body)
	h.client.CloseIdleConnections()

	failure.Store(cyborg.Errorf(cyborg.ErrUnavailable, "nobody knows"))
	response, body = h.post(agents.ReportsPath, report("h1", 3))
	h.refused(cyborg.ErrUnavailable, response, body)

	// What failed is asked again, and root's number 0 is not what is not known.
	failure.Store(nil)
	user.Store(own)
	response, body = h.post(agents.ReportsPath, report("h1", 4))
	require.Equal(t, http.StatusOK, response.StatusCode, "our own user: %s", body)
}
