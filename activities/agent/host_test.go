package agent_test

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	sdkactivity "go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent"
	"github.com/cyborg-project/cyborg/activities/agent/images"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/activities/agent/novaconf"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

const (
	hostName = "node-1"
	backend  = "fake"
	// card is the first FPGA of a fake park. region and handle are its first region
	// and function, other and second the next ones.
	card   = "00fa:01:00.0"
	region = "fake_fpga_00fa_01_00_0_r0"
	other  = "fake_fpga_00fa_01_00_0_r1"
	handle = "00fa:01:00.0"
	second = "00fa:01:00.1"
)

// host is a machine with an agent's activities on it. Its agent may die and
// start again.
type host struct {
	t     *testing.T
	dir   string
	nova  string // the directory of Nova's drop-in files
	bench fake.Bench
	// renamed is another name of the fake backend; empty for the usual one.
	renamed string
	// options are those of the fake backend.
	options map[string]any
	boot    string
	fate    *fate

	journal   *journal.Journal
	inventory *inventory.Inventory
	reporter  *reporter
	// activities are those of the process, and served what a worker registers of them.
	activities *agent.Activities
	served     map[string]any
	images     *images.Store
	source     *source
	// usageTimeout limits how long an activity waits for the cards' usage.
	usageTimeout time.Duration
	// allowed are the kinds of work that the host allows; nil means all.
	allowed []cyborg.OperationKind
	// uptime is for how long the machine is up.
	uptime atomic.Int64
	// asleep has the card not tell its serial number while nothing of it is attached.
	asleep bool
	// wakes has the card wake when the driver is asked to do something with it, or who
	// uses it.
	wakes bool
	// blind has the driver not compare which card is there.
	blind bool
	// after, where set, is called when the driver has attached or programmed.
	after func()
	// remains is what the last holders have left on the handles.
	remains remains
	// division is how the card is divided, where it can be.
	division division
	// late makes each try begin long after it was scheduled.
	late atomic.Bool
}

// fate makes a process die at a chosen point. From there on, everything it does
// fails.
type fate struct {
	mu     sync.Mutex
	points int // passed so far
	dieAt  int // -1 for never
	calls  []string
	priors []string // the notes that the driver was given, in order
	// refuse makes an attach fail with this kind after its note.
	refuse cyborg.ErrorKind
	// meanwhile, where set, is called before it fails.
	meanwhile func()
}

var errDead = errors.New("the process is dead")

// point passes a point at which the process may die, and fails if it has died.
func (f *fate) point() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.points++
	if f.dieAt >= 0 && f.points > f.dieAt {
		return errDead
	}
	return nil
}

// called records a call of the driver.
func (f *fate) called(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, name)
}

// count returns how often the driver's call of that name was made.
func (f *fate) count(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, call := range f.calls {
		if call == name {
			n++
		}
	}
	return n
}

// mortal is a journal whose process can die before and after each write.
type mortal struct {
	*journal.Journal
	fate *fate
}

func (m mortal) Write(change journal.Change) error {
	if err := m.fate.point(); err != nil {
		return err
	}
	if err := m.Journal.Write(change); err != nil {
		return err
	}
	return m.fate.point()
}

func (m mortal) KeepRaised() error {
	if err := m.fate.point(); err != nil {
		return err
	}
	return m.Journal.KeepRaised()
}

// full is a driver with all optional abilities.
type full interface {
	drivers.Driver
	drivers.Installer
	drivers.Attacher
	drivers.Programmer
	drivers.Users
	drivers.Meter
}

// shim is a fake driver whose process can die before and after each change.
type shim struct {
	full
	fate *fate
	host *host
}

// sees returns the target as the driver gets it.
func (s shim) sees(target drivers.Target) drivers.Target {
	if s.host.wakes {
		s.host.asleep = false
	}
	if s.host.blind {
		target.Device.Fingerprint = cyborg.Fingerprint{}
	}
	return target
}

func (s shim) change(name string, do func() error) error {
	s.fate.called(name)
	if err := s.fate.point(); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return s.fate.point()
}

func (s shim) Discover(ctx context.Context) ([]cyborg.DeviceReport, error) {
	devices, err := s.full.Discover(ctx)
	if s.host.asleep && err == nil && !s.host.attachedNow(handle) {
		for i := range devices {
			devices[i].Fingerprint.Serial = ""
		}
	}
	s.host.remains.describe(devices)
	s.host.division.describe(devices)
	return devices, err
}

func (s shim) Install(ctx context.Context, target drivers.Target) error {
	return s.change("install", func() error {
		err := s.full.Install(ctx, s.sees(target))
		if s.host.after != nil && err == nil {
			s.host.after()
		}
		return err
	})
}

func (s shim) Uninstall(ctx context.Context, target drivers.Target) error {
	return s.change("uninstall", func() error { return s.full.Uninstall(ctx, s.sees(target)) })
}

func (s shim) Attach(ctx context.Context, request drivers.AttachRequest) error {
	s.fate.mu.Lock()
	s.fate.priors = append(s.fate.priors, string(request.Prior))
	refuse, meanwhile := s.fate.refuse, s.fate.meanwhile
	s.fate.mu.Unlock()

	return s.change("attach", func() error {
		if refuse != "" {
			if meanwhile != nil {
				meanwhile()
			}
			return errors.Join(request.Note([]byte(`{"touched":true}`)), cyborg.Errorf(refuse, "the driver has vanished"))
		}
		request.Target = s.sees(request.Target)
		err := s.full.Attach(ctx, request)
		if s.host.after != nil && err == nil {
			s.host.after()
		}
		return err
	})
}

func (s shim) Detach(ctx context.Context, request drivers.DetachRequest) error {
	s.fate.mu.Lock()
	s.fate.priors = append(s.fate.priors, string(request.Prior))
	s.fate.mu.Unlock()
	request.Target = s.sees(request.Target)
	return s.change("detach", func() error { return s.full.Detach(ctx, request) })
}

func (s shim) Program(ctx context.Context, request drivers.ProgramRequest) error {
	request.Target = s.sees(request.Target)
	return s.change("program", func() error {
		err := s.full.Program(ctx, request)
		if s.host.after != nil && err == nil {
			s.host.after()
		}
		return err
	})
}

func (s shim) Attached(ctx context.Context, request drivers.AttachedRequest) (bool, error) {
	request.Target = s.sees(request.Target)
	return s.full.Attached(ctx, request)
}

func (s shim) InUse(ctx context.Context, target drivers.Target, handle cyborg.HandleReport) (string, error) {
	if who := s.host.division.userOf(handle.Identity); who != "" || s.host.division.isPart(handle.Identity) {
		return who, nil
	}
	return s.full.InUse(ctx, s.sees(target), handle)
}

// reporter is a conductor that acknowledges everything, or fails.
type reporter struct {
	inventory *inventory.Inventory
	mu        sync.Mutex
	failure   error
	reports   []agentapi.Report
	// answered, where set, is called when a report is answered.
	answered func()
	// grants is what the conductor says about who signs steps.
	grants agentapi.Grants
}

// Grants returns what the conductor has said last.
func (u *reporter) Grants() agentapi.Grants {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.grants
}

func (u *reporter) Report(ctx context.Context) (agentapi.Report, agentapi.ReportReply, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failure != nil {
		return agentapi.Report{}, agentapi.ReportReply{}, u.failure
	}

	report, err := u.inventory.Report(ctx)
	if err != nil {
		return report, agentapi.ReportReply{}, err
	}
	u.reports = append(u.reports, report)
	if u.answered != nil {
		u.answered()
	}
	return report, agentapi.ReportReply{Generation: int64(len(u.reports)), Accepted: true}, nil
}

// newHost returns a running host with one FPGA that has two regions of two
// handles each.
func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{t: t, dir: t.TempDir(), nova: t.TempDir(), boot: "boot-1", source: &source{}, usageTimeout: time.Minute}

	h.options = map[string]any{
		"park": "1xfpga", "deployables": 2, "handles": 2, "park_dir": filepath.Join(h.dir, "park"),
		"boot_id_file": filepath.Join(h.dir, "boot_id"),
	}

	require.NoError(t, os.Mkdir(filepath.Join(h.dir, "images"), 0o755))
	h.bench = fake.NewBench(filepath.Join(h.dir, "park"))

	h.start()
	return h
}

// start starts the agent's process. It lives until the next start.
func (h *host) start() {
	h.t.Helper()
	h.startAs(&fate{dieAt: -1})
}

// startAs starts the agent's process with a fate of its own.
func (h *host) startAs(f *fate) {
	h.t.Helper()
	if h.journal != nil {
		require.NoError(h.t, h.journal.Close())
	}

	require.NoError(h.t, os.WriteFile(filepath.Join(h.dir, "boot_id"), []byte(h.boot), 0o644))
	h.fate = f

	registry := drivers.NewRegistry()
	require.NoError(h.t, registry.Register("fake", func(env drivers.Environment, options map[string]any) (drivers.Driver, error) {
		made, err := fake.New(env, options)
		if err != nil {
			return nil, err
		}
		return shim{full: made.(full), fate: f, host: h}, nil
	}, drivers.Own(fake.PathOptions()...)...))
	require.NoError(h.t, registry.Register("odd", func(drivers.Environment, map[string]any) (drivers.Driver, error) { return odd{}, nil }))
	require.NoError(h.t, registry.Register("plain", func(drivers.Environment, map[string]any) (drivers.Driver, error) { return plain{}, nil }))

	log := slog.New(slog.NewTextHandler(h.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	var err error
	h.journal, err = journal.Open(h.dir, journal.Options{BootID: h.boot, Log: log})
	require.NoError(h.t, err)
	j := h.journal
	h.t.Cleanup(func() { require.NoError(h.t, j.Close()) })

	nova := novaconf.File{Host: hostName, Dir: h.nova}
	h.inventory, err = inventory.Open(inventory.Config{
		Whitelist: nova.Look,
		Host:      hostName, Version: "test", Root: "/", StateDir: h.dir, ScanTimeout: time.Minute, FullScanInterval: time.Hour,
		UsageTimeout: h.usageTimeout,
		Backends: []inventory.Setting{
			{Name: cmp.Or(h.renamed, backend), Driver: "fake", Options: maps.Clone(h.options), Enabled: true},
			{Name: "off", Driver: "fake", Options: map[string]any{"park": "1xgpu"}},
		},
	}, registry, h.journal, log)
	require.NoError(h.t, err)

	h.images, err = images.Open(images.Config{
		Dir: filepath.Join(h.dir, "cache"), ImageDir: filepath.Join(h.dir, "images"), MaxBytes: 1 << 20, CacheBytes: 1 << 20,
		Source: h.source, Needed: func() map[string]bool { return j.Images(time.Now().Add(-agent.StagedFor)) },
	}, log)
	require.NoError(h.t, err)

	h.reporter = &reporter{inventory: h.inventory}
	h.activities = &agent.Activities{
		Inventory: h.inventory, Journal: mortal{h.journal, f}, Images: h.images, Reporter: h.reporter, Log: log, UsageTimeout: h.usageTimeout,
		Nova: nova, Allowed: h.allowed, Instance: instance, Grants: h.reporter.Grants,
		Uptime: func() time.Duration { return time.Duration(h.uptime.Load()) },
		Now: func() time.Time {
			if h.late.Load() {
				return time.Now().Add(time.Minute)
			}
			return time.Now()
		},
	}
	h.served = h.activities.All()
}

// instance is the agent of these tests, as its reports name it.
const instance = "agent-1"

// do runs one try of an activity in Temporal's test environment, and returns
// its error as a workflow sees it.
func (h *host) do(name string, in, out any) *cyborg.Error {
	h.t.Helper()
	return h.doWith(h.t.Context(), name, in, out)
}

// doWith is do with a context that ends the way a cancelled activity's context
// does.
func (h *host) doWith(ctx context.Context, name string, in, out any) *cyborg.Error {
	h.t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(silent{})
	env := suite.NewTestActivityEnvironment()
	env.SetWorkerOptions(worker.Options{BackgroundActivityContext: ctx})
	env.SetTestTimeout(time.Minute)

	for known, do := range h.served {
		env.RegisterActivityWithOptions(do, sdkactivity.RegisterOptions{Name: known})
	}

	value, err := env.ExecuteActivity(name, in)
	if err != nil {
		return workflows.FromFailure(err)
	}
	if out != nil {
		require.NoError(h.t, value.Get(out))
	}
	return nil
}

// must runs an activity that has to succeed.
func (h *host) must(name string, in, out any) {
	h.t.Helper()
	if err := h.do(name, in, out); err != nil {
		require.NoError(h.t, err, "%s", err.Hint)
	}
}

// failure is an activity's error as a workflow sees it.
type failure = cyborg.Error

// refused requires that an activity fails with this kind, and returns its
// error.
func (h *host) refused(kind cyborg.ErrorKind, name string, in any) failure {
	h.t.Helper()
	err := h.do(name, in, nil)
	require.NotNil(h.t, err)
	require.Equal(h.t, kind, err.Kind, "%s", err)
	return *err
}

// try runs an activity and tells whether it failed.
func (h *host) try(name string, in any) (failed bool) {
	h.t.Helper()
	return h.do(name, in, nil) != nil
}

// card returns the state of the host's FPGA.
func (h *host) card() fake.Card {
	h.t.Helper()
	c, err := h.bench.Card(h.t.Context(), card)
	require.NoError(h.t, err)
	return c
}

// edit changes the state of the host's FPGA.
func (h *host) edit(change func(c *fake.Card)) {
	h.t.Helper()
	require.NoError(h.t, h.bench.Edit(h.t.Context(), card, change))
}

// attachedNow tells whether the hardware has the handle attached.
func (h *host) attachedNow(identity string) bool {
	h.t.Helper()
	for _, part := range h.card().Deployables {
		if state, ok := part.Handles[identity]; ok {
			return state.Attached
		}
	}
	return false
}

// attachments returns the attachments that the host reports, by handle.
func (h *host) attachments() map[string]cyborg.AttachmentState {
	states := map[string]cyborg.AttachmentState{}
	for _, a := range h.inventory.Content().Attachments {
		states[a.Handle] = a.State
	}
	return states
}

// target is the host's first region.
func target() cyborg.Target { return cyborg.Target{Backend: backend, Device: card, Deployable: region} }

// workHandle is a handle that the host itself holds.
func workHandle(identity string) cyborg.WorkHandle {
	return cyborg.WorkHandle{
		UUID: uuid.NewSHA1(uuid.NameSpaceOID, []byte(identity)), Identity: identity,
		Holder: cyborg.Holder{Kind: cyborg.HolderHost, ID: hostName},
	}
}

// attach is the input that attaches one handle.
func attach(operation uuid.UUID, identity string) workflows.AttachInput {
	return workflows.AttachInput{Operation: operation, Target: target(), Handle: workHandle(identity)}
}

// detach is the input that detaches these handles.
func detach(operation uuid.UUID, identities ...string) workflows.DetachInput {
	in := workflows.DetachInput{Operation: operation, Target: target()}
	for _, identity := range identities {
		in.Handles = append(in.Handles, workHandle(identity))
	}
	return in
}

// undo turns a detach into the undo of an attach.
func undo(in workflows.DetachInput) workflows.DetachInput {
	in.Undo = true
	return in
}

// ready takes the first region into service.
func (h *host) ready() {
	h.t.Helper()
	h.must(workflows.InstallActivity, workflows.InstallInput{Operation: uuid.New(), Target: target()}, nil)
}

// odd is a driver that panics on every call.
type odd struct{}

func (odd) Discover(context.Context) ([]cyborg.DeviceReport, error) { panic("what a day") }

// plain is a driver that can only discover.
type plain struct{}

func (plain) Discover(context.Context) ([]cyborg.DeviceReport, error) {
	return []cyborg.DeviceReport{{Identity: "plain", Deployables: []cyborg.DeployableReport{
		{Name: "plain_0", Handles: []cyborg.HandleReport{{Kind: cyborg.HandleDEV, Identity: "/dev/plain"}}},
		{Name: "plain_1", Protected: "it has the root file system"},
	}}}, nil
}

// plainTarget is a deployable of the plain driver's device.
func plainTarget(name string) cyborg.Target {
	return cyborg.Target{Backend: "plain", Device: "plain", Deployable: name}
}

// silent is a logger that drops everything, for failures that a test causes on
// purpose.
type silent struct{}

func (silent) Debug(string, ...any) {}
func (silent) Info(string, ...any)  {}
func (silent) Warn(string, ...any)  {}
func (silent) Error(string, ...any) {}

// keys returns the sorted keys of a map.
func keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
