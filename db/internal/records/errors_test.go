package records

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestExplainWhatIsNotGiven: where the guards have let pass what the schema refuses, the
// transaction is tried again, and then refused in the words of the schema.
func TestExplainWhatIsNotGiven(t *testing.T) {
	t.Parallel()
	for _, constraint := range []string{"attach_handles_same_holder", "attach_handles_excludes"} {
		refused := &pgconn.PgError{Code: exclusionViolation, ConstraintName: constraint, Message: `accelerator "a" shares iommu/17 with "b"`, Hint: "Detach that one first."}
		require.True(t, collided(refused))

		err := Explain(refused)
		require.Equal(t, cyborg.ErrInUse, err.Kind)
		require.Equal(t, refused.Message, err.Message)
		require.Equal(t, refused.Hint, err.Hint)
	}

	other := &pgconn.PgError{Code: exclusionViolation, ConstraintName: "another", Message: "secret"}
	require.False(t, collided(other))
	require.Equal(t, cyborg.ErrInternal, Explain(other).Kind)
}
