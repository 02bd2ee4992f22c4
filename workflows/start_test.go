package workflows

import (
	"encoding/json"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestSearchAttributesAreBounded: a backend may have hundreds of accelerators.
// An operation on all of them must start, although Temporal limits the size of
// a search attribute.
func TestSearchAttributesAreBounded(t *testing.T) {
	t.Parallel()
	op := cyborg.Operation{ID: uuid.New(), Kind: cyborg.OperationConfigure, Host: "h1"}
	for range 300 {
		op.Subjects = append(op.Subjects, cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: uuid.NewString()})
	}

	attributes := searchAttributes(op)
	listed, ok := attributes.GetKeywordList(acceleratorAttribute)
	require.True(t, ok)
	require.Equal(t, op.Subjects[0].ID, listed[0], "the one that was asked for is first")

	text, err := json.Marshal(listed)
	require.NoError(t, err)
	require.LessOrEqual(t, len(text), 2048)
}
