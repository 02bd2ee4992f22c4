package conductor

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"google.golang.org/grpc"

	"github.com/cyborg-project/cyborg"
)

// refusingOperator is a Temporal that answers no question about search attributes.
type refusingOperator struct {
	client.Client
	operatorservice.OperatorServiceClient

	err error
}

func (r refusingOperator) OperatorService() operatorservice.OperatorServiceClient { return r }

func (r refusingOperator) ListSearchAttributes(context.Context, *operatorservice.ListSearchAttributesRequest, ...grpc.CallOption) (*operatorservice.ListSearchAttributesResponse, error) {
	return nil, r.err
}

// TestMissingSearchAttributesAreNamed: an operator can register what the process
// may not, so the hint names it in words. Where Temporal is away, nobody has to.
func TestMissingSearchAttributesAreNamed(t *testing.T) {
	t.Parallel()
	err := EnsureSearchAttributes(t.Context(), refusingOperator{err: serviceerror.NewPermissionDenied("no", "")}, "cyborg")
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.Contains(t, cyborg.AsError(err).Hint, "CyborgAccelerator (KeywordList), CyborgDevice (Keyword)")
	require.NotContains(t, cyborg.AsError(err).Hint, "map[")

	err = EnsureSearchAttributes(t.Context(), refusingOperator{err: serviceerror.NewUnavailable("Temporal asks for a certificate")}, "cyborg")
	require.ErrorContains(t, err, "Temporal asks for a certificate")
	require.Empty(t, cyborg.AsError(err).Hint)
}
