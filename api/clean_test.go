package api_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestCleanNeedsAdmin: a clean can declare what is not so.
func TestCleanNeedsAdmin(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens)
	accelerator := h.as(adminToken).ready("alpha")

	for _, body := range []any{nil, `{"method": "scrub"}`, `{"declared": "wiped by hand"}`} {
		h.as(memberToken).do("POST", path(accelerator, "/clean"), body).problem(cyborg.ErrForbidden)
	}
}

// TestCleaningIsInTheDocument: what is shown of an accelerator that has to be cleaned, of
// how it was cleaned, and of what that keeps from being given out, is as the API's
// document says.
func TestCleaningIsInTheDocument(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	shown := as[map[string]any](h.do("GET", path(accelerator), nil).expect(http.StatusOK))
	schema := theContract(t).document.Components.Schemas["Accelerator"].Value
	for _, name := range []string{"cleaning", "excluded_by"} {
		require.NotContains(t, shown, name)
	}

	full := h.accelerator(accelerator.UUID)
	full.Cleaning = &cyborg.Cleaning{Methods: cyborg.CleanMethods(), After: cyborg.CleanReset}
	full.ExcludedBy = []cyborg.OtherHeld{{Accelerator: uuid.New(), Name: "beta", Unclean: true, Operation: uuid.New()}}

	handle := &full.Handles[0]
	handle.Clean = cyborg.CleanReset
	handle.Unclean = &cyborg.Unclean{Method: cyborg.CleanScrub, Since: time.Now()}
	for _, evidence := range []cyborg.Evidence{
		{Method: cyborg.CleanScrub, Tool: "nvme format, crypto erase", ReadBack: "64 places read zero", At: time.Now(), TookMS: 1500},
		{Declared: "wiped by hand, ticket 12", At: time.Now()},
	} {
		handle.Cleaned = &evidence
		text, err := json.Marshal(full)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &shown))
		shown["status"] = string(full.Status())

		require.Contains(t, shown["attach_handles"].([]any)[0], "cleaned")
		require.NoError(t, schema.VisitJSON(shown))
	}
}

// TestStatusesAreInTheDocument: the API's document has each status and each kind of
// operation, and no others.
func TestStatusesAreInTheDocument(t *testing.T) {
	t.Parallel()
	schemas := theContract(t).document.Components.Schemas
	require.ElementsMatch(t, each(cyborg.Statuses(), func(s cyborg.Status) any { return string(s) }), schemas["Status"].Value.Enum)
	require.ElementsMatch(t, each(cyborg.CleanMethods(), func(m cyborg.CleanMethod) any { return string(m) }), schemas["CleanMethod"].Value.Enum)
	require.ElementsMatch(t, each(cyborg.OperationKinds(), func(k cyborg.OperationKind) any { return string(k) }), schemas["OperationKind"].Value.Enum)
}
