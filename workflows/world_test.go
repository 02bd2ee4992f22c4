package workflows_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/grant"
	"github.com/cyborg-project/cyborg/workflows"
)

// world is a host and the records of one accelerator, as small as they can be.
// The activities of an operation change it, so that a test can ask afterwards
// whether everything was undone.
type world struct {
	mu    sync.Mutex
	kind  cyborg.OperationKind
	work  cyborg.Work
	input workflows.OperationInput // besides what every run is given
	calls []string                 // every activity begun, in order
	// undone are the numbers under which the agent has seen a device after an undo.
	undone []int64

	// The records.
	begun    bool
	outcome  *cyborg.Outcome
	notified *cyborg.Outcome // what was recorded when Nova was notified
	failed   []string        // why requests have failed before the end
	taken    bool            // Nova answers at once

	// What Placement was asked.
	fenced  workflows.FencePlacementInput
	checked workflows.CheckAllocationsInput

	// The hardware.
	installed   bool
	attached    map[string]bool // the handles, by identity
	image       string
	pending     *cyborg.PendingImage // what was loaded, where it takes effect later
	whitelisted bool
	staged      workflows.StageInput
	programmed  workflows.ProgramInput
	cleaned     []workflows.CleanInput
	layout      cyborg.Layout // how the device is divided
	divided     workflows.PartitionInput
	looked      []cyborg.GivenHandles // what the host was asked to look at

	// pulled says that the card is off the bus: the agent answers that it has done
	// what it was asked for, and has seen nothing.
	pulled bool

	// failAt makes the call with that index fail, before its effect or after it.
	failAt    int
	failAfter bool
	failure   error
	failUndo  bool  // every undo fails as well
	refuse    error // what an agent that has lost its journal answers to the attempt after the failed one
	cancelAt  int
	cancel    func()
	busy      int // how often the agent is found without a slot
	unstaged  int // how often the host does not have the staged image any more
	// lostFrom is the deployable for which it does not; empty for all.
	lostFrom string
	// supersededAt is the index of the call from which on another run has the
	// operation.
	supersededAt int
	// asked says that the records have said that the run has the operation, and that
	// nothing was waited for since. unasked are the steps that were sent without it.
	asked   bool
	unasked []string
	// found is what was found in Glance, and unpermitted are the activities that were
	// sent although nothing that the conductor signs permits them.
	found       []workflows.Permitted
	unpermitted []string
	// number is the operation's assignment number, and hostSaw the highest that the
	// host has seen.
	number, hostSaw int64
	// unanswered is how often the records cannot say which run has the operation.
	unanswered int
	// over says that the run has ended. A local activity that it gave up may still
	// be on its way.
	over bool
}

// never is the index of no call.
const never = -1

// newWorld returns a world in which an operation of the kind succeeds.
func newWorld(kind cyborg.OperationKind) *world {
	holder := cyborg.Holder{Kind: cyborg.HolderHost, ID: "h1"}
	w := &world{
		kind: kind, failAt: never, cancelAt: never, supersededAt: never, image: "before", attached: map[string]bool{},
		work: cyborg.Work{
			Operation: uuid.New(), Kind: kind, Host: "h1",
			Targets: []cyborg.Target{{Accelerator: uuid.New(), Backend: "fake", Device: "d", Deployable: "d0", BitstreamID: "before"}},
			Handles: []cyborg.WorkHandle{{UUID: uuid.New(), Identity: "0000:01:00.0", Holder: holder}},
		},
	}

	switch kind {
	case cyborg.OperationDetach:
		w.attached = w.attachedBefore()
	case cyborg.OperationRetire:
		w.installed = true
	case cyborg.OperationProgram:
		w.work.Program = &cyborg.ProgramRequest{Image: cyborg.Image{Source: "new.img"}}
	case cyborg.OperationBind:
		w.work.Loads, w.work.Within = []cyborg.ImageLoad{{Accelerator: w.work.Targets[0].Accelerator, Image: cyborg.Image{Source: "new.img"}}}, time.Hour
	case cyborg.OperationUnbind:
		w.work.Handles[0].Accelerator = w.work.Targets[0].Accelerator
		w.work.Handles[0].Holder.Kind = cyborg.HolderInstance
	case cyborg.OperationWhitelist:
		w.work.Whitelist = &cyborg.WhitelistWork{Entries: []cyborg.WhitelistEntry{{Target: w.work.Targets[0]}}}
	case cyborg.OperationClean:
		w.work.Clean = []cyborg.HandleToClean{{UUID: w.work.Handles[0].UUID, Identity: w.work.Handles[0].Identity, Method: cyborg.CleanScrub}}
		w.work.Handles = nil
	case cyborg.OperationPartition:
		w.layout = cyborg.Layout{"vf": 2}
		w.work.Handles = nil
		w.work.Partition = &cyborg.PartitionWork{
			Device: cyborg.DeviceTarget{UUID: uuid.New(), Backend: "fake", Identity: "d", Deployables: []string{"d0"}}, Layout: cyborg.Layout{"vf": 4},
		}
	case cyborg.OperationConfigure:
		w.work.Configure = &cyborg.ConfigureRequest{Host: "h1", Backend: "fake", Action: cyborg.ConfigureInstall}
	default:
	}

	return w
}

// call is one activity. It can be made to fail before or after its effect, or
// to be cancelled.
func (w *world) call(ctx context.Context, name string, undo bool, effect func()) error {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.over {
		return cyborg.Errorf(cyborg.ErrCancelled, "the run is over")
	}

	index := len(w.calls)
	w.calls = append(w.calls, name)

	switch name {
	case "Begin", "Record", "End", "FailARQs":
		if w.supersededAt != never && index >= w.supersededAt {
			return workflows.ToFailure(cyborg.Errorf(cyborg.ErrSuperseded, "another run has it"))
		}
		w.asked = w.asked || name != "FailARQs" // which a run says while its step is under way
	default:
		if askedFirst := name != "Find" && name != "Fence" && name != "CheckAllocations" && name != "NotifyNova"; askedFirst && !w.asked {
			w.unasked = append(w.unasked, name)
		}
		w.asked = w.asked && name == "NotifyNova" // a coroutine of its own
	}
	if index == w.cancelAt {
		w.cancel()
		if name != "Begin" && name != "Record" && name != "End" && index != w.failAt {
			return nil // cancelled before an agent took it
		}
	}

	if undo && w.failUndo {
		return workflows.ToFailure(cyborg.Errorf(cyborg.ErrHardware, "undo broke"))
	}
	if index == w.failAt && !w.failAfter {
		return workflows.ToFailure(w.failure)
	}
	if w.refuse != nil && index == w.failAt+1 {
		return workflows.ToFailure(w.refuse)
	}

	effect()
	if index == w.failAt {
		return workflows.ToFailure(w.failure)
	}
	if undo && name != "RestoreWhitelist" && !w.pulled { // which looks at no device
		w.undone = append(w.undone, int64(index))
	}
	return ctx.Err()
}

// register registers the activities, each of which changes the world.
func (w *world) register(env *testsuite.TestWorkflowEnvironment) {
	on := func(name string, f any) { env.RegisterActivityWithOptions(f, activity.RegisterOptions{Name: name}) }

	// Activities and local activities run at the same time, so each look at the
	// world and each change of it holds its lock.
	note := func(what func()) {
		w.mu.Lock()
		defer w.mu.Unlock()
		what()
	}

	seen := func(of cyborg.Target) workflows.ChangeResult {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.pulled {
			return workflows.ChangeResult{}
		}
		return workflows.ChangeResult{Observation: cyborg.Observation{
			Sequence: int64(len(w.calls)), Backend: of.Backend, Device: cyborg.DeviceReport{Identity: of.Device},
		}}
	}

	on(workflows.BeginActivity, func(ctx context.Context, _ workflows.BeginInput) (cyborg.Work, error) {
		return w.work, w.call(ctx, "Begin", false, func() { w.begun = true })
	})
	on(workflows.RecordActivity, func(ctx context.Context, _ workflows.RecordInput) error {
		return w.call(ctx, "Record", false, func() {})
	})
	on(workflows.EndActivity, func(ctx context.Context, outcome cyborg.Outcome) (workflows.EndResult, error) {
		err := w.call(ctx, "End", false, func() { w.outcome = &outcome })
		return workflows.EndResult{Notified: w.taken && len(outcome.Notify) > 0}, err
	})
	on(workflows.CheckRunActivity, func(_ context.Context, in workflows.CheckRunInput) (workflows.CheckRunResult, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.supersededAt != never && len(w.calls) >= w.supersededAt {
			return workflows.CheckRunResult{}, workflows.ToFailure(cyborg.Errorf(cyborg.ErrSuperseded, "another run has it"))
		}
		if w.unanswered--; w.unanswered >= 0 {
			return workflows.CheckRunResult{}, workflows.ToFailure(cyborg.Errorf(cyborg.ErrInternal, "broken record"))
		}
		w.asked = true
		if in.Late {
			w.number++
		}
		return workflows.CheckRunResult{Agent: cyborg.Agent{Instance: "agent-2"}, Assignment: w.number}, nil
	})
	on(workflows.LastSeenActivity, func(context.Context, workflows.LastSeenInput) (workflows.LastSeenResult, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.busy--
		return workflows.LastSeenResult{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Busy: w.busy >= 0}, nil
	})

	on(workflows.InstallActivity, func(ctx context.Context, in workflows.InstallInput) (workflows.ChangeResult, error) {
		return seen(in.Target), w.call(ctx, "Install", in.Undo, func() { w.installed = true })
	})
	on(workflows.UninstallActivity, func(ctx context.Context, in workflows.InstallInput) (workflows.ChangeResult, error) {
		return seen(in.Target), w.call(ctx, "Uninstall", in.Undo, func() { w.installed = false })
	})
	on(workflows.AttachActivity, func(ctx context.Context, in workflows.AttachInput) (workflows.ChangeResult, error) {
		if err := w.late(in.Addressee); err != nil {
			return workflows.ChangeResult{}, err
		}
		return seen(in.Target), w.call(ctx, "Attach", in.Undo, func() { w.attached[in.Handle.Identity] = true })
	})
	on(workflows.DetachActivity, func(ctx context.Context, in workflows.DetachInput) (workflows.ChangeResult, error) {
		if err := w.late(in.Addressee); err != nil {
			return workflows.ChangeResult{}, err
		}
		return seen(in.Target), w.call(ctx, "Detach", in.Undo, func() {
			for _, handle := range in.Handles {
				if handle.OnHost() { // the host only looks at any other
					delete(w.attached, handle.Identity)
				}
			}
		})
	})

	on(workflows.CleanActivity, func(ctx context.Context, in workflows.CleanInput) (workflows.CleanResult, error) {
		if err := w.late(in.Addressee); err != nil {
			return workflows.CleanResult{}, err
		}
		err := w.call(ctx, "Clean", false, func() { w.cleaned = append(w.cleaned, in) })
		return workflows.CleanResult{Observation: seen(in.Target).Observation, Evidence: evidence(in.Handle)}, err
	})

	on(workflows.PartitionActivity, func(ctx context.Context, in workflows.PartitionInput) (workflows.PartitionResult, error) {
		if err := w.late(in.Addressee); err != nil {
			return workflows.PartitionResult{}, err
		}
		err := w.call(ctx, "Partition", false, func() { w.divided, w.layout = in, in.Layout })
		result := workflows.PartitionResult{Observation: seen(cyborg.Target{Backend: in.Device.Backend, Device: in.Device.Identity}).Observation}
		result.Observation.Device.Deployables = []cyborg.DeployableReport{{Name: "vf0"}, {Name: "vf1"}}
		return result, err
	})
	on(workflows.RestoreLayoutActivity, func(ctx context.Context, in workflows.RestoreLayoutInput) (workflows.ChangeResult, error) {
		return seen(cyborg.Target{Backend: in.Device.Backend, Device: in.Device.Identity}),
			w.call(ctx, "RestoreLayout", true, func() { w.layout = cyborg.Layout{"vf": 2} })
	})

	on(workflows.CheckUseActivity, func(ctx context.Context, in workflows.CheckUseInput) error {
		note(func() { w.looked = append(w.looked, in.Given...) })
		return w.call(ctx, "CheckUse", false, func() {})
	})

	on(workflows.FindImageActivity, func(ctx context.Context, in workflows.FindImageInput) (workflows.FindImageResult, error) {
		asked := in
		in.Image.ID, in.Image.Checksum = "found", "sha512:00"
		found := workflows.FindImageResult{Image: in.Image, Function: "aes", Fetch: workflows.ImageFetch(in.Operation, "secret")}
		note(func() { w.found = append(w.found, asked.Permitted(found)...) })
		return found, w.call(ctx, "Find", false, func() {})
	})
	on(workflows.StageActivity, func(ctx context.Context, in workflows.StageInput) (workflows.StageResult, error) {
		note(func() { w.staged = in })
		return workflows.StageResult{SHA256: "abc", Size: 3}, w.call(ctx, "Stage", false, func() {})
	})
	on(workflows.ProgramActivity, func(ctx context.Context, in workflows.ProgramInput) (workflows.ProgramResult, error) {
		note(func() { w.programmed = in })
		if err := w.notStaged(ctx, in.Target.Deployable); err != nil {
			return workflows.ProgramResult{}, err
		}
		return workflows.ProgramResult{BitstreamID: "new", Pending: w.pending, Observation: cyborg.Observation{Sequence: 1}},
			w.call(ctx, "Program", false, func() { w.image = "new" })
	})
	on(workflows.RestoreActivity, func(ctx context.Context, in workflows.RestoreInput) (workflows.ChangeResult, error) {
		return seen(in.Target), w.call(ctx, "Restore", true, func() { w.image = in.Target.BitstreamID })
	})

	on(workflows.FencePlacementActivity, func(ctx context.Context, in workflows.FencePlacementInput) error {
		note(func() { w.fenced = in })
		return w.call(ctx, "Fence", false, func() {})
	})
	on(workflows.CheckAllocationsActivity, func(ctx context.Context, in workflows.CheckAllocationsInput) error {
		note(func() { w.checked = in })
		return w.call(ctx, "CheckAllocations", false, func() {})
	})

	on(workflows.FailARQsActivity, func(ctx context.Context, in workflows.FailARQsInput) error {
		return w.call(ctx, "FailARQs", false, func() { w.failed = append(w.failed, in.Reason) })
	})
	on(workflows.NotifyNovaActivity, func(ctx context.Context, _ workflows.NotifyNovaInput) error {
		return w.call(ctx, "NotifyNova", false, func() { w.notified = w.outcome })
	})

	on(workflows.WriteWhitelistActivity, func(ctx context.Context, in workflows.WhitelistInput) (workflows.WhitelistResult, error) {
		return workflows.WhitelistResult{File: "cyborg-pci.conf", Changed: true, Notes: []string{"restart"}},
			w.call(ctx, "WriteWhitelist", false, func() { w.whitelisted = len(in.Work.Entries) > 0 })
	})
	on(workflows.RestoreWhitelistActivity, func(ctx context.Context, _ workflows.WhitelistInput) error {
		return w.call(ctx, "RestoreWhitelist", true, func() { w.whitelisted = false })
	})

	on(workflows.ConfigureActivity, func(ctx context.Context, _ workflows.ConfigureInput) (workflows.ConfigureResult, error) {
		return workflows.ConfigureResult{State: cyborg.BackendOK}, w.call(ctx, "Configure", false, func() {})
	})
}

// requirePermitted notes an activity that changes something, or whose result is
// signed, and that follows neither from the work nor from an image that was found.
func (w *world) requirePermitted(info *activity.Info, args converter.EncodedValues) {
	name := info.ActivityType.Name
	if name == workflows.CheckUseActivity {
		return // it only looks
	}
	if info.TaskQueue != workflows.AgentQueue(w.work.Host) && name != workflows.FindImageActivity {
		return
	}

	var (
		raw  converter.RawValue
		find workflows.FindImageInput
		sent = grant.Step{Activity: name}
	)
	err := args.Get(&raw)
	if err == nil && name == workflows.FindImageActivity {
		err = args.Get(&find)
		find.Valid, find.Grant = 0, ""
		if err == nil {
			sent, err = grant.StepOf(name, find)
		}
	} else if err == nil {
		_, sent.Input, err = grant.Canonical(raw.Payload().GetData())
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	for _, permitted := range append(workflows.PermittedBy(w.work), w.found...) {
		if step, stepErr := grant.StepOf(permitted.Activity, permitted.Input); err == nil && stepErr == nil && step == sent {
			return
		}
	}
	w.unpermitted = append(w.unpermitted, fmt.Sprintf("%s with %s (%v)", name, raw.Payload().GetData(), err))
}

// late is what the host answers to a step whose number is lower than one that it
// has seen.
func (w *world) late(step workflows.Addressee) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if step.Assignment >= w.hostSaw {
		return nil
	}
	return workflows.ToFailure(cyborg.Errorf(cyborg.ErrLate, "this host has seen %d", w.hostSaw))
}

// notStaged is what a host answers that does not have the staged image any more;
// nil from one that has it.
func (w *world) notStaged(ctx context.Context, deployable string) error {
	w.mu.Lock()
	lost := w.unstaged > 0 && (w.lostFrom == "" || w.lostFrom == deployable)
	if lost {
		w.unstaged--
	}
	w.mu.Unlock()
	if !lost {
		return nil
	}

	if err := w.call(ctx, "NotStaged", false, func() {}); err != nil {
		return err
	}
	return workflows.ToFailure(cyborg.Errorf(cyborg.ErrNotStaged, "the agent has lost its journal"))
}

// limits are those of every run here.
func limits() workflows.Limits {
	return workflows.Limits{
		AgentWait: 30 * time.Second, Step: time.Minute, Stage: time.Minute, Program: 3 * time.Minute,
		Clean: time.Hour, Heartbeat: 15 * time.Second, Undo: 5 * time.Minute, Attempts: 3,
	}
}

// run plays the operation's workflow in the world and returns its result.
func (w *world) run(t *testing.T, abandoned bool) (workflows.OperationResult, error) {
	t.Helper()
	return w.play(t, abandoned, func(*testsuite.TestWorkflowEnvironment) {})
}

// runWith is run in an environment that change has prepared. The workflow must
// not fail.
func (w *world) runWith(t *testing.T, change func(env *testsuite.TestWorkflowEnvironment)) workflows.OperationResult {
	t.Helper()
	result, err := w.play(t, false, change)
	require.NoError(t, err)
	return result
}

// environment returns an environment for one run of a workflow. Its limits on real
// time are far beyond what a busy machine needs.
func environment() *testsuite.TestWorkflowEnvironment {
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	env.SetTestTimeout(10 * time.Minute)
	env.SetWorkerOptions(worker.Options{DeadlockDetectionTimeout: 10 * time.Minute})
	return env
}

// play runs the operation's workflow once, in an environment that change has
// prepared.
func (w *world) play(
	t *testing.T, abandoned bool, change func(env *testsuite.TestWorkflowEnvironment),
) (workflows.OperationResult, error) {
	t.Helper()
	env := environment()
	w.cancel = env.CancelWorkflow
	w.register(env)
	env.SetOnActivityStartedListener(func(info *activity.Info, _ context.Context, args converter.EncodedValues) {
		w.requirePermitted(info, args)
	})
	change(env)

	all := workflows.OperationWorkflows()
	at := slices.IndexFunc(all, func(o workflows.OperationWorkflow) bool { return o.Kind == w.kind })
	env.RegisterWorkflowWithOptions(all[at].Run, workflow.RegisterOptions{Name: string(w.kind)})

	in := w.input
	in.Operation, in.Limits, in.Abandoned = w.work.Operation, limits(), abandoned

	w.mu.Lock()
	w.over = false
	w.mu.Unlock()
	env.ExecuteWorkflow(string(w.kind), in)
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()

	require.True(t, env.IsWorkflowCompleted())
	require.Empty(t, w.unpermitted, "an activity was sent that the work does not permit; %s", w)
	require.Empty(t, w.unasked, "a step was sent although the records had not just said that the run has the operation; %s", w)
	var result workflows.OperationResult
	if err := env.GetWorkflowError(); err != nil {
		return result, err
	}
	require.NoError(t, env.GetWorkflowResult(&result))
	return result, nil
}

// requireUntouched asserts that the hardware is as it was before the operation.
func (w *world) requireUntouched(t *testing.T, because string) {
	t.Helper()
	before := newWorld(w.kind)
	require.Equal(t, before.installed, w.installed, "installed, %s", because)
	require.Equal(t, w.attachedBefore(), w.attached, "attached, %s", because)
	require.Equal(t, before.image, w.image, "image, %s", because)
	require.Equal(t, before.whitelisted, w.whitelisted, "whitelisted, %s", because)
	require.Equal(t, before.layout, w.layout, "layout, %s", because)
}

// attachedBefore are the handles that the host had attached before the operation.
func (w *world) attachedBefore() map[string]bool {
	attached := map[string]bool{}
	if w.kind != cyborg.OperationDetach && w.kind != cyborg.OperationUnbind {
		return attached
	}

	for _, handle := range w.work.Handles {
		if handle.OnHost() {
			attached[handle.Identity] = true
		}
	}
	return attached
}

func (w *world) String() string { return fmt.Sprintf("%s, calls %v", w.kind, w.calls) }
