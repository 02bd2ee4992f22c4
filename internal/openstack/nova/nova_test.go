package nova_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/openstack"
	"github.com/cyborg-project/cyborg/internal/openstack/nova"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
)

// compute is a Nova with a fixed answer. It records the requests that it got.
type compute struct {
	mu     sync.Mutex
	answer http.HandlerFunc
	asked  []*http.Request
	bodies []map[string][]map[string]string
}

func (c *compute) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, r)

	if r.Method == http.MethodPost {
		var body map[string][]map[string]string
		_ = json.NewDecoder(r.Body).Decode(&body)
		c.bodies = append(c.bodies, body)
	}
	c.answer(w, r)
}

// setup returns a client of a Nova whose answer the test sets.
func setup(t *testing.T) (*nova.Nova, *compute) {
	t.Helper()
	c := &compute{}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)

	keystone := openstacktest.NewKeystone(t)
	keystone.Serve("compute", server.URL+"/v2.1")

	session, err := openstack.New(keystone.Config(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(session.Close)
	return nova.New(session), c
}

// says returns a handler that always gives this answer.
func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

const noInstance = `{"itemNotFound": {"code": 404, "message": "No instances found for any event"}}`

// TestNotify: one request tells Nova of several accelerator requests.
func TestNotify(t *testing.T) {
	t.Parallel()
	n, c := setup(t)

	instance, bound, failed := uuid.New(), uuid.New(), uuid.New()

	c.answer = says(http.StatusOK, `{"events": []}`)
	delivered, err := n.Notify(t.Context(), []nova.Event{{Instance: instance, ARQ: bound, Bound: true}, {Instance: instance, ARQ: failed}})
	require.NoError(t, err)
	require.Equal(t, nova.Delivered{Accepted: 2}, delivered)

	require.Equal(t, "/v2.1/os-server-external-events", c.asked[0].URL.Path)
	require.Equal(t, "compute 2.82", c.asked[0].Header.Get("Openstack-Api-Version"))

	require.Equal(t, map[string][]map[string]string{"events": {
		{"name": "accelerator-request-bound", "server_uuid": instance.String(), "tag": bound.String(), "status": "completed"},
		{"name": "accelerator-request-bound", "server_uuid": instance.String(), "tag": failed.String(), "status": "failed"},
	}}, c.bodies[0])
}

// L13: Nova's answer is read for each event, and an answer that says nothing
// certain means that Nova must be told again.
func TestL13NovaAnswers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status int
		body   string
		want   nova.Delivered
		again  bool
	}{
		"some early, some gone": {http.StatusMultiStatus, `{"events": [{"code": 422}, {"code": 404}, {"code": 200}]}`, nova.Delivered{Accepted: 1, NotOnHost: 1, NotFound: 1}, false},
		"one not taken":         {http.StatusMultiStatus, `{"events": [{"code": 200}, {"code": 400}, {"code": 200}]}`, nova.Delivered{}, true},
		"one missing":           {http.StatusMultiStatus, `{"events": [{"code": 200}]}`, nova.Delivered{}, true},
		"all gone":              {http.StatusNotFound, noInstance, nova.Delivered{NotFound: 3}, false},
		"a wrong address":       {http.StatusNotFound, `404 page not found`, nova.Delivered{}, true},
		"not our right":         {http.StatusForbidden, `{"forbidden": {"message": "no"}}`, nova.Delivered{}, true},
		"broken":                {http.StatusInternalServerError, `{"computeFault": {"message": "oops"}}`, nova.Delivered{}, true},
		"no JSON":               {http.StatusMultiStatus, `oops`, nova.Delivered{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, c := setup(t)
			c.answer = says(test.status, test.body)

			delivered, err := n.Notify(t.Context(), make([]nova.Event, 3))
			if test.again {
				require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err), "%v", err)
				return
			}

			require.NoError(t, err)
			require.Equal(t, test.want, delivered)
		})
	}
}

// L46: an instance is gone only if Nova lets us list all instances and does not
// have this one.
func TestL46Project(t *testing.T) {
	t.Parallel()
	instance := uuid.New()
	none := says(http.StatusOK, `{"servers": []}`)
	gone := says(http.StatusNotFound, `{"itemNotFound": {"message": "no"}}`)

	for name, test := range map[string]struct {
		list, one http.HandlerFunc
		project   string
		kind      cyborg.ErrorKind
	}{
		"listed":                 {list: says(http.StatusOK, `{"servers": [{"id": "`+instance.String()+`", "tenant_id": "p"}]}`), project: "p"},
		"in a cell that is down": {list: none, one: says(http.StatusOK, `{"server": {"tenant_id": "p", "status": "UNKNOWN"}}`), project: "p"},
		"gone":                   {list: none, one: gone, kind: cyborg.ErrNotFound},
		"not for us":             {list: says(http.StatusForbidden, `{"forbidden": {"message": "no"}}`), one: gone, kind: cyborg.ErrUnavailable},
		"no list":                {list: says(http.StatusNotFound, `{}`), one: gone, kind: cyborg.ErrUnavailable},
		"broken":                 {list: none, one: says(http.StatusBadGateway, ``), kind: cyborg.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, c := setup(t)

			c.answer = func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v2.1/servers/detail" {
					test.list(w, r)
					return
				}
				test.one(w, r)
			}

			project, err := n.Project(t.Context(), instance)
			require.Equal(t, test.kind, cyborg.ErrorKindOf(err), "%v", err)
			require.Equal(t, test.project, project)
			require.Equal(t, "1", c.asked[0].URL.Query().Get("all_tenants"))
		})
	}
}
