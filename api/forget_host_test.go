package api_test

import (
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// An administrator may have a host forgotten that has not been heard of for a
// while. Its accelerators go with it.
func TestForgetHost(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens)
	ada, mia := h.as(adminToken), h.as(memberToken)
	ada.ready("alpha")

	mia.do("DELETE", "/v1/hosts/h1", nil).problem(cyborg.ErrForbidden)
	ada.do("DELETE", "/v1/hosts/h9", nil).problem(cyborg.ErrNotFound)
	require.Contains(t, ada.do("DELETE", "/v1/hosts/h1", nil).problem(cyborg.ErrChanged).Detail, "was heard at")

	conn, err := pgx.Connect(t.Context(), h.url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), "UPDATE hosts SET last_seen = now() - interval '1 minute'")
	require.NoError(t, err)

	ada.do("DELETE", "/v1/hosts/h1", nil).expect(http.StatusNoContent)
	ada.do("DELETE", "/v1/hosts/h1", nil).problem(cyborg.ErrNotFound)
	left, err := h.store.Accelerators(t.Context(), db.AcceleratorFilter{}, db.Page{})
	require.NoError(t, err)
	require.Empty(t, left)
}
