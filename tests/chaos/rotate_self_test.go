package chaos_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestRotationLosesNoStep checks the checker: the keys must be others afterwards,
// and only a fault that kept a host from learning of a key, or from its journal,
// explains why an operation has failed for want of a grant.
func TestRotationLosesNoStep(t *testing.T) {
	t.Parallel()
	require.NoError(t, unrotated([]string{"a", "b"}, []string{"a", "b", "c", "d"}))
	require.Error(t, unrotated([]string{"a", "b"}, []string{"a", "b", "c"}))
	require.Error(t, unrotated([]string{"a", "b"}, []string{"a", "b"}))

	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	op := ended{operation: operation{id: uuid.New(), kind: cyborg.OperationAttach}, host: "rack1", began: at(100), over: at(120)}
	for _, test := range []struct {
		kind      faultKind
		target    string
		from, to  int
		explained bool
	}{
		{rotate, theServers, 100, 110, false},
		{renew, theAuthority, 100, 110, false},
		{forge, "rack1", 100, 110, false},
		{terminate, theRun, 100, 110, false},
		{sever, "conductor1", 100, 110, false},
		{outage, nova, 100, 110, false},
		{kill, "api1", 100, 110, false},
		{kill, "temporal", 100, 110, false},
		{kill, "rack2", 100, 110, false},
		{silence, "rack2>conductor1", 100, 110, false},
		{silence, "rack1>temporal", 100, 110, false},
		{silence, "rack1>conductor1", 50, 70, false}, // long before
		{silence, "rack1>conductor1", 121, 130, false},
		{silence, "rack1>conductor1", 100, 110, true},
		{freeze, "conductor2", 100, 110, true},
		{old, "rack1", 100, 110, true},
		{second, "rack1", 100, 110, true},
		{restore, allData, 100, 110, true},
	} {
		err := lostStep([]injection{{fault{faultKind: test.kind, target: test.target}, at(test.from), at(test.to)}}, op)
		require.Equal(t, test.explained, err == nil, "%+v: %v", test, err)
	}
	require.Error(t, lostStep(nil, op))
}
