package journey_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"flag"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	temporallog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/workers/conductor"
	"github.com/cyborg-project/cyborg/workflows"
)

// record is the release for which the histories are written into the corpus of
// workflows/replay_test.go, such as v0.2.
var record = flag.String("record", "", "write the histories of TestHistoriesReplay to workflows/testdata/histories/<release>")

// corpus is the directory of the recorded histories.
const corpus = "../../workflows/testdata/histories"

// historian runs operations and keeps the histories of their workflows.
type historian struct {
	t        *testing.T
	s        *harness.Standalone
	temporal client.Client
	kept     map[string]*historypb.History // by <workflow>-<case>
}

// newHistorian returns a historian for a standalone.
func newHistorian(t *testing.T, s *harness.Standalone) *historian {
	t.Helper()
	return &historian{t: t, s: s, temporal: s.TemporalClient(t), kept: map[string]*historypb.History{}}
}

// keep waits for the end of a run and keeps its history. An empty run id means
// the last run of the workflow.
func (h *historian) keep(name, workflowID, runID string) {
	h.t.Helper()
	history := &historypb.History{}

	events := h.temporal.GetWorkflowHistory(h.t.Context(), workflowID, runID, true, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		event, err := events.Next()
		require.NoError(h.t, err)
		history.Events = append(history.Events, event)
	}

	workflow := history.Events[0].GetWorkflowExecutionStartedEventAttributes().GetWorkflowType().GetName()
	h.kept[workflow+"-"+name] = history
}

// play begins an operation, waits until it ends in this state, and keeps its
// history under the name of the case.
func (h *historian) play(name string, state cyborg.OperationState, begin func() (apiclient.Answer, error)) {
	h.t.Helper()

	answer, err := begin()
	require.NoError(h.t, err, name)

	require.NotNil(h.t, answer.Operation, name)
	h.end(name, state, answer.Operation.ID)
}

// end waits until an operation ends in this state, and keeps its history.
func (h *historian) end(name string, state cyborg.OperationState, id uuid.UUID) {
	h.t.Helper()
	op := ended(h.t, h.s, caught{id: id})
	require.Equal(h.t, state, op.State, "%s %s: %+v", op.Kind, name, op.Error)
	h.keep(name, op.WorkflowID, "")
}

// fail makes these steps fail on the accelerator's card. Failures from before
// are removed.
func (h *historian) fail(a apiclient.Accelerator, failure fake.Failure, steps ...fake.Step) {
	h.t.Helper()

	device, err := h.s.API.Device(h.t.Context(), a.DeviceUUID)
	require.NoError(h.t, err)
	require.NoError(h.t, h.s.BenchOf(&a).Edit(h.t.Context(), device.Identity, func(c *fake.Card) {
		clear(c.Fail)
		for _, step := range steps {
			c.Fail[step] = failure
		}
	}))
}

// operations takes every kind of operation to every kind of end. Each kind has
// two cards: one until it succeeds, one that ends in error.
func (h *historian) operations(cards []apiclient.Accelerator) {
	undoes := map[string]fake.Step{
		"provision": fake.StepUninstall, "program": fake.StepProgram, "attach": fake.StepDetach, "detach": fake.StepAttach,
		"retire": fake.StepInstall,
	}
	once := fake.Failure{Times: 1, Kind: cyborg.ErrHardware, When: fake.After}
	always := fake.Failure{Times: fake.Always, Kind: cyborg.ErrHardware, When: fake.After}
	busy := fake.Failure{Times: 1, Kind: cyborg.ErrBusy, When: fake.Before}
	refused := fake.Failure{Times: 1, Kind: cyborg.ErrUnsupported, When: fake.Before}

	for i, stage := range stages("fake") {
		a := cards[i]
		begin := func() (apiclient.Answer, error) { return stage.begin(h.t.Context(), h.t, h.s, a.UUID) }
		stage.before(h.t, h.s, a.UUID)
		stage.before = func(*testing.T, *harness.Standalone, uuid.UUID) {}

		h.fail(a, once, stage.step)
		h.play("failed", cyborg.OperationFailed, begin)
		h.fail(a, refused, stage.step)
		h.play("refused", cyborg.OperationFailed, begin)

		c := catch(h.t, h.s, stage, a.UUID)
		_, err := h.s.API.CancelOperation(h.t.Context(), c.id)
		require.NoError(h.t, err)
		h.end("cancelled", cyborg.OperationCancelled, c.id)
		c.requireUndone(h.t, h.s, cyborg.OperationCancelled)

		c.hurry(h.t, h.s)

		h.abandon(stage, a)

		h.fail(a, busy, stage.step)
		h.play("tried-again", cyborg.OperationSucceeded, begin)
		harness.RequireSound(h.t, h.s)

		// The other card: after this end it needs an operator.
		a = cards[i+5]
		stages("fake")[i].before(h.t, h.s, a.UUID)

		succeed := begin
		if stage.name == "program" { // another image, so that the undo has one to restore
			succeed = func() (apiclient.Answer, error) {
				other := cyborg.Image{Source: image(h.t, h.s, "fake", "aes"), ID: "aes-1"}
				return h.s.API.Program(h.t.Context(), a.UUID, other, apiclient.Async())
			}
		}

		if stage.name != "provision" { // an accelerator that is ready already cannot be provisioned
			h.play("succeeded", cyborg.OperationSucceeded, succeed)
		}

		switch stage.name {
		case "attach":
			_, err = h.s.API.Detach(h.t.Context(), a.UUID, cyborg.Holder{})
			require.NoError(h.t, err)
		case "detach", "retire":
			h.again(stage.name, a)
		}

		h.fail(a, always, stage.step, undoes[stage.name])
		h.play("needs-operator", cyborg.OperationNeedsOperator, begin)
		h.fail(a, always)

		if stage.name == "provision" {
			h.play("succeeded", cyborg.OperationSucceeded, succeed)
		}
	}
}

// abandon terminates a run from outside. It keeps the history of that run and
// of the one that Reconcile starts after it.
func (h *historian) abandon(stage stage, a apiclient.Accelerator) {
	h.t.Helper()
	c := catch(h.t, h.s, stage, a.UUID)

	op, err := h.s.API.Operation(h.t.Context(), c.id)
	require.NoError(h.t, err)

	run, err := h.temporal.DescribeWorkflowExecution(h.t.Context(), op.WorkflowID, "")
	require.NoError(h.t, err)

	require.NoError(h.t, h.temporal.TerminateWorkflow(h.t.Context(), op.WorkflowID, "", "by hand"))
	h.keep("terminated", op.WorkflowID, run.GetWorkflowExecutionInfo().GetExecution().GetRunId())

	if stage.name != "detach" && stage.name != "retire" {
		h.end("abandoned", cyborg.OperationCancelled, c.id)
		c.hurry(h.t, h.s)
		return
	}

	c.hurry(h.t, h.s)
	h.end("abandoned", cyborg.OperationSucceeded, c.id)
	h.again(stage.name, a)
}

// again undoes a detach or a retire, so that it can be run again.
func (h *historian) again(stage string, a apiclient.Accelerator) {
	h.t.Helper()

	var err error
	if stage == "retire" {
		_, err = h.s.API.MakeReady(h.t.Context(), a.UUID)
	} else {
		_, err = h.s.API.Attach(h.t.Context(), a.UUID, cyborg.Holder{Kind: cyborg.HolderHost, ID: a.Host})
	}

	require.NoError(h.t, err)
}

// more records the ends that only one kind of operation can have.
func (h *historian) more(a, spare apiclient.Accelerator) {
	t, ctx := h.t, h.t.Context()
	stages("fake")[1].before(t, h.s, a.UUID)
	program := func() (apiclient.Answer, error) { return stages("fake")[1].begin(ctx, t, h.s, a.UUID) }

	h.fail(a, fake.Failure{Times: 1, Kind: cyborg.ErrImageRejected, When: fake.Before}, fake.StepCheckImage)
	h.play("image-rejected", cyborg.OperationFailed, program)

	instance := cyborg.Holder{Kind: cyborg.HolderInstance, ID: "b5c0f1b6-6c1e-4c5e-8c8e-0d6b1c6a4a11"}
	h.play("instance", cyborg.OperationSucceeded, func() (apiclient.Answer, error) { return h.s.API.Attach(ctx, a.UUID, instance, apiclient.Async()) })

	h.fail(a, fake.Failure{Times: 1, Kind: cyborg.ErrInUse, When: fake.Before}, fake.StepInUse)
	detach := func() (apiclient.Answer, error) { return h.s.API.Detach(ctx, a.UUID, instance, apiclient.Async()) }

	h.play("in-use", cyborg.OperationFailed, detach)
	h.play("instance", cyborg.OperationSucceeded, detach)

	store := h.s.Store(t)
	c := admit(t, h.s, store, stages("fake")[2], spare)

	_, err := h.s.API.CancelOperation(ctx, c.id)
	require.NoError(t, err)
	h.end("never-began", cyborg.OperationCancelled, c.id)

	h.play("install", cyborg.OperationSucceeded, func() (apiclient.Answer, error) {
		return h.s.API.InstallDriver(ctx, "fake", "second", "fake", cyborg.JSONObject{"park": "1xnic", "domain": "00fb"}, apiclient.Async())
	})
	h.play("failed", cyborg.OperationFailed, func() (apiclient.Answer, error) {
		return h.s.API.UpdateDriver(ctx, "fake", "second", cyborg.JSONObject{"park": "many"}, apiclient.Async())
	})
	h.play("uninstall", cyborg.OperationSucceeded, func() (apiclient.Answer, error) {
		return h.s.API.UninstallDriver(ctx, "fake", "second", apiclient.Async())
	})
}

// prepared records operations on a card whose handles its host prepares.
func (h *historian) prepared() {
	t, ctx := h.t, h.t.Context()
	_, err := h.s.API.InstallDriver(ctx, "fake", "third", "fake", cyborg.JSONObject{"park": "1xfpga", "domain": "00fc", "prepares": true})
	require.NoError(t, err)
	found, err := apiclient.Collect(h.s.API.Accelerators(ctx, apiclient.AcceleratorFilter{}, apiclient.Page{}))
	require.NoError(t, err)
	at := slices.IndexFunc(found, func(a apiclient.Accelerator) bool { return a.Backend == "third" })
	require.GreaterOrEqual(t, at, 0)
	a := found[at]
	_, err = h.s.API.MakeReady(ctx, a.UUID)
	require.NoError(t, err)

	instance := cyborg.Holder{Kind: cyborg.HolderInstance, ID: "b5c0f1b6-6c1e-4c5e-8c8e-0d6b1c6a4a12"}
	attach := func() (apiclient.Answer, error) {
		return h.s.API.AttachWith(ctx, a.UUID, instance, map[string]string{"vlan": "7"}, apiclient.Async())
	}
	detach := func() (apiclient.Answer, error) { return h.s.API.Detach(ctx, a.UUID, instance, apiclient.Async()) }
	broken := fake.Failure{Times: 1, Kind: cyborg.ErrHardware, When: fake.After}
	h.fail(a, broken, fake.StepAttach)
	h.play("prepared-failed", cyborg.OperationFailed, attach)
	h.play("prepared", cyborg.OperationSucceeded, attach)
	h.fail(a, broken, fake.StepDetach)
	h.play("prepared-failed", cyborg.OperationFailed, detach)
	h.play("prepared", cyborg.OperationSucceeded, detach)

	profile(t, h.s, "vlan", map[string]string{"resources:FPGA": "1", "accel:parameter:vlan": "8"})
	patch := func(name, arq, instance string, state cyborg.OperationState) {
		id, _ := patchRequest(t, h.s, arq, a, instance)
		h.end(name, state, id)
	}
	h.fail(a, broken, fake.StepAttach)
	patch("prepared-failed", makeRequest(t, h.s, "vlan"), uuid.NewString(), cyborg.OperationFailed)
	arq := makeRequest(t, h.s, "vlan")
	patch("prepared", arq, uuid.NewString(), cyborg.OperationSucceeded)
	h.fail(a, broken, fake.StepDetach)
	patch("prepared-failed", arq, "", cyborg.OperationFailed)
	require.Equal(t, cyborg.ARQUnbindFailed, stateOf(t, h.s, arq))
	patch("prepared", arq, "", cyborg.OperationSucceeded)

	arq = makeRequest(t, h.s, "vlan")
	patch("prepared", arq, uuid.NewString(), cyborg.OperationSucceeded)
	status, _, _ := request(t, h.s, "DELETE", requestsPath+"?arqs="+arq, nil)
	require.Equal(t, http.StatusNoContent, status)
	harness.RequireSound(t, h.s)
}

// cleaned records cleans of a card in service. Nobody but this asks for them, because the card is in
// maintenance.
func (h *historian) cleaned(a apiclient.Accelerator) {
	t, ctx := h.t, h.t.Context()
	_, err := h.s.API.Maintain(ctx, a.UUID, apiclient.Maintaining{Reason: "cleaning day"})
	require.NoError(t, err)

	scrub := stage{
		name: "clean", step: fake.StepClean, activity: workflows.CleanActivity, before: func(*testing.T, *harness.Standalone, uuid.UUID) {},
		begin: func(ctx context.Context, _ *testing.T, s *harness.Standalone, id uuid.UUID) (apiclient.Answer, error) {
			return s.API.Clean(ctx, id, apiclient.Cleaning{Method: cyborg.CleanScrub}, apiclient.Async())
		},
	}
	begin := func() (apiclient.Answer, error) { return scrub.begin(ctx, t, h.s, a.UUID) }

	h.fail(a, fake.Failure{Times: 1, Kind: cyborg.ErrHardware, When: fake.After}, scrub.step)
	h.play("failed", cyborg.OperationFailed, begin)
	h.fail(a, fake.Failure{Times: 1, Kind: cyborg.ErrUnsupported, When: fake.Before}, scrub.step)
	h.play("refused", cyborg.OperationFailed, begin)

	c := catch(t, h.s, scrub, a.UUID)
	_, err = h.s.API.CancelOperation(ctx, c.id)
	require.NoError(t, err)
	h.end("cancelled", cyborg.OperationCancelled, c.id)
	c.hurry(t, h.s)
	h.abandon(scrub, a)

	h.play("declared", cyborg.OperationSucceeded, func() (apiclient.Answer, error) {
		return h.s.API.Clean(ctx, a.UUID, apiclient.Cleaning{Declared: "wiped by hand"}, apiclient.Async())
	})
	h.fail(a, fake.Failure{Times: 1, Kind: cyborg.ErrBusy, When: fake.Before}, scrub.step)
	h.play("tried-again", cyborg.OperationSucceeded, begin)
	h.play("succeeded", cyborg.OperationSucceeded, begin)
	harness.RequireSound(t, h.s)
}

// divided records partitions of the card of an accelerator that nobody has.
func (h *historian) divided(a apiclient.Accelerator) {
	t, ctx := h.t, h.t.Context()
	_, err := h.s.API.UpdateDriver(ctx, "fake", "fake", cyborg.JSONObject{"park": "12xfpga", "partition": true})
	require.NoError(t, err)
	requireLayout(ctx, t, h.s, a.DeviceUUID, cyborg.Layout{}, nil)

	into := func(layout cyborg.Layout) func() (apiclient.Answer, error) {
		return func() (apiclient.Answer, error) {
			return h.s.API.PartitionDevice(ctx, a.DeviceUUID, layout, apiclient.Async())
		}
	}
	halves, quarter := into(cyborg.Layout{"half": 2}), into(cyborg.Layout{"quarter": 1})
	divide := stage{
		name: "partition", step: fake.StepPartition, activity: workflows.PartitionActivity, before: func(*testing.T, *harness.Standalone, uuid.UUID) {},
		begin: func(context.Context, *testing.T, *harness.Standalone, uuid.UUID) (apiclient.Answer, error) {
			return halves()
		},
	}

	h.fail(a, fake.Failure{Times: 1, Kind: cyborg.ErrHardware, When: fake.After}, divide.step)
	h.play("failed", cyborg.OperationFailed, halves)
	h.play("refused", cyborg.OperationFailed, into(cyborg.Layout{"half": 2, "quarter": 1}))

	c := catch(t, h.s, divide, a.UUID)
	_, err = h.s.API.CancelOperation(ctx, c.id)
	require.NoError(t, err)
	h.end("cancelled", cyborg.OperationCancelled, c.id)
	c.hurry(t, h.s)
	h.abandon(divide, a)

	h.fail(a, fake.Failure{Times: 1, Kind: cyborg.ErrBusy, When: fake.Before}, divide.step)
	h.play("tried-again", cyborg.OperationSucceeded, halves)
	h.fail(a, fake.Failure{Times: fake.Always, Kind: cyborg.ErrHardware, When: fake.After}, divide.step)
	h.play("needs-operator", cyborg.OperationNeedsOperator, quarter)
	h.fail(a, fake.Failure{})
	h.play("succeeded", cyborg.OperationSucceeded, into(cyborg.Layout{}))
	harness.RequireSound(t, h.s)
}

// hosts records queries and operations on hosts that answer, and on one that
// does not.
func (h *historian) hosts(a *harness.Agent) {
	t, ctx := h.t, h.t.Context()
	found, err := apiclient.Collect(h.s.API.Accelerators(ctx, apiclient.AcceleratorFilter{Hosts: []string{a.Host}}, apiclient.Page{}))
	require.NoError(t, err)
	card := found[0]

	// Queries with and without an answer from every host.
	_, err = h.s.API.Discover(ctx, "fake")
	require.NoError(t, err)
	census, err := h.s.API.Usage(ctx)
	require.NoError(t, err)
	require.False(t, census.Partial)

	a.Freeze(t)
	census, err = h.s.API.Usage(ctx)
	require.NoError(t, err)
	require.True(t, census.Partial)
	a.Thaw(t)

	// Operations that wait for an agent in vain: before their step and during it.
	a.Kill(t)
	h.play("host-silent", cyborg.OperationFailed, func() (apiclient.Answer, error) { return h.s.API.MakeReady(ctx, card.UUID, apiclient.Async()) })
	a.Restart(t)

	c := catch(t, h.s, stages(rack)[2], card.UUID)
	a.Kill(t)
	_, err = h.s.API.Discover(ctx, a.Host)
	require.Equal(t, cyborg.ErrHostSilent, cyborg.ErrorKindOf(err), "%v", err)
	h.end("host-silent", cyborg.OperationNeedsOperator, c.id)

	// A detach by force, for the handle that is in doubt.
	h.play("forced", cyborg.OperationSucceeded, func() (apiclient.Answer, error) {
		return h.s.API.ForceDetach(ctx, card.UUID, cyborg.Holder{}, apiclient.Async())
	})

	c.hurry(t, h.s)
	a.Restart(t)
}

// runs keeps histories of these workflows, which are not operations: one for
// each kind of end.
func (h *historian) runs(names ...string) {
	t := h.t
	for _, name := range names {
		var page []byte
		for {
			found, err := h.temporal.ListWorkflow(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{
				Query: "WorkflowType='" + name + "' AND ExecutionStatus != 'Running'", NextPageToken: page,
			})
			require.NoError(t, err)

			for _, run := range found.GetExecutions() {
				of := run.GetExecution()
				h.keep(h.outcome(name, of.GetWorkflowId(), of.GetRunId()), of.GetWorkflowId(), of.GetRunId())
			}

			if page = found.GetNextPageToken(); len(page) == 0 {
				break
			}
		}
	}
}

// outcome returns a name for the end of a run.
func (h *historian) outcome(workflow, workflowID, runID string) string {
	h.t.Helper()
	run := h.temporal.GetWorkflow(h.t.Context(), workflowID, runID)

	switch workflow {
	case workflows.ReconcileWorkflow, workflows.SettleHostWorkflow:
		var result workflows.ReconcileResult
		if err := run.Get(h.t.Context(), &result); err != nil {
			return "failed"
		}

		switch {
		case result.Placement != nil && len(result.Placement.Drift) > 0:
			return "drift"
		case result.Placement != nil && result.Placement.Compared > 0:
			return "compared"
		case result.Settled > 0:
			return "settled"
		case len(result.Unsettled) > 0:
			return "unsettled"
		case result.Adopted.Started > 0:
			return "adopted"
		case len(result.Found.OverdueHosts) > 0:
			return "overdue"
		}
		return "nothing"
	case workflows.CensusWorkflow:
		var census cyborg.Census
		if err := run.Get(h.t.Context(), &census); err != nil {
			return "failed"
		}
		if census.Partial {
			return "partial"
		}

		return "whole"
	default:
		if err := run.Get(h.t.Context(), nil); err != nil {
			return "failed"
		}
		return "succeeded"
	}
}

// TestHistoriesReplay brings workflows to every end on a running system. The
// histories replay with the workflows of this tree. With -record they are also
// written into the corpus, so that later releases replay them.
func TestHistoriesReplay(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:12xfpga"}, Env: append(shortWaits(), impatience()...)})
	h := newHistorian(t, s)

	cards := s.Accelerators(t)
	require.Len(t, cards, 12)

	h.operations(cards[:10])
	h.more(cards[10], cards[11])
	h.requests(cards[10])
	h.prepared()
	h.cleaned(cards[11])
	h.divided(cards[11])
	h.hosts(s.StartAgent(t, rack, "1xfpga"))
	h.runs(workflows.ReconcileWorkflow, workflows.SettleHostWorkflow, workflows.CensusWorkflow, workflows.DiscoverWorkflow)

	h.replay()
}

// replay replays the kept histories. With -record it also writes them into the
// corpus.
func (h *historian) replay() {
	h.t.Helper()

	replayer, err := worker.NewWorkflowReplayerWithOptions(worker.WorkflowReplayerOptions{
		DisableDeadlockDetection: true, // a busy machine may take more than its second
	})
	require.NoError(h.t, err)
	conductor.RegisterWorkflows(replayer)

	log := temporallog.NewStructuredLogger(slog.New(slog.DiscardHandler))
	for name, history := range h.kept {
		require.NoError(h.t, replayer.ReplayWorkflowHistory(log, history), name)
	}

	if *record == "" {
		return
	}

	dir := filepath.Join(corpus, *record)
	require.NoError(h.t, os.MkdirAll(dir, 0o755))
	for name, history := range h.kept {
		require.NoError(h.t, os.WriteFile(filepath.Join(dir, name+".json.gz"), packed(h.t, history), 0o644))
	}

	h.t.Logf("recorded %d histories", len(h.kept))
}

// packed returns a history as the corpus holds it: compressed, and without
// names of the machine that recorded it.
func packed(t *testing.T, history *historypb.History) []byte {
	t.Helper()

	text, err := protojson.Marshal(history)
	require.NoError(t, err)

	var tree any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	require.NoError(t, decoder.Decode(&tree))

	anonymize(tree)

	text, err = json.Marshal(tree)
	require.NoError(t, err)

	machine, err := os.Hostname()
	require.NoError(t, err)
	require.NotContains(t, string(text), "@"+machine+"/", "the identity of a worker names the machine")
	require.NotContains(t, string(text), `"`+machine+":", "a sticky task queue names the machine")

	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	require.NoError(t, err)
	_, err = w.Write(text)
	require.NoError(t, err)
	require.NoError(t, w.Close())

	return out.Bytes()
}

// placePattern matches the path of a test's temporary directory.
var placePattern = regexp.MustCompile(`/[^"\\ ]*/Test[A-Za-z]+[0-9]+/[0-9]+`)

// anywhere replaces such a path in the corpus.
const anywhere = "/etc/nova/nova.conf.d"

// placeless returns an encoded payload with the temporary directories replaced.
func placeless(data any) any {
	encoded, _ := data.(string)

	payload, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || !placePattern.Match(payload) {
		return data
	}

	return base64.StdEncoding.EncodeToString(placePattern.ReplaceAll(payload, []byte(anywhere)))
}

// anonymize replaces what describes the machine and the process. A replay does
// not depend on it.
func anonymize(tree any) {
	switch node := tree.(type) {
	case []any:
		for _, child := range node {
			anonymize(child)
		}
	case map[string]any:
		for key, child := range node {
			switch {
			case key == "identity":
				node[key] = "recorded"
			case key == "stackTrace":
				node[key] = ""
			case key == "name" && node["kind"] == "TASK_QUEUE_KIND_STICKY":
				node[key] = "sticky"
			case key == "data":
				node[key] = placeless(child)
			case key == "message":
				text, _ := child.(string)
				node[key] = placePattern.ReplaceAllString(text, anywhere)
			default:
				anonymize(child)
			}
		}
	}
}
