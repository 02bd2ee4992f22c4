package journey_test

import (
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	temporallog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/workflows"
)

// forgedStep is what the workflow of an attacker sends to a host.
type forgedStep struct {
	Host     string
	Activity string
	Input    json.RawMessage
	// Own says to put the attacker's own run into the input.
	Own bool
}

// forge sends a step, as anybody can who may run workflows in the namespace.
func forge(ctx workflow.Context, in forgedStep) error {
	input := map[string]any{}
	if err := json.Unmarshal(in.Input, &input); err != nil {
		return err
	}
	if in.Own {
		input["run"] = workflow.GetInfo(ctx).WorkflowExecution.RunID
	}

	return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue: workflows.AgentQueue(in.Host), StartToCloseTimeout: time.Minute,
		RetryPolicy: &temporal.RetryPolicy{MaximumAttempts: 1},
	}), in.Activity, input).Get(ctx, nil)
}

// TestForgedSteps: somebody who may do everything that a server may do in
// Temporal has a host do nothing: neither by steps of his own, nor by those that
// an operation has sent, as they are or changed.
func TestForgedSteps(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:1xfpga"}, Env: shortWaits()})
	card := s.Accelerators(t)[0]
	_, err := s.API.MakeReady(t.Context(), card.UUID)
	require.NoError(t, err)

	attacker, err := client.DialContext(t.Context(), client.Options{
		HostPort: s.Temporal, Namespace: temporalclient.DefaultNamespace, Logger: temporallog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
		ConnectionOptions: client.ConnectionOptions{TLS: s.Certificates(t).Client(t, identity.Server, "attacker"), GetSystemInfoTimeout: time.Minute},
	})
	require.NoError(t, err)
	defer attacker.Close()
	w := worker.New(attacker, "attacker", worker.Options{})
	w.RegisterWorkflowWithOptions(forge, workflow.RegisterOptions{Name: "Forge"})
	require.NoError(t, w.Start())
	defer w.Stop()

	refused := func(step forgedStep) *cyborg.Error {
		t.Helper()
		run, err := attacker.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{TaskQueue: "attacker"}, "Forge", step)
		require.NoError(t, err)
		failure := workflows.FromFailure(run.Get(t.Context(), nil))
		require.NotNil(t, failure, "%s was taken", step.Activity)
		return failure
	}
	input := func(in any) json.RawMessage {
		text, err := json.Marshal(in)
		require.NoError(t, err)
		return text
	}

	target := cyborg.Target{Accelerator: card.UUID, Backend: "fake", Device: "00fa:01:00.0", Deployable: card.LocalName}
	own := input(workflows.AttachInput{Operation: uuid.New(), Target: target, Handle: cyborg.WorkHandle{
		UUID: card.Handles[0].UUID, Identity: card.Handles[0].Identity, Holder: cyborg.Holder{Kind: cyborg.HolderHost, ID: "fake"},
	}})
	failure := refused(forgedStep{Host: "fake", Activity: workflows.AttachActivity, Input: own})
	require.Equal(t, cyborg.ErrNotGranted, failure.Kind, "%v", failure)

	// The steps of an attach that has ended, and of its detach.
	for _, request := range []func() (apiclient.Answer, error){
		func() (apiclient.Answer, error) {
			return s.API.Attach(t.Context(), card.UUID, cyborg.Holder{Kind: cyborg.HolderHost, ID: "fake"}, apiclient.Async())
		},
		func() (apiclient.Answer, error) {
			return s.API.Detach(t.Context(), card.UUID, cyborg.Holder{Kind: cyborg.HolderHost, ID: "fake"}, apiclient.Async())
		},
	} {
		answer, err := request()
		require.NoError(t, err)
		harness.RequireSound(t, s)
		op, err := s.API.Operation(t.Context(), answer.Operation.ID)
		require.NoError(t, err)
		require.Equal(t, cyborg.OperationSucceeded, op.State)
		before, _, err := s.API.Accelerator(t.Context(), card.UUID)
		require.NoError(t, err)

		for _, sent := range stepsOf(t, attacker, op.WorkflowID) {
			require.Contains(t, string(sent.Input), `"grant"`)
			failure := refused(sent)
			require.Equal(t, cyborg.ErrSuperseded, failure.Kind, "%v", failure)

			sent.Own = true
			failure = refused(sent)
			require.Equal(t, cyborg.ErrNotGranted, failure.Kind, "%v", failure)
			require.Contains(t, failure.Message, "its grant is for run")
		}

		harness.RequireSound(t, s)
		after, _, err := s.API.Accelerator(t.Context(), card.UUID)
		require.NoError(t, err)
		require.Equal(t, before, after)
	}
}

// stepsOf returns the steps that a workflow has sent to hosts.
func stepsOf(t *testing.T, c client.Client, workflowID string) (sent []forgedStep) {
	t.Helper()
	for history := c.GetWorkflowHistory(t.Context(), workflowID, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); history.HasNext(); {
		event, err := history.Next()
		require.NoError(t, err)
		if step := event.GetActivityTaskScheduledEventAttributes(); step != nil {
			sent = append(sent, forgedStep{
				Host: "fake", Activity: step.GetActivityType().GetName(), Input: step.GetInput().GetPayloads()[0].GetData(),
			})
		}
	}
	require.NotEmpty(t, sent)
	return sent
}
