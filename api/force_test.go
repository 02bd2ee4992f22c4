package api_test

import (
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// Only administrators may detach by force, and only what cannot be detached
// without force. A fence on the accelerator then names the operation.
func TestDetachByForce(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens)
	ada, mia := h.as(adminToken), h.as(memberToken)
	accelerator := ada.ready("alpha")
	instance := "5f5f5f5f-0000-4000-8000-00000000000f"
	mia.do("PUT", path(accelerator), map[string]any{"instance": instance}).expect(http.StatusOK)

	mia.do("DELETE", path(accelerator)+"?force=true", nil).problem(cyborg.ErrForbidden)
	ada.do("DELETE", path(accelerator)+"?force=maybe", nil).problem(cyborg.ErrInvalid)
	problem := ada.do("DELETE", path(accelerator)+"?force=true", nil).problem(cyborg.ErrChanged)
	require.Contains(t, problem.Detail, "can be detached without force")
	require.NotEmpty(t, problem.Hint)

	missing := report("h1", 2, 0)
	_, err := h.store.MergeReports(t.Context(), []agentapi.Report{missing})
	require.NoError(t, err)

	key := []string{"Idempotency-Key", "k1"}
	done := ada.do("DELETE", path(accelerator)+"?force=true&instance="+instance, nil, key...).expect(http.StatusNoContent)
	again := ada.do("DELETE", path(accelerator)+"?force=true&instance="+instance, nil, key...).expect(http.StatusNoContent)
	require.Equal(t, done.header.Get("Cyborg-Operation"), again.header.Get("Cyborg-Operation"))

	ada.do("DELETE", path(accelerator)+"?instance="+instance, nil, key...).problem(cyborg.ErrInvalid)

	after := h.accelerator(accelerator.UUID)
	require.Empty(t, after.Holders())
	require.Equal(t, done.header.Get("Cyborg-Operation"), after.Fence.Operation.String())
}

// A caller who was an administrator and no longer is one cannot retry what only
// administrators may do.
func TestRetryNeedsTheRoleOfTheRequest(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens)
	ada, mia := h.as(adminToken), h.as(memberToken)
	accelerator := ada.host("h1", 1)["fpga-0"]

	mias := cyborg.Actor{Name: "mia"}
	for _, request := range []db.Admission{
		{ID: uuid.New(), Actor: mias, Request: cyborg.ProvisionRequest{Accelerator: accelerator.UUID}},
		{ID: uuid.New(), Actor: mias, Request: cyborg.ConfigureRequest{Host: "h1", Backend: "fake", Action: cyborg.ConfigureUninstall}},
	} {
		_, err := h.store.Admit(t.Context(), request)
		require.NoError(t, err)
		failed := cyborg.Errorf(cyborg.ErrHardware, "no")
		require.NoError(t, h.store.End(t.Context(), db.Run{Operation: request.ID, ID: "run"}, cyborg.Outcome{Operation: request.ID, State: cyborg.OperationFailed, Error: failed}))

		mia.do("POST", operationPath(request.ID, "/retry"), nil).problem(cyborg.ErrForbidden)
		again := as[cyborg.Operation](ada.do("POST", operationPath(request.ID, "/retry"), nil).expect(http.StatusAccepted))
		require.Equal(t, cyborg.OperationSucceeded, ada.ended(again.ID).State)
	}
}
