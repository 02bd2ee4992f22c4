package chaos_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/internal/grant"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/workflows"
)

// trick is a way to make a step that nobody has sent.
type trick string

const (
	ungranted  trick = "without a grant"
	altered    trick = "altered"            // another step with a good grant
	raised     trick = "with a late number" // a good step with another assignment number than its grant has
	rewritten  trick = "rewritten"          // the claims are others than those that were signed
	foreignKey trick = "of a foreign key"   // signed by a key of the attacker
	borrowedID trick = "of a borrowed key"  // the same, under the name of a conductor's key
	foreign    trick = "of another host"    // a good step of another host
	readressed trick = "readdressed"        // the same, addressed to the agent of this one
	otherRun   trick = "of another run"     // a good step, by a run of the attacker
	expired    trick = "expired"            // a step of long ago
	replayed   trick = "replayed"           // a step that is done, once more as it was
)

// tricks are taken in turn.
func tricks() []trick {
	return []trick{ungranted, altered, replayed, raised, foreignKey, expired, rewritten, foreign, borrowedID, readressed, otherRun}
}

// expiry is for how long the grants of the cluster are good; see shortWaits.
const expiry = undoLimit + 10*time.Second + time.Minute

// forgePause is the pause between two forged steps for a host.
const forgePause = 60 * time.Millisecond

// sent is a step that an operation has sent to a host.
type sent struct {
	host, activity string
	input          map[string]any
	workflow, run  string
	at             time.Time
	done           bool
}

// forgery is a step that nobody has sent.
type forgery struct {
	trick trick
	sent
}

// forger makes forgeries from what operations have sent, and judges how the
// agents answer them.
type forger struct {
	t        *testing.T
	c        *harness.Cluster
	d        *driver
	temporal client.Client
	hostiles map[string]*hostile
	signer   *grant.Signer // of the attacker

	mu       sync.Mutex          // guards the fields below
	known    map[string][]sent   // by host, oldest first
	passed   map[string]*sent    // that agents have not answered yet, by their token
	victims  map[string][]victim // handles that somebody holds, by host
	open     map[string]forgery  // that agents have not answered yet, by their token
	turn     map[string]int      // how many were made, by host
	answers  map[string]int      // how many were answered, by host
	refused  map[trick]int
	repeated int   // replays that a journal has answered
	failed   error // the first one that an agent has taken
}

// victim is a handle that an attacker would like to take from its holder.
type victim struct {
	target cyborg.Target
	handle cyborg.WorkHandle
}

// startForger starts a hostile Temporal for each host. No agent knows it yet.
func startForger(t *testing.T, c *harness.Cluster, d *driver, temporal client.Client) *forger {
	t.Helper()
	g := &forger{
		t: t, c: c, d: d, temporal: temporal, hostiles: map[string]*hostile{}, signer: grant.NewSigner(),
		known: map[string][]sent{}, passed: map[string]*sent{}, victims: map[string][]victim{},
		open: map[string]forgery{}, turn: map[string]int{}, answers: map[string]int{}, refused: map[trick]int{},
	}
	for _, host := range c.Hosts {
		g.hostiles[host] = startHostile(t, c, g, host)
	}
	return g
}

// prepare collects, at rest, what was sent so far and who holds what, where the
// round has forgeries.
func (g *forger) prepare(ctx context.Context, r round) error {
	if !slices.ContainsFunc(r.faults, func(f fault) bool { return f.faultKind == forge }) {
		return nil
	}

	victims := map[string][]victim{}
	for _, host := range g.c.Hosts {
		all, err := g.d.accelerators(ctx, host)
		if err != nil {
			return err
		}

		for _, a := range all {
			for _, h := range a.Handles {
				if h.Holder == nil {
					continue
				}
				device, err := g.c.API.Device(ctx, a.DeviceUUID)
				if err != nil {
					return err
				}
				victims[host] = append(victims[host], victim{
					cyborg.Target{Accelerator: a.UUID, Backend: a.Backend, Device: device.Identity, Deployable: a.LocalName, BitstreamID: a.BitstreamID},
					cyborg.WorkHandle{UUID: h.UUID, Identity: h.Identity, Holder: *h.Holder},
				})
			}
		}
	}

	known, err := g.history(ctx)
	if err != nil {
		return err
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	g.known, g.victims = known, victims
	return nil
}

// runsRead is how many runs are read for what they have sent: those of some minutes,
// so that the grants of some have expired.
const runsRead = 200

// operationRuns finds the runs of operations that have ended.
const operationRuns = "ExecutionStatus = 'Completed' AND WorkflowType NOT IN ('" + workflows.ReconcileWorkflow + "', '" + workflows.PlacementSyncWorkflow + "')"

// history returns what operations have sent, as Temporal's histories have it.
func (g *forger) history(ctx context.Context) (map[string][]sent, error) {
	found, err := g.temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{
		Namespace: temporalclient.DefaultNamespace, Query: operationRuns, PageSize: runsRead,
	})
	if err != nil {
		return nil, err
	}

	known := map[string][]sent{}
	for _, run := range slices.Backward(found.GetExecutions()) { // they come newest first
		id := run.GetExecution()
		scheduled := map[int64]sent{}
		history := g.temporal.GetWorkflowHistory(ctx, id.GetWorkflowId(), id.GetRunId(), false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		for history.HasNext() {
			event, err := history.Next()
			if err != nil {
				return nil, err
			}

			if step := event.GetActivityTaskScheduledEventAttributes(); step != nil {
				host, ok := strings.CutPrefix(step.GetTaskQueue().GetName(), workflows.AgentQueue(""))
				if s, granted := readStep(step.GetInput()); ok && granted {
					s.host, s.activity, s.at = host, step.GetActivityType().GetName(), event.GetEventTime().AsTime()
					s.workflow, s.run = id.GetWorkflowId(), id.GetRunId()
					scheduled[event.GetEventId()] = s
				}
			}
			if done := event.GetActivityTaskCompletedEventAttributes(); done != nil {
				if s, ok := scheduled[done.GetScheduledEventId()]; ok {
					s.done = true
					scheduled[done.GetScheduledEventId()] = s
				}
			}
		}

		for _, at := range slices.Sorted(maps.Keys(scheduled)) {
			known[scheduled[at].host] = append(known[scheduled[at].host], scheduled[at])
		}
	}
	return known, nil
}

// readStep reads the input of a step; granted is false where it has no grant.
func readStep(payloads *commonpb.Payloads) (s sent, granted bool) {
	if len(payloads.GetPayloads()) != 1 {
		return s, false
	}
	s.input, _ = readInput(payloads.GetPayloads()[0].GetData()) // what is no JSON has no grant
	_, granted = s.input["grant"].(string)
	return s, granted
}

// readInput decodes the input of a step. Its numbers stay as they are: a float64
// would not hold them.
func readInput(text []byte) (input map[string]any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return input, decoder.Decode(&input)
}

// pass notes a step of an operation that goes through a hostile Temporal.
func (g *forger) pass(host string, task *workflowservice.PollActivityTaskQueueResponse) {
	s, granted := readStep(task.GetInput())
	if !granted {
		return
	}
	s.host, s.activity, s.at = host, task.GetActivityType().GetName(), time.Now()
	s.workflow, s.run = task.GetWorkflowExecution().GetWorkflowId(), task.GetWorkflowExecution().GetRunId()

	g.mu.Lock()
	defer g.mu.Unlock()
	g.passed[string(task.GetTaskToken())] = &s
	g.known[host] = append(g.known[host], s)
}

// done notes that a step which has passed was done.
func (g *forger) done(token string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.passed[token]; s != nil {
		delete(g.passed, token)
		s.done = true
		g.known[s.host] = append(g.known[s.host], *s)
	}
}

// begin has a host's agent take a hostile Temporal for the right one, and gives it
// forged steps until heal. That waits until at least one was answered.
func (g *forger) begin(ctx context.Context, host string) (heal func() error, err error) {
	link, h := g.c.Link(host, "temporal"), g.hostiles[host]
	link.Move(h.at)

	g.mu.Lock()
	before := g.answers[host]
	g.mu.Unlock()

	work, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for clock.Sleep(work, forgePause) == nil {
			task, err := g.next(host)
			if err != nil {
				g.fail(err)
				return
			}
			select {
			case h.forged <- task:
			case <-work.Done():
				g.drop(string(task.GetTaskToken()))
			}
		}
	}()

	return func() error {
		for g.answeredOf(host) == before && g.wrong() == nil && clock.Sleep(ctx, 50*time.Millisecond) == nil {
			continue // the agent comes back: the other faults end, too
		}
		stop()
		<-ended
		link.Move(g.c.Temporal())
		return nil
	}, nil
}

// answeredOf returns how many forged steps the agent of a host has answered.
func (g *forger) answeredOf(host string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.answers[host]
}

// next makes the next forged step for a host.
func (g *forger) next(host string) (*workflowservice.PollActivityTaskQueueResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		g.turn[host]++
		f, ok, err := g.make(tricks()[g.turn[host]%len(tricks())], host)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue // nothing was sent yet that this could be made from; there is always one without a grant
		}

		input, err := converter.GetDefaultDataConverter().ToPayloads(f.input)
		if err != nil {
			return nil, err
		}
		token := "forged-" + uuid.NewString()
		g.open[token] = f
		now := timestamppb.Now()
		return &workflowservice.PollActivityTaskQueueResponse{
			TaskToken: []byte(token), WorkflowNamespace: temporalclient.DefaultNamespace, WorkflowType: &commonpb.WorkflowType{Name: "Attach"},
			WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: f.workflow, RunId: f.run},
			ActivityType:      &commonpb.ActivityType{Name: f.activity}, ActivityId: "1", Input: input, Attempt: 1,
			ScheduledTime: now, CurrentAttemptScheduledTime: now, StartedTime: now,
			ScheduleToCloseTimeout: durationpb.New(time.Minute), StartToCloseTimeout: durationpb.New(time.Minute), HeartbeatTimeout: durationpb.New(10 * time.Second),
		}, nil
	}
}

// make makes a step by a trick; ok is false where nothing was sent yet that it
// could be made from. The caller holds the lock.
func (g *forger) make(by trick, host string) (f forgery, ok bool, err error) {
	f.trick = by
	from, wanted := host, func(s sent) bool { return time.Since(s.at) < expiry/2 }
	switch by {
	case ungranted:
		f.sent, err = g.attack(host, sent{workflow: "attach/" + uuid.NewString(), run: uuid.NewString()})
		return f, err == nil, err
	case foreign, readressed:
		from = g.neighbour(host)
	case expired:
		wanted = func(s sent) bool { return time.Since(s.at) > expiry+10*time.Second }
	case replayed:
		wanted = func(s sent) bool { return s.repeatable() && time.Since(s.at) < expiry/2 }
	}

	// A CheckUse only looks, so an agent takes it whatever its grant says.
	candidates := slices.DeleteFunc(slices.Clone(g.known[from]), func(s sent) bool { return !wanted(s) || s.activity == workflows.CheckUseActivity })
	if len(candidates) == 0 {
		return f, false, nil
	}
	good := candidates[g.turn[host]*7%len(candidates)]

	f.sent = good
	f.host, f.input = host, maps.Clone(good.input)
	switch by {
	case altered:
		f.sent, err = g.attack(host, good)
	case raised:
		f.input["assignment"] = 1 << 60
	case rewritten, foreignKey, borrowedID:
		if f.sent, err = g.attack(host, good); err == nil {
			err = g.permit(&f)
		}
	case readressed:
		own := g.known[host]
		if len(own) == 0 {
			return f, false, nil
		}
		f.input["instance"] = own[len(own)-1].input["instance"]
	case otherRun:
		f.run = uuid.NewString()
		if g.turn[host]%2 == 0 {
			f.input["run"] = f.run
		}
	}
	return f, err == nil, err
}

// neighbour returns another host.
func (g *forger) neighbour(host string) string {
	return g.c.Hosts[(slices.Index(g.c.Hosts, host)+1)%len(g.c.Hosts)]
}

// repeatable reports whether a step may be taken once more, because the journal
// knows that it is done. docs/security.md says what becomes of the others, such as
// an undo.
func (s sent) repeatable() bool {
	undo, _ := s.input["undo"].(bool)
	return s.done && !undo && slices.Contains([]string{
		workflows.AttachActivity, workflows.DetachActivity, workflows.InstallActivity, workflows.UninstallActivity, workflows.ProgramActivity,
		workflows.CleanActivity, workflows.PartitionActivity,
	}, s.activity)
}

// attack returns a step that would take a handle from its holder, or divide a card, with the
// grant of a good one.
func (g *forger) attack(host string, good sent) (sent, error) {
	v := victim{target: cyborg.Target{Backend: "fake", Device: "00fa:01:00.0"}, handle: cyborg.WorkHandle{Holder: holderOf(host, 0)}}
	if all := g.victims[host]; len(all) > 0 {
		v = all[g.turn[host]%len(all)]
	}

	op := uuid.New()
	all := []struct {
		activity string
		input    any
	}{
		{workflows.DetachActivity, workflows.DetachInput{Operation: op, Target: v.target, Handles: []cyborg.WorkHandle{v.handle}}},
		{workflows.AttachActivity, workflows.AttachInput{Operation: op, Target: v.target, Handle: cyborg.WorkHandle{
			UUID: v.handle.UUID, Identity: v.handle.Identity, Holder: holderOf(host, 0),
		}}},
		{workflows.UninstallActivity, workflows.InstallInput{Operation: op, Target: v.target}},
		{workflows.CleanActivity, workflows.CleanInput{Operation: op, Target: v.target, Handle: cyborg.HandleToClean{
			UUID: v.handle.UUID, Identity: v.handle.Identity, Method: cyborg.CleanReset,
		}}},
		{workflows.PartitionActivity, workflows.PartitionInput{
			Operation: op, Device: cyborg.DeviceTarget{Backend: dividedBackend, Identity: harness.DividedCard}, Layout: cyborg.Layout{"half": 2},
		}},
		{workflows.SettleActivity, workflows.SettleInput{Host: host, Entries: []workflows.SettleEntry{{
			Backend: v.target.Backend, Deployable: v.target.Deployable, Handle: v.handle, Operation: op, Want: workflows.GoalDetached,
		}}}},
	}
	chosen := all[g.turn[host]%len(all)]

	text, err := json.Marshal(chosen.input)
	if err != nil {
		return sent{}, err
	}
	made := sent{host: host, activity: chosen.activity, workflow: good.workflow, run: good.run, at: good.at}
	if made.input, err = readInput(text); err != nil {
		return sent{}, err
	}
	for _, name := range []string{"instance", "run", "assignment", "journal", "grant"} {
		if value, ok := good.input[name]; ok {
			made.input[name] = value
		}
	}
	return made, nil
}

// permit gives a step a grant whose claims permit it, which no conductor has
// signed.
func (g *forger) permit(f *forgery) error {
	good := strings.Split(f.input["grant"].(string), ".") // it is one of those that were read
	text, err := base64.RawURLEncoding.DecodeString(good[1])
	if err != nil {
		return err
	}
	var claims grant.Claims
	if err := json.Unmarshal(text, &claims); err != nil {
		return err
	}
	step, err := grant.StepOf(f.activity, f.input)
	if err != nil {
		return err
	}
	claims.Steps = append(claims.Steps, step)

	signed, err := g.signer.Sign(claims)
	if err != nil {
		return err
	}
	made := strings.Split(signed, ".")
	switch f.trick {
	case rewritten:
		made[0], made[2] = good[0], good[2]
	case borrowedID:
		made[0] = good[0]
	}
	f.input["grant"] = strings.Join(made, ".")
	return nil
}

// answer notes the answer to a forged step, which failed unless failure is nil;
// it returns false where the token is that of another step.
func (g *forger) answer(token string, failure *cyborg.Error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	f, ok := g.open[token]
	if !ok {
		return false
	}
	delete(g.open, token)
	g.answers[f.host]++

	switch refused, err := f.judge(failure); {
	case err != nil:
		g.failed = cmp.Or(g.failed, err)
	case refused:
		g.refused[f.trick]++
	default:
		g.repeated++
	}
	return true
}

// judge tells whether an agent has refused the forgery, as it must; a replay it
// may also answer from its journal.
func (f forgery) judge(failure *cyborg.Error) (refused bool, err error) {
	switch {
	case f.trick == replayed:
		return failure != nil, nil
	case failure == nil:
		return false, fmt.Errorf("the agent of %s has taken a forged %s, %s: %v", f.host, f.activity, f.trick, f.input)
	case !slices.Contains([]cyborg.ErrorKind{cyborg.ErrNotGranted, cyborg.ErrOtherAgent, cyborg.ErrSuperseded}, failure.Kind):
		return false, fmt.Errorf("the agent of %s has believed the grant of a forged %s, %s, and refused it for another reason, %s: %w",
			f.host, f.activity, f.trick, failure.Kind, failure)
	}
	return true, nil
}

// knows reports whether a token is that of a forged step.
func (g *forger) knows(token string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.open[token]
	return ok
}

// drop forgets a forged step that no agent has answered; it returns false where
// the token is that of another step.
func (g *forger) drop(token string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.open[token]
	delete(g.open, token)
	return ok
}

// fail notes an error, if it is the first.
func (g *forger) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failed = cmp.Or(g.failed, err)
}

// wrong returns an error where an agent has taken a forged step.
func (g *forger) wrong() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failed
}

// String counts the forged steps.
func (g *forger) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return fmt.Sprintf("refused %v, answered by a journal %d, unanswered %d", g.refused, g.repeated, len(g.open))
}
