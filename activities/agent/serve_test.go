package agent_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	sdkactivity "go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// The agent serves exactly the activities of the contract.
func TestEveryActivityIsServed(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{
		workflows.AttachActivity, workflows.CheckUseActivity, workflows.CleanActivity, workflows.ConfigureActivity, workflows.DetachActivity,
		workflows.DiscoverActivity,
		workflows.InstallActivity, workflows.PartitionActivity, workflows.PreviewWhitelistActivity, workflows.ProgramActivity,
		workflows.RestoreActivity, workflows.RestoreLayoutActivity,
		workflows.RestoreWhitelistActivity, workflows.SettleActivity, workflows.StageActivity, workflows.UninstallActivity,
		workflows.UsageActivity, workflows.WriteWhitelistActivity,
	}, keys(newHost(t).served))
}

// A step that was sent to another agent of the host, or by another run, is
// refused before anything is looked at, whatever the step is. A step for this
// agent is taken, and so is one of a release that did not say for whom it is.
func TestStepForAnotherAgentIsRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	op, other := uuid.New(), workflows.Addressee{Instance: "agent-2"}
	before := slices.Clone(h.fate.calls)

	for name, in := range map[string]any{
		workflows.InstallActivity:       workflows.InstallInput{Addressee: other, Operation: op, Target: target()},
		workflows.UninstallActivity:     workflows.InstallInput{Addressee: other, Operation: op, Target: target()},
		workflows.AttachActivity:        workflows.AttachInput{Addressee: other, Operation: op, Target: target(), Handle: workHandle(handle)},
		workflows.DetachActivity:        workflows.DetachInput{Addressee: other, Operation: op, Target: target(), Undo: true},
		workflows.StageActivity:         workflows.StageInput{Addressee: other, Operation: op, Target: target()},
		workflows.ProgramActivity:       workflows.ProgramInput{Addressee: other, Operation: op, Target: target()},
		workflows.RestoreActivity:       workflows.RestoreInput{Addressee: other, Operation: op, Target: target()},
		workflows.CleanActivity:         workflows.CleanInput{Addressee: other, Operation: op, Target: target(), Handle: toClean(handle, cyborg.CleanScrub)},
		workflows.PartitionActivity:     workflows.PartitionInput{Addressee: other, Operation: op, Device: deviceTarget(), Layout: vfs(2)},
		workflows.RestoreLayoutActivity: workflows.RestoreLayoutInput{Addressee: other, Operation: op, Device: deviceTarget()},
		workflows.ConfigureActivity:     workflows.ConfigureInput{Addressee: other, Operation: op},
		workflows.SettleActivity: workflows.SettleInput{Addressee: other, Host: "h1", Entries: []workflows.SettleEntry{{
			Backend: backend, Deployable: target().Deployable, Handle: workHandle(handle), Operation: op, Want: workflows.GoalAttached,
		}}},
		workflows.WriteWhitelistActivity:   workflows.WhitelistInput{Addressee: other, Operation: op},
		workflows.RestoreWhitelistActivity: workflows.WhitelistInput{Addressee: other, Operation: op},
	} {
		err := h.refused(cyborg.ErrOtherAgent, name, in)
		require.Contains(t, err.Message, "agent-2", name)
		require.Contains(t, err.Message, "agent-1", name)
	}
	require.Equal(t, before, h.fate.calls)
	require.Empty(t, h.attachments())

	mine := attach(op, handle)
	mine.Instance, mine.Run = instance, "the run before a reset"
	h.refused(cyborg.ErrSuperseded, workflows.AttachActivity, mine)
	require.Equal(t, before, h.fate.calls)

	mine.Run = "default-test-run-id" // that of Temporal's test environment
	h.must(workflows.AttachActivity, mine, nil)
	h.must(workflows.DetachActivity, detach(uuid.New(), handle), nil)
}

// environment returns Temporal's test environment with the host's activities.
func (h *host) environment(ctx context.Context) *testsuite.TestActivityEnvironment {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(silent{})
	env := suite.NewTestActivityEnvironment()
	env.SetWorkerOptions(worker.Options{BackgroundActivityContext: ctx})
	env.SetTestTimeout(time.Minute)
	for known, do := range h.served {
		env.RegisterActivityWithOptions(do, sdkactivity.RegisterOptions{Name: known})
	}
	return env
}

// A late try learns from its first heartbeat whether Temporal still waits for
// it, so that heartbeat comes before anything else.
func TestFirstHeartbeatComesBeforeTheWork(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.late.Store(true)

	env := h.environment(t.Context())
	var first []cyborg.Progress
	env.SetOnActivityHeartbeatListener(func(_ *sdkactivity.Info, details converter.EncodedValues) {
		var progress cyborg.Progress
		if details.HasValues() && details.Get(&progress) == nil && len(first) == 0 {
			first = append(first, progress)
			_, err := os.Stat(filepath.Join(h.dir, "park", card+".json"))
			if !errors.Is(err, os.ErrNotExist) {
				first = nil // the hardware was read before the first heartbeat
			}
		}
	})

	_, err := env.ExecuteActivity(workflows.InstallActivity, workflows.InstallInput{Operation: uuid.New(), Target: target()})
	require.NoError(t, err)
	require.Equal(t, []cyborg.Progress{{Step: workflows.InstallActivity, Percent: -1}}, first)
}

// An agent may be suspended between taking a step and beginning it, and wake up
// after Temporal has given the try up. The first heartbeat then ends the
// context of the try, which must not begin.
func TestAbandonedAttemptDoesNotBegin(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()

	for range 10 { // a select between the lock and the ended context picks either
		op := uuid.New()
		_, err := h.environment(gone).ExecuteActivity(workflows.UninstallActivity, workflows.InstallInput{Operation: op, Target: target()})
		require.Error(t, err)
		_, known := h.journal.Step(journal.StepKey{Operation: op, Name: workflows.UninstallActivity})
		require.False(t, known)
	}
}

// A step that is cancelled while it changes hardware ends as cancelled and
// leaves the handle in doubt, until it is undone.
func TestCancelledStepReportsCancellation(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ready()
	h.edit(func(c *fake.Card) { c.Latency[fake.StepAttach] = fake.Duration(time.Minute) })

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	op := uuid.New()

	env := h.environment(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := env.ExecuteActivity(workflows.AttachActivity, attach(op, handle))
		ended <- err
	}()

	require.Eventually(t, func() bool { return h.fate.count("attach") == 1 }, 5*time.Minute, time.Millisecond)
	cancel()
	err := <-ended
	require.True(t, temporal.IsCanceledError(err), "%v", err)
	require.False(t, h.attachedNow(handle))
	require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentInDoubt}, h.attachments())

	h.edit(func(c *fake.Card) { clear(c.Latency) })
	h.must(workflows.DetachActivity, undo(detach(op, handle)), nil)
	require.Empty(t, h.attachments())
}

// A step that changes nothing is given up when the agent stops, and its error
// says so.
func TestStopEndsReadOnlySteps(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.inventory.Scan(t.Context())
	h.edit(func(c *fake.Card) { c.Latency[fake.StepDiscover] = fake.Duration(time.Minute) })

	env := h.environment(t.Context())
	stop := make(chan struct{})
	env.SetWorkerStopChannel(stop)
	close(stop)

	_, err := env.ExecuteActivity(workflows.DiscoverActivity, workflows.DiscoverInput{Host: hostName})
	require.Error(t, err)
	failure := workflows.FromFailure(err)
	require.Equal(t, cyborg.ErrUnavailable, failure.Kind, "%v", failure)
	require.Contains(t, failure.Message, "the agent stops")
}

// A step that changes hardware is finished although the agent stops.
func TestStopLetsHardwareChangesFinish(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	env := h.environment(t.Context())
	stop := make(chan struct{})
	env.SetWorkerStopChannel(stop)
	close(stop)
	_, err := env.ExecuteActivity(workflows.InstallActivity, workflows.InstallInput{Operation: uuid.New(), Target: target()})
	require.NoError(t, err)
	require.True(t, h.installed())
}

// A driver that panics fails its own activity, and the other backends go on.
func TestPanickingDriverIsIsolated(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	err := h.refused(cyborg.ErrInternal, workflows.ConfigureActivity, workflows.ConfigureInput{Request: cyborg.ConfigureRequest{
		Backend: "odd", Action: cyborg.ConfigureInstall, Driver: "odd",
	}})
	require.Contains(t, err.Message, "panicked: what a day")
	h.ready()
}
