package conductor_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/db"
)

// TestCleaningsAreAdmitted: what has still to be cleaned is cleaned, once, and nothing else is.
func TestCleaningsAreAdmitted(t *testing.T) {
	t.Parallel()
	c := newComputeHeard(t, 3, conductor.Policy{}, time.Hour)
	require.Zero(t, c.tidy().Cleaned)

	c.exec("UPDATE attach_handles SET unclean = 'reset', unclean_since = now() WHERE identity = 'card0'")
	require.Equal(t, 1, c.tidy().Cleaned)
	require.Zero(t, c.tidy().Cleaned, "it is under way")

	ops, err := c.Operations(t.Context(), db.OperationFilter{Kinds: []cyborg.OperationKind{cyborg.OperationClean}}, db.Page{Limit: 10})
	require.NoError(t, err)
	require.Len(t, ops, 1)
	require.Equal(t, "cyborg", ops[0].Actor.Name)
	a, err := c.Accelerator(t.Context(), uuid.MustParse(ops[0].Subjects[0].ID))
	require.NoError(t, err)
	require.Equal(t, "card0", a.LocalName)
}
