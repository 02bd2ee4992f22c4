package api_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

func TestHealth(t *testing.T) {
	t.Parallel()
	type body struct {
		Status string
		Checks []struct {
			Name string
			OK   bool
		}
	}
	h := setup(t)
	h.do("GET", "/healthz", nil).expect(http.StatusOK)
	ready := as[body](h.do("GET", "/readyz", nil).expect(http.StatusOK))
	require.Equal(t, body{Status: "ready"}, ready)
	ready = as[body](h.do("GET", "/readyz?verbose", nil).expect(http.StatusOK))
	require.Len(t, ready.Checks, 2)

	h.engine.set(func(e *engine) { e.away = true })
	answer := h.do("GET", "/readyz?verbose", nil).expect(http.StatusServiceUnavailable)
	require.NotContains(t, string(answer.body), "10.0.0.7")
	ready = as[body](answer)
	require.Equal(t, "not ready", ready.Status)
	require.True(t, ready.Checks[0].OK)
	require.False(t, ready.Checks[1].OK)
	h.do("GET", "/healthz", nil).expect(http.StatusOK)
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	h.do("GET", "/accelerator/"+accelerator.UUID.String()+"/", nil).expect(http.StatusOK)
	h.do("GET", "/v1/nothing/"+accelerator.UUID.String(), nil).problem(cyborg.NotFound)
	text := string(h.do("GET", "/metrics", nil).expect(http.StatusOK).body)
	require.Contains(t, text, `cyborg_http_request_duration_seconds_count{listener="api",method="GET",route="/v1/accelerators/{uuid}",status="200"} 1`)
	require.Contains(t, text, `cyborg_http_request_duration_seconds_count{listener="api",method="GET",route="unmatched",status="404"} 1`)
	require.Contains(t, text, `cyborg_operation_answers_total{answer="succeeded",kind="provision"} 1`)
	require.Contains(t, text, "cyborg_operations_in_flight 0")
	require.NotContains(t, text, accelerator.UUID.String())
}
