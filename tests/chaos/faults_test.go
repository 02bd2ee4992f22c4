package chaos_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/internal/temporalclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// injector injects the faults of a schedule.
type injector struct {
	t     testing.TB
	c     *harness.Cluster
	d     *driver
	cloud *cloud

	temporal client.Client
	struck   atomic.Int64 // runs that were terminated or reset

	kills atomic.Int64 // processes that were killed so far

	forger *forger

	rotated bool     // the servers of the round were restarted one by one
	signers []string // the keys of before the round

	standby *harness.Standby  // of the round; nil without one
	copies  map[string]string // of the state directories of agents, by host; they are at least as old as the round
	used    map[string]bool   // hosts whose copies were put back

	mu       sync.Mutex // guards the fields below, and rotated
	injected []injection
	losses   []loss
	shifts   []shift
}

// prepare prepares the faults of a round, at rest: it starts a standby of
// PostgreSQL, and copies the state directories of agents. A copy is kept until it
// is put back, so some are many rounds old.
func (s *injector) prepare(ctx context.Context, r round) (err error) {
	for _, host := range s.c.Hosts {
		if s.copies[host] == "" || s.used[host] {
			if s.copies[host], err = s.c.CopyState(host); err != nil {
				return fmt.Errorf("the state of %s cannot be copied: %w", host, err)
			}
		}
	}
	s.used = map[string]bool{}

	if err := s.noteSigners(ctx); err != nil {
		return err
	}
	if err := s.forger.prepare(ctx, r); err != nil {
		return fmt.Errorf("no steps can be forged: %w", err)
	}
	if f, ok := r.failsOver(); ok {
		s.standby, err = s.c.StartStandby(ctx, f.faultKind == failover)
	}
	return err
}

// finish ends what prepare has started.
func (s *injector) finish(ctx context.Context) error {
	if s.standby == nil {
		return nil
	}
	err := s.standby.End(ctx)
	s.standby = nil
	return err
}

// carryOut waits for the moment of a fault, injects it, and heals it after its
// duration.
func (s *injector) carryOut(ctx context.Context, f fault, j *job) {
	<-j.asked
	if slices.Contains(losingFaults(), f.faultKind) {
		defer s.d.beginsLoss() // also where it fails
	}

	switch f.when {
	case before:
	case within:
		s.d.reached(ctx, j)
	case after:
		s.d.reached(ctx, j)
		j.letGo()
	}

	_ = clock.Sleep(ctx, f.after) // a round whose ctx has ended fails anyway

	if f.target == theRun {
		s.strikeRun(ctx, f, j)
		j.letGo()
		return
	}

	began := time.Now()
	heal, err := s.inject(ctx, f)
	if err != nil {
		s.t.Errorf("%s: %v", f, err)
		return
	}

	// The step continues during the fault in one half of the cases, after it in the
	// other half.
	_ = clock.Sleep(ctx, f.lasts/2)
	if f.after%2 == 0 {
		j.letGo()
	}

	_ = clock.Sleep(ctx, f.lasts-f.lasts/2)

	if err := heal(); err != nil {
		s.t.Errorf("%s cannot be healed: %v", f, err)
	}

	// Until it has recovered, PostgreSQL takes no work, which takes long where the disk
	// is busy. A round whose ctx has ended fails anyway.
	if f.target == string(harness.NodePostgres) {
		_ = s.c.AwaitDatabase(ctx)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.injected = append(s.injected, injection{fault: f, began: began, ended: time.Now()})
}

// inject injects a fault, and returns a function that heals it.
func (s *injector) inject(ctx context.Context, f fault) (heal func() error, err error) {
	nothing := func() error { return nil }
	switch f.faultKind {
	case kill, reboot, power:
		node := s.c.Node(f.target)

		var ran bool
		switch f.faultKind {
		case reboot:
			ran, err = s.d.reboot(f.target)
		case power:
			ran, err = s.c.LosePower(f.target)
		default:
			ran = node.Kill()
		}
		if ran {
			s.kills.Add(1)
		}
		return func() error { node.Up(); return nil }, err
	case failover, lag:
		return nothing, s.failOver(ctx, f)
	case restore:
		return nothing, s.restoreBackup(ctx, f)
	case old:
		return s.putStateBack(f.target)
	case forge:
		return s.forger.begin(ctx, f.target)
	case renew:
		return nothing, s.renewCertificates(ctx, f)
	case rotate:
		return nothing, s.rotateKeys(ctx, f)
	case freeze, stall:
		node := s.c.Node(f.target)
		node.Freeze()
		return func() error { node.Thaw(); return nil }, nil
	case restart:
		return s.restart(f)
	case jump:
		return nothing, s.setClock(f.target, f.amount)
	case sever:
		link := s.c.Link(f.target, "temporal")
		link.Silence()
		return func() error { link.Heal(); return nil }, nil
	case second:
		return s.startSecond(f.target), nil
	case full:
		for _, disk := range s.c.Disks {
			if disk.Node == f.target {
				return disk.Heal, disk.Fill()
			}
		}
		return nil, fmt.Errorf("%s has no disk of its own", f.target)
	}

	from, to, ok := strings.Cut(f.target, ">")
	if !ok {
		return s.cloud.inject(f)
	}

	link := s.c.Link(from, to)
	switch f.faultKind {
	case cut:
		link.Cut()
	case silence:
		link.Silence()
	case delay:
		link.Delay(f.amount)
	default:
		return nil, fmt.Errorf("%s is not a fault of a link", f.faultKind)
	}

	return func() error { link.Heal(); return nil }, nil
}

// failOver has the standby take the place of PostgreSQL. Where it lags, what is
// committed meanwhile is lost, for Temporal as for the records.
func (s *injector) failOver(ctx context.Context, f fault) error {
	began := time.Now()
	if err := s.standby.CaughtUp(ctx); err != nil {
		return err
	}
	if f.faultKind == lag {
		s.standby.FallBehind()
		s.d.beginsLoss()
		_ = clock.Sleep(ctx, f.amount) // TakeOver fails where ctx has ended
	}

	killed, err := s.standby.TakeOver(ctx, func() error { return clock.Sleep(ctx, f.lasts) })
	if killed {
		s.kills.Add(1)
	}
	if f.faultKind == lag {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.losses = append(s.losses, loss{began, time.Now()})
	}
	s.t.Logf("a standby has taken the place of PostgreSQL: %s, after %s (%v)", f, time.Since(began).Round(time.Millisecond), err)
	return err
}

// putStateBack kills the agent of a host, and puts an older copy of its state
// directory back.
func (s *injector) putStateBack(host string) (heal func() error, err error) {
	s.mu.Lock()
	s.used[host] = true
	s.mu.Unlock()

	ran, err := s.c.PutStateBack(host, s.copies[host])
	if ran {
		s.kills.Add(1)
	}
	return func() error { s.c.Node(host).Up(); return nil }, err
}

// startSecond starts a second agent of a host, and keeps the first one from the
// conductors, so that these take the second one for the host's agent. To heal
// it kills the second one.
func (s *injector) startSecond(host string) (heal func() error) {
	links := []*harness.Link{s.c.Link(host, "conductor1"), s.c.Link(host, "conductor2")}
	for _, link := range links {
		link.Silence()
	}
	s.c.Second(host).Up()

	return func() error {
		s.c.Second(host).Kill()
		for _, link := range links {
			link.Heal()
		}
		return nil
	}
}

// restart stops a process in order, and starts it when the fault is healed. Its
// exit code is 0, or negative where another fault kills it meanwhile.
func (s *injector) restart(f fault) (func() error, error) {
	node := s.c.Node(f.target)
	stopped := make(chan error, 1)
	go func() {
		code, err := node.Stop()
		stopped <- stoppedInOrder(node, code, err)
	}()
	return func() error {
		err := <-stopped
		node.Up()
		return err
	}, nil
}

// stoppedInOrder returns an error where a process was told to stop and did not end
// as it should. A Temporal that gives up because PostgreSQL has failed over, as it
// should, may do so in that very moment.
func stoppedInOrder(node *harness.Node, code int, err error) error {
	if err != nil || code <= 0 || node.Kind == harness.NodePostgres {
		return err
	}

	said := node.Said(1000)
	if node.Kind == harness.NodeTemporal && strings.Contains(said, "Temporal gave up: PostgreSQL has failed over") {
		return nil
	}
	return fmt.Errorf("%s was stopped in order and ended with exit code %d:\n%s", node.Name, code, said)
}

// strikeRun terminates or resets the run of a piece of work, as somebody can in
// Temporal's UI. Where Temporal is away at that moment, nothing happens.
func (s *injector) strikeRun(ctx context.Context, f fault, j *job) {
	op, ok := s.d.open(ctx, j)
	if !ok {
		return
	}

	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()

	var err error
	if f.faultKind == terminate {
		err = s.temporal.TerminateWorkflow(ctx, op.WorkflowID, "", "chaos")
	} else {
		err = s.reset(ctx, op.WorkflowID)
	}

	if err != nil {
		s.t.Logf("%s: %v", f, err)
		return
	}
	s.struck.Add(1)
}

// reset resets a run to its last workflow task that has ended.
func (s *injector) reset(ctx context.Context, workflowID string) error {
	var point int64
	for history := s.temporal.GetWorkflowHistory(ctx, workflowID, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); history.HasNext(); {
		event, err := history.Next()
		if err != nil {
			return err
		}
		if event.GetEventType() == enumspb.EVENT_TYPE_WORKFLOW_TASK_COMPLETED {
			point = event.GetEventId()
		}
	}

	_, err := s.temporal.ResetWorkflowExecution(ctx, &workflowservice.ResetWorkflowExecutionRequest{
		Namespace: temporalclient.DefaultNamespace, WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: workflowID},
		Reason: "chaos", RequestId: uuid.NewString(), WorkflowTaskFinishEventId: point,
	})
	return err
}

// healAll heals the cloud, the links, the processes, the clocks of PostgreSQL and
// Temporal, and the disks.
func (s *injector) healAll() {
	if err := s.cloud.healAll(); err != nil {
		s.t.Errorf("the cloud cannot be healed: %v", err)
	}

	for _, link := range s.c.Links {
		link.Heal()
	}

	for _, node := range s.c.Nodes {
		node.Thaw()
		node.Up()
	}

	for _, host := range s.c.Hosts {
		s.c.Second(host).Kill()
	}

	if err := s.setClocksBack(); err != nil {
		s.t.Errorf("the clocks cannot be set back: %v", err)
	}

	for _, disk := range s.c.Disks {
		if err := disk.Heal(); err != nil {
			s.t.Errorf("the disk of %s cannot be healed: %v", disk.Node, err)
		}
	}
}
