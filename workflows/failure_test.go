package workflows_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// TestEveryKindSurvivesTemporal: an error of every kind keeps its message, hint
// and operation on its way through a Temporal failure and back.
func TestEveryKindSurvivesTemporal(t *testing.T) {
	t.Parallel()
	wire := temporal.GetDefaultFailureConverter()
	require.NotNil(t, converter.GetDefaultDataConverter())

	for _, kind := range cyborg.ErrorKinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			want := cyborg.Errorf(kind, "it is %s", kind).WithHint("do this").WithOperation(uuid.New())
			failure := workflows.ToFailure(fmt.Errorf("wrapped: %w", want))
			application, ok := errors.AsType[*temporal.ApplicationError](failure)
			require.True(t, ok)

			require.Equal(t, kind.Retryable(), !application.NonRetryable())
			require.Equal(t, string(kind), application.Type())

			got := workflows.FromFailure(wire.FailureToError(wire.ErrorToFailure(failure)))
			require.Equal(t, want, got)
		})
	}
}

// TestFailureOfForeignErrors: a cancel stays one, and any other error that is
// not ours becomes an internal one.
func TestFailureOfForeignErrors(t *testing.T) {
	t.Parallel()
	require.NoError(t, workflows.ToFailure(nil))
	require.Nil(t, workflows.FromFailure(nil))
	require.True(t, temporal.IsCanceledError(workflows.ToFailure(context.Canceled)))
	require.Equal(t, cyborg.ErrCancelled, workflows.FromFailure(temporal.NewCanceledError()).Kind)

	plain := workflows.FromFailure(workflows.ToFailure(errors.New("something")))
	require.Equal(t, cyborg.ErrInternal, plain.Kind)
	require.Equal(t, "something", plain.Message)
	require.Equal(t, cyborg.ErrInternal, workflows.FromFailure(temporal.NewApplicationError("no details", "x")).Kind)
}

// TestLongFailuresAreCut: a host may write as much as it likes into a failure.
func TestLongFailuresAreCut(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("<", 1001)
	got := workflows.FromFailure(workflows.ToFailure(cyborg.Errorf(cyborg.ErrHardware, "%s", long).WithHint("%s", long)))
	require.Equal(t, cyborg.ErrHardware, got.Kind)
	require.Equal(t, long[:999]+"…", got.Message)
	require.Equal(t, long[:999]+"…", got.Hint)

	short := "the tool says:\n" + long[:900]
	require.Equal(t, short, workflows.FromFailure(workflows.ToFailure(cyborg.Errorf(cyborg.ErrHardware, "%s", short))).Message)
}
