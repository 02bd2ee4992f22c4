package api_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

func TestDrift(t *testing.T) {
	t.Parallel()
	h := setup(t)
	list := func(query string) []apiclient.Drift {
		return as[map[string][]apiclient.Drift](h.do("GET", "/v1/drift"+query, nil).expect(http.StatusOK))["drift"]
	}
	require.Empty(t, list(""))

	provider := uuid.New()
	require.NoError(t, h.store.RecordPlacement(t.Context(), db.PlacementOutcome{Host: "h1", Compared: true, Marks: []byte("{}"), Drift: []cyborg.Drift{
		{Class: cyborg.DriftNoComputeNode, Detail: "it is not there"},
		{Class: cyborg.DriftTraits, Provider: provider, Name: "h1_f0", Detail: "lacks CUSTOM_A", RepairedAt: time.Now()},
	}}))

	require.Len(t, list(""), 2)
	open := list("?repaired=false&host=h1&host=h2")
	require.Len(t, open, 1)
	require.Equal(t, cyborg.DriftNoComputeNode, open[0].Class)
	require.False(t, open[0].Repaired)
	require.Zero(t, open[0].Provider)

	repaired := list("?class=traits")
	require.True(t, repaired[0].Repaired)
	require.Equal(t, provider, repaired[0].Provider)

	require.Len(t, list("?limit=1&marker="+open[0].Key()), 1)
	h.do("GET", "/v1/drift?class=none", nil).problem(cyborg.ErrInvalid)
	h.do("GET", "/v1/drift?marker=x", nil).problem(cyborg.ErrInvalid)
}
