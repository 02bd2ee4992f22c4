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

// TestPendingUninstalls: what was retired while its host did not show it is retired
// once more when it is back, and nothing else is.
func TestPendingUninstalls(t *testing.T) {
	t.Parallel()
	c := newComputeHeard(t, 3, conductor.Policy{}, time.Hour)
	require.Zero(t, c.tidy().Retired)

	c.exec("UPDATE deployables SET lifecycle = 'inactive', uninstall_pending_since = now() WHERE local_name IN ('card0', 'card1')")
	c.exec("UPDATE attach_handles SET presence = 'missing', missing_since = now() WHERE identity = 'card1'")
	c.exec("UPDATE deployables SET presence = 'missing', missing_since = now() WHERE local_name = 'card1'")
	require.Equal(t, 1, c.tidy().Retired)
	require.Zero(t, c.tidy().Retired, "it is under way")

	ops, err := c.Operations(t.Context(), db.OperationFilter{Kinds: []cyborg.OperationKind{cyborg.OperationRetire}}, db.Page{Limit: 10})
	require.NoError(t, err)
	require.Len(t, ops, 1)
	require.Equal(t, "cyborg", ops[0].Actor.Name)
	a, err := c.Accelerator(t.Context(), uuid.MustParse(ops[0].Subjects[0].ID))
	require.NoError(t, err)
	require.Equal(t, "card0", a.LocalName)
}
