package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	"github.com/cyborg-project/cyborg/api/auth"
	v1 "github.com/cyborg-project/cyborg/api/v1"
)

// Every route refuses callers without a credential and those whose role is too
// small.
func TestRoles(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens)
	accelerator := h.as(adminToken).ready("alpha")
	tokens := map[auth.Role]string{auth.Reader: readerToken, auth.Member: memberToken, auth.Admin: adminToken}

	for _, route := range routes(t) {
		t.Run(route.Method+" "+route.Pattern, func(t *testing.T) {
			t.Parallel()
			target := "/v1" + fill(route.Pattern, accelerator)
			problem := at(h, t).do(route.Method, target, nil)
			problem.problem(cyborg.ErrUnauthenticated)
			require.Contains(t, problem.header.Get("WWW-Authenticate"), "Bearer")
			at(h, t).as("wrong").do(route.Method, target, nil).problem(cyborg.ErrUnauthenticated)

			for role, token := range tokens {
				if !role.Includes(route.Role) {
					problem := at(h, t).as(token).do(route.Method, target, nil).problem(cyborg.ErrForbidden)
					require.Contains(t, problem.Detail, string(route.Role))
				}
			}
		})
	}
}

// Callers can ask who they are.
func TestCaller(t *testing.T) {
	t.Parallel()
	open := v1.Warning{Check: "grants", Found: "are off", Do: "Set them."}
	h := setup(t, withTokens, func(c *api.Config) {
		c.V1.Warnings = func(context.Context) []v1.Warning { return []v1.Warning{open} }
	})
	for role, token := range map[auth.Role]string{auth.Reader: readerToken, auth.Member: memberToken, auth.Admin: adminToken} {
		caller := as[struct {
			Name, Role string
			Warnings   []v1.Warning
		}](h.as(token).do("GET", "/v1/caller", nil).expect(http.StatusOK))
		require.Equal(t, string(role), caller.Role)
		require.NotEmpty(t, caller.Name)
		if role == auth.Admin {
			require.Equal(t, []v1.Warning{open}, caller.Warnings)
		} else {
			require.Empty(t, caller.Warnings, "what is open is for admins to know")
		}
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens)
	token := readerToken

	for header, ok := range map[string]bool{
		"Bearer " + token:        true,
		"bearer " + token:        true,
		"Bearer  " + token + " ": true,
		token:                    false,
		"Basic " + token:         false,
		"Bearer":                 false,
		"Bearer " + token + "x":  false,
		"Bearer " + token[1:]:    false,
	} {
		answer := h.do("GET", "/v1/accelerators", nil, "Authorization", header)
		if ok {
			answer.expect(http.StatusOK)
		} else {
			problem := answer.problem(cyborg.ErrUnauthenticated)
			require.NotContains(t, problem.Detail+problem.Hint, "secret")
		}
	}

	h.do("GET", "/metrics", nil).problem(cyborg.ErrUnauthenticated)
	h.as(readerToken).do("GET", "/metrics", nil).expect(http.StatusOK)
	for _, open := range []string{"/", "/v1", "/healthz", "/readyz", "/openapi.json"} {
		h.do("GET", open, nil).expect(http.StatusOK)
	}
}

// Members may attach and detach, but may not change specs or act on operations
// of others.
func TestMemberPermissions(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens)
	ada, mia, otto := h.as(adminToken), h.as(memberToken), h.as(otherToken)
	accelerator := ada.ready("alpha")

	mia.do("PUT", path(accelerator), map[string]any{"acc_specs": map[string]any{"acc_type": "x"}}).problem(cyborg.ErrForbidden)
	mia.do("PUT", path(accelerator), nil).expect(http.StatusOK)

	mia.engine.set(func(e *engine) { e.fail = cyborg.Errorf(cyborg.ErrHardware, "no") })
	failed := mia.do("DELETE", path(accelerator), nil).problem(cyborg.ErrHardware).Operation
	mia.engine.set(func(e *engine) { e.fail = nil })

	op := as[cyborg.Operation](mia.do("GET", operationPath(failed), nil).expect(http.StatusOK))
	require.Equal(t, "mia", op.Actor.Name)
	require.True(t, strings.HasPrefix(op.Actor.RequestID, "req-"))

	otto.do("POST", operationPath(failed, "/retry"), nil).problem(cyborg.ErrForbidden)
	otto.do("POST", operationPath(failed, "/cancel"), nil).problem(cyborg.ErrForbidden)
	again := as[cyborg.Operation](mia.do("POST", operationPath(failed, "/retry"), nil).expect(http.StatusAccepted))
	require.Equal(t, cyborg.OperationSucceeded, mia.ended(again.ID).State)

	release := h.engine.block()
	defer release()
	running := as[cyborg.Operation](mia.do("PUT", path(accelerator), nil, "Prefer", "respond-async").expect(http.StatusAccepted))
	otto.do("POST", operationPath(running.ID, "/cancel"), nil).problem(cyborg.ErrForbidden)
	ada.do("POST", operationPath(running.ID, "/cancel"), nil).expect(http.StatusAccepted)
	require.Equal(t, cyborg.OperationCancelled, mia.ended(running.ID).State)
}

// Each caller has idempotency keys of its own.
func TestIdempotencyKeysOfTwoCallers(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens)
	accelerator := h.as(adminToken).ready("alpha")

	one := h.as(memberToken).do("PUT", path(accelerator), map[string]any{"service": "a"}, "Idempotency-Key", "k").expect(http.StatusOK)
	two := h.as(otherToken).do("PUT", path(accelerator), map[string]any{"service": "b"}, "Idempotency-Key", "k").expect(http.StatusOK)
	require.NotEqual(t, one.header.Get("Cyborg-Operation"), two.header.Get("Cyborg-Operation"))
}

// A stranger's web page cannot act through the browser of its visitor.
func TestCrossSiteRequestsAreRefused(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.host("h1", 1)["fpga-0"]

	h.do("POST", path(accelerator, "/ready"), nil, "Origin", "https://evil.example.org").problem(cyborg.ErrForbidden)
	h.do("POST", path(accelerator, "/ready"), nil, "Sec-Fetch-Site", "cross-site").problem(cyborg.ErrForbidden)
	require.Equal(t, cyborg.LifecycleInactive, h.accelerator(accelerator.UUID).Lifecycle)

	// DNS rebinding: the browser takes this machine for evil.example.org.
	for host, ok := range map[string]bool{
		"evil.example.org": false, "evil.example.org:6666": false, "127.0.0.1:6666": true, "localhost": true, "LOCALHOST:6666": true, "[::1]:6666": true, "127.0.0.2": true, "127.1.2.3:6666": true, "128.0.0.1": false,
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.server.URL+"/v1/accelerators", nil)
		require.NoError(t, err)

		request.Host = host
		response, err := h.server.Client().Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, ok, response.StatusCode == http.StatusOK, host)
	}

	h.do("POST", path(accelerator, "/ready"), nil, "Sec-Fetch-Site", "same-origin").expect(http.StatusOK)

	// It can read nothing, but what it asks for would still be done: a census, or an
	// event stream that stays open.
	for site, ok := range map[string]bool{"cross-site": false, "same-site": false, "same-origin": true, "none": true} {
		got := h.do("GET", "/v1/accelerators", nil, "Sec-Fetch-Site", site)
		require.Equal(t, ok, got.status == http.StatusOK, site)
	}
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	h := setup(t)
	id := "req-" + uuid.NewString()
	require.Equal(t, id, h.do("GET", "/v1", nil, "X-Openstack-Request-Id", id).header.Get("X-Openstack-Request-Id"))
	forged := "req-1\r\nX: y"[:5]
	require.NotEqual(t, forged, h.do("GET", "/v1", nil, "X-Openstack-Request-Id", forged).header.Get("X-Openstack-Request-Id"))
}
