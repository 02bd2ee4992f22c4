package api_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// readyBody is the answer of /readyz.
type readyBody struct {
	Status string
	Checks []struct {
		Name string
		OK   bool
	}
}

// readiness asks until the answer is as wanted, because on a busy machine a
// check may time out now and then.
func (h *harness) readiness(path string, wanted func(answer *reply, ready readyBody) bool) {
	h.t.Helper()
	require.Eventually(h.t, func() bool {
		answer := h.do("GET", path, nil)
		return wanted(answer, as[readyBody](answer))
	}, waitLimit, poll, path)
}

// isReady waits until every check succeeds.
func (h *harness) isReady() {
	h.t.Helper()
	h.readiness("/readyz", func(answer *reply, ready readyBody) bool {
		return answer.status == http.StatusOK && ready.Status == "ready" && ready.Checks == nil
	})
}

func TestHealth(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.do("GET", "/healthz", nil).expect(http.StatusOK)
	h.isReady()

	h.readiness("/readyz?verbose", func(answer *reply, ready readyBody) bool {
		return answer.status == http.StatusOK && len(ready.Checks) == 2
	})

	h.engine.set(func(e *engine) { e.away = true })
	h.readiness("/readyz?verbose", func(answer *reply, ready readyBody) bool {
		require.NotContains(t, string(answer.body), "10.0.0.7")
		return answer.status == http.StatusServiceUnavailable && ready.Status == "not ready" && ready.Checks[0].OK && !ready.Checks[1].OK
	})
	h.do("GET", "/healthz", nil).expect(http.StatusOK)
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	h.do("GET", "/accelerator/"+accelerator.UUID.String()+"/", nil).expect(http.StatusOK)
	h.do("GET", "/v1/nothing/"+accelerator.UUID.String(), nil).problem(cyborg.ErrNotFound)

	text := string(h.do("GET", "/metrics", nil).expect(http.StatusOK).body)
	require.Contains(t, text, `cyborg_http_request_duration_seconds_count{listener="api",method="GET",route="/v1/accelerators/{uuid}",status="200"} 1`)
	require.Contains(t, text, `cyborg_http_request_duration_seconds_count{listener="api",method="GET",route="unmatched",status="404"} 1`)
	require.Contains(t, text, `cyborg_operation_answers_total{answer="succeeded",kind="provision"} 1`)
	require.Contains(t, text, "cyborg_operations_in_flight 0")
	require.NotContains(t, text, accelerator.UUID.String())
}
