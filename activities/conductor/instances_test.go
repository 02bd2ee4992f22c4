package conductor_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/mocks"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/openstack"
	"github.com/cyborg-project/cyborg/internal/openstack/nova"
	"github.com/cyborg-project/cyborg/internal/openstack/nova/novatest"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
	"github.com/cyborg-project/cyborg/workflows"
)

// compute holds the records of a host with accelerators, and a model of Nova.
type compute struct {
	*db.Store
	t     *testing.T
	url   string
	model *novatest.Nova
	env   *testsuite.TestActivityEnvironment
	all   map[string]any // the activities by name
	boot  string
	// uptime is what the host says that it has been up; 0 where it does not know.
	uptime time.Duration
	seq    int64
	cards  int
}

// newCompute returns a host with this many accelerators, all of them in
// service. The host is always silent, so that it may boot at any time.
func newCompute(t *testing.T, cards int, policy conductor.Policy) *compute {
	t.Helper()
	return newComputeHeard(t, cards, policy, time.Microsecond)
}

// newComputeHeard is newCompute for a host that may be unheard this long.
func newComputeHeard(t *testing.T, cards int, policy conductor.Policy, silentAfter time.Duration) *compute {
	t.Helper()
	url := postgrestest.NewFrom(t, "migrated", func(ctx context.Context, url string) error {
		_, err := db.Migrate(ctx, url)
		return err
	})

	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	store, err := db.Open(t.Context(), url, db.Options{SilentAfter: silentAfter}, log)
	require.NoError(t, err)
	t.Cleanup(store.Close)

	keystone := openstacktest.NewKeystone(t)
	c := &compute{Store: store, t: t, url: url, model: novatest.New(keystone.IsOwn), boot: "boot-1", cards: cards}
	server := httptest.NewServer(c.model)
	t.Cleanup(server.Close)
	keystone.Serve("compute", server.URL+"/v2.1")

	session, err := openstack.New(keystone.Config(), log)
	require.NoError(t, err)
	t.Cleanup(session.Close)

	var suite testsuite.WorkflowTestSuite
	c.env = suite.NewTestActivityEnvironment()
	policy.CheckInstances = time.Hour
	engine := &mocks.Client{}
	engine.On("ExecuteWorkflow", mock.Anything, mock.Anything, mock.Anything, mock.Anything).Return(&mocks.WorkflowRun{}, nil)
	c.all = conductor.New(store, engine, policy, conductor.Cloud{Nova: nova.New(session)}, conductor.Grants{}, log).All()
	for name, a := range c.all {
		c.env.RegisterActivityWithOptions(a, registered(name))
	}

	c.report()
	c.exec("UPDATE deployables SET lifecycle = 'ready', untouched = false")
	c.exec(`INSERT INTO device_profiles (name, groups) VALUES ('one', '[{"resources:FPGA": "1"}]')`)
	return c
}

// exec changes the records with SQL, for what no method of the store can bring
// about.
func (c *compute) exec(sql string, values ...any) {
	c.t.Helper()
	conn, err := pgx.Connect(c.t.Context(), c.url)
	require.NoError(c.t, err)
	defer func() { _ = conn.Close(c.t.Context()) }()

	_, err = conn.Exec(c.t.Context(), sql, values...)
	require.NoError(c.t, err)
}

// report has the host report its cards.
func (c *compute) report() {
	c.t.Helper()
	c.seq++
	b := agentapi.BackendReport{Name: "fake", Driver: "fake", State: cyborg.BackendOK, Services: []string{"discover", "attach"}}
	for i := range c.cards {
		name := "card" + string(rune('0'+i))
		b.Devices = append(b.Devices, cyborg.DeviceReport{
			Identity: name, Type: cyborg.DeviceTypeFPGA, VendorID: "1234", ProductID: "1", Vendor: "Acme", Model: "F", ControlPath: cyborg.ControlPath{Kind: "PCI"},
			Deployables: []cyborg.DeployableReport{{
				Name: name, Specs: cyborg.Specs{Num: 1, DeviceType: cyborg.DeviceTypeFPGA}, Attributes: []cyborg.Attribute{{Key: "rc", Value: "FPGA"}},
				Handles: []cyborg.HandleReport{{Kind: cyborg.HandleTestPCI, Identity: name, Info: map[string]string{}}},
			}},
		})
	}

	content := agentapi.Content{Backends: []agentapi.BackendReport{b}}
	replies, err := c.MergeReports(c.t.Context(), []agentapi.Report{{
		Host: "h1", BootID: c.boot, Uptime: c.uptime, AgentVersion: "1", Sequence: c.seq, Digest: content.Digest(), Content: content,
	}})
	require.NoError(c.t, err)
	require.True(c.t, replies[0].Accepted)
}

// bind binds a free accelerator to a new instance that runs, and returns the
// instance's ID.
func (c *compute) bind() uuid.UUID {
	c.t.Helper()
	ctx, who := c.t.Context(), uuid.New()
	arqs, err := c.CreateARQs(ctx, "one", cyborg.Actor{Name: "nova", Project: "p"})
	require.NoError(c.t, err)
	all, err := c.Accelerators(ctx, db.AcceleratorFilter{}, db.Page{Limit: 10})
	require.NoError(c.t, err)

	for i := range all {
		if all[i].Handles[0].Holder != nil {
			continue
		}

		admitted, err := c.Admit(ctx, db.Admission{ID: uuid.New(), Actor: cyborg.Actor{Name: "nova"}, Request: cyborg.BindRequest{
			Host: "h1", Holder: cyborg.Holder{Kind: cyborg.HolderInstance, ID: who.String()}, Within: time.Hour,
			ARQs: []cyborg.BindARQ{{UUID: arqs[0].UUID, Provider: all[i].ProviderUUID}},
		}})
		require.NoError(c.t, err)
		_, err = c.Begin(ctx, db.Run{Operation: admitted.Operation.ID, ID: "run"})
		require.NoError(c.t, err)
		require.NoError(c.t, c.End(ctx, db.Run{Operation: admitted.Operation.ID, ID: "run"}, cyborg.Outcome{Operation: admitted.Operation.ID, State: cyborg.OperationSucceeded}))
		c.model.Set(novatest.Instance{ID: who, Status: novatest.Active, Host: "h1"})
		return who
	}

	require.Fail(c.t, "no accelerator is free")
	return who
}

// reboot reports a new boot of the host.
func (c *compute) reboot() {
	c.t.Helper()
	c.boot = "boot-" + uuid.NewString()
	c.report()
}

// tidy checks all instances, as if each were due.
func (c *compute) tidy() workflows.TidyResult {
	c.t.Helper()
	c.exec("UPDATE arqs SET seen_at = '-infinity'")
	value, err := c.env.ExecuteActivity(workflows.TidyActivity, workflows.TidyInput{})
	require.NoError(c.t, err)
	var result workflows.TidyResult
	require.NoError(c.t, value.Get(&result))
	return result
}

// drift counts the instances that differ from their requests, by class.
func (c *compute) drift() map[cyborg.DriftClass]int {
	c.t.Helper()
	found, err := c.DriftOfInstances(c.t.Context())
	require.NoError(c.t, err)
	return found
}

// An instance that differs from what its requests say is reported by class,
// until it is as it should be again. Differences that may be transient are
// reported from the second check on. Nothing is done about any of them.
func TestInstancesAreCompared(t *testing.T) {
	t.Parallel()
	c := newCompute(t, 5, conductor.Policy{})
	moved, broken, shelved, working, fine := c.bind(), c.bind(), c.bind(), c.bind(), c.bind()

	c.tidy()
	require.Empty(t, c.drift())

	c.model.Set(novatest.Instance{ID: moved, Status: novatest.Active, Host: "h2"})
	c.model.Set(novatest.Instance{ID: broken, Status: "ERROR", Host: "h1"})
	c.model.Set(novatest.Instance{ID: shelved, Status: "SHELVED_OFFLOADED"})
	c.model.Set(novatest.Instance{ID: working, Status: "REBUILD", Task: "rebuilding", Host: "h2"})
	c.tidy()
	require.Equal(t, map[cyborg.DriftClass]int{cyborg.DriftInstanceError: 1}, c.drift())

	c.tidy()
	require.Equal(t, map[cyborg.DriftClass]int{
		cyborg.DriftInstanceError: 1, cyborg.DriftInstanceElsewhere: 1, cyborg.DriftInstanceOffloaded: 1,
	}, c.drift())

	arqs, err := c.ARQs(t.Context(), db.ARQFilter{States: []cyborg.ARQState{cyborg.ARQBound}}, db.Listing{})
	require.NoError(t, err)
	require.Len(t, arqs, 5, "nothing is taken from any instance")

	for _, who := range []uuid.UUID{moved, broken, shelved, working} {
		c.model.Set(novatest.Instance{ID: who, Status: novatest.Active, Host: "h1"})
	}
	c.tidy()
	require.Empty(t, c.drift())

	c.model.Set(novatest.Instance{ID: fine, Status: "ERROR", Host: "h1"})
	c.tidy()
	require.NotEmpty(t, c.drift())

	c.model.Delete(fine)
	require.Equal(t, 1, c.tidy().Collected)
	require.Empty(t, c.drift(), "a deleted instance has no drift")
}

// While Nova works on an instance or cannot reach it, its drift neither ends
// nor begins, and it is checked again soon.
func TestDriftIsKeptWhileNovaIsUnclear(t *testing.T) {
	t.Parallel()
	c := newCompute(t, 2, conductor.Policy{})
	broken, fine := c.bind(), c.bind()

	c.model.Set(novatest.Instance{ID: broken, Status: "ERROR", Host: "h1"})
	c.tidy()
	want := map[cyborg.DriftClass]int{cyborg.DriftInstanceError: 1}
	require.Equal(t, want, c.drift())

	for _, is := range []novatest.Instance{{Status: "UNKNOWN", Partial: true}, {Status: "ERROR", Task: "rebooting_hard", Host: "h1"}} {
		for _, is.ID = range []uuid.UUID{broken, fine} {
			c.model.Set(is)
		}
		c.tidy()
		require.Equal(t, want, c.drift())

		again, err := c.StaleInstances(t.Context(), 59*time.Minute, 10)
		require.NoError(t, err)
		require.Len(t, again, 2, "both are looked at again soon")
	}

	for _, who := range []uuid.UUID{broken, fine} {
		c.model.Set(novatest.Instance{ID: who, Status: novatest.Active, Host: "h1"})
	}
	c.tidy()
	require.Empty(t, c.drift())
}

// An instance whose actions Nova does not find keeps its requests, and its
// accelerators stay reported as lost.
func TestInstanceActionsNotFound(t *testing.T) {
	t.Parallel()
	c := newCompute(t, 1, conductor.Policy{})
	who := c.bind()

	c.reboot()
	c.model.HideActions()
	require.Zero(t, c.tidy().Collected)

	left, err := c.ARQs(t.Context(), db.ARQFilter{Instances: []uuid.UUID{who}}, db.Listing{})
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, map[cyborg.DriftClass]int{cyborg.DriftLostAtBoot: 1}, c.drift(), "nothing proves that the accelerators are back")

	c.model.Delete(who)
	require.Equal(t, 1, c.tidy().Collected)
}

// The requests of an instance that Nova could not place on any host are deleted
// after a time without changes. They are kept where the instance is on a host,
// a task works on it, or Nova does not say where it is.
func TestStrandedInstances(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		is        novatest.Instance
		after     time.Duration
		forgotten bool
	}{
		"was not built":     {novatest.Instance{Status: "ERROR"}, time.Minute, true},
		"was not unshelved": {novatest.Instance{Status: "SHELVED_OFFLOADED"}, time.Minute, true},
		"not for long":      {novatest.Instance{Status: "ERROR"}, 3 * time.Hour, false},
		"never":             {novatest.Instance{Status: "ERROR"}, 0, false},
		"is on a host":      {novatest.Instance{Status: "ERROR", Host: "h1"}, time.Minute, false},
		"is unshelved":      {novatest.Instance{Status: "SHELVED_OFFLOADED", Task: "unshelving"}, time.Minute, false},
		"its cell is down":  {novatest.Instance{Status: "UNKNOWN", Partial: true}, time.Minute, false},
		"hidden":            {novatest.Instance{Status: "ERROR", Partial: true}, time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCompute(t, 2, conductor.Policy{ForgetUnbound: test.after})
			who, other := c.bind(), c.bind()
			c.exec("UPDATE arqs SET created_at = now() - interval '2 hours'")
			c.exec("ALTER TABLE arqs DISABLE TRIGGER note_update")
			c.exec("UPDATE arqs SET updated_at = now() - interval '2 hours'")

			test.is.ID = who
			c.model.Set(test.is)

			want := 0
			if test.forgotten {
				want = 1
			}
			require.Equal(t, want, c.tidy().Collected)

			left, err := c.ARQs(t.Context(), db.ARQFilter{Instances: []uuid.UUID{who}}, db.Listing{})
			require.NoError(t, err)
			require.Len(t, left, 1-want)
			left, err = c.ARQs(t.Context(), db.ARQFilter{Instances: []uuid.UUID{other}}, db.Listing{})
			require.NoError(t, err)
			require.Len(t, left, 1)

			require.Zero(t, c.tidy().Collected)
			if test.forgotten {
				require.Empty(t, c.drift())
			}
		})
	}
}

// Accelerators that were lost at a boot count as back once the guest was
// created anew since then, or is off and will get them when it starts. A reboot
// that may have been a soft one is no proof, nor is an instance whose cell is
// down.
func TestLossEndsWithARecreatedGuest(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(c *compute, who uuid.UUID)
		over   bool
	}{
		"nothing":                            {func(*compute, uuid.UUID) {}, false},
		"started before":                     {func(c *compute, who uuid.UUID) { c.model.Act(who, "start", "x", time.Now().Add(-time.Hour)) }, false},
		"started since":                      {func(c *compute, who uuid.UUID) { c.model.Act(who, "start", "x", time.Now().Add(time.Minute)) }, true},
		"rebuilt since":                      {func(c *compute, who uuid.UUID) { c.model.Act(who, "rebuild", "x", time.Now().Add(time.Minute)) }, true},
		"rebooted by others":                 {func(c *compute, who uuid.UUID) { c.model.Act(who, "reboot", "x", time.Now().Add(time.Minute)) }, false},
		"rebooted hard by others":            {func(c *compute, who uuid.UUID) { c.rebootHard(who, "Success") }, true},
		"a hard reboot by others has failed": {func(c *compute, who uuid.UUID) { c.rebootHard(who, "Error") }, false},
		"rebooted hard, and the host boots":  {func(c *compute, who uuid.UUID) { c.rebootHard(who, "Success"); c.reboot() }, false},
		"off": {func(c *compute, who uuid.UUID) {
			c.model.Set(novatest.Instance{ID: who, Status: novatest.ShutOff, Host: "h1"})
		}, true},
		"its cell is down": {func(c *compute, who uuid.UUID) { c.model.Set(novatest.Instance{ID: who, Status: "UNKNOWN"}) }, false},
		"somebody stops it": {func(c *compute, who uuid.UUID) {
			c.model.Set(novatest.Instance{ID: who, Status: novatest.Active, Task: "powering-off", Host: "h1"})
		}, false},
		"Nova does not answer": {func(c *compute, _ uuid.UUID) {
			c.model.Disturb(func(w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(http.StatusInternalServerError)
				return true
			})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCompute(t, 1, conductor.Policy{})
			who := c.bind()
			c.reboot()
			test.change(c, who)
			c.tidy()

			want := map[cyborg.DriftClass]int{cyborg.DriftLostAtBoot: 1}
			if test.over {
				want = map[cyborg.DriftClass]int{}
			}
			require.Equal(t, want, c.drift())
		})
	}
}

// Where the policy wants rescues, each boot of a host gets one rescue
// operation. Without a boot, or without the policy, there is none.
func TestRescueIsAdmittedOnce(t *testing.T) {
	t.Parallel()
	for within, rescues := range map[time.Duration]int{time.Hour: 1, 0: 0} {
		c := newCompute(t, 2, conductor.Policy{RescueWithin: within})
		c.bind()
		c.bind()

		require.Zero(t, c.tidy().Rescued)
		c.reboot()
		require.Equal(t, rescues, c.tidy().Rescued)
		require.Zero(t, c.tidy().Rescued)

		ops, err := c.Operations(t.Context(), db.OperationFilter{Kinds: []cyborg.OperationKind{cyborg.OperationRescue}}, db.Page{Limit: 10})
		require.NoError(t, err)
		require.Len(t, ops, rescues)
	}
}

// TestLossThoughClocksDiffer: neither the database's clock, which was set back since
// the bind, nor Nova's, which is ahead, lets the creation of a guest before the boot
// pass for one after it. The host's uptime says how long ago the boot was.
func TestLossThoughClocksDiffer(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"set back": 0, "Nova is ahead": time.Hour, "Nova is behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCompute(t, 1, conductor.Policy{})
			c.model.SetClock(ahead)
			novas := func(ago time.Duration) time.Time { return time.Now().Add(ahead - ago) }

			who := c.bind()
			c.model.Act(who, "create", "x", novas(5*time.Minute))
			c.uptime = 50 * time.Hour
			c.report()
			c.uptime = 2 * time.Minute
			c.reboot()
			// This is what a clock that was set back by ten minutes has recorded.
			c.exec("UPDATE arqs SET lost_at = lost_at - interval '10 minutes' WHERE instance_uuid = $1", who)

			c.tidy()
			require.Equal(t, map[cyborg.DriftClass]int{cyborg.DriftLostAtBoot: 1}, c.drift())
			rescue := c.rescues()
			require.Empty(t, c.looks(rescue, who), "it must be rebooted")

			c.model.Act(who, "start", "x", novas(time.Minute))
			require.Equal(t, cyborg.RescueRecreated, c.looks(rescue, who).Outcome)
			c.tidy()
			require.Empty(t, c.drift())
		})
	}
}

// TestLossWhileTheHostIsNotHeard: a guest that was created since the host was last
// heard may have been created before the boot, where the database's clock was set
// forward meanwhile. A rescue waits then until the host says for how long it is up.
func TestLossWhileTheHostIsNotHeard(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		uptime time.Duration // when the host is heard again
		lost   bool
	}{
		"created before the boot": {3 * time.Minute, true},
		"created since the boot":  {10 * time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCompute(t, 1, conductor.Policy{})
			who := c.bind()
			c.model.Act(who, "create", "x", time.Now().Add(-5*time.Minute))
			c.uptime = 50 * time.Hour
			c.report()
			c.uptime = 2 * time.Minute
			c.reboot()
			rescue := c.rescues()
			require.Empty(t, c.looks(rescue, who), "it must be rebooted")

			c.exec("UPDATE hosts SET last_seen = clock_timestamp() - interval '10 minutes'")
			found := c.looks(rescue, who)
			require.Empty(t, found.Outcome)
			require.Contains(t, found.Wait, "how long the host is up")
			c.tidy()
			require.Equal(t, map[cyborg.DriftClass]int{cyborg.DriftLostAtBoot: 1}, c.drift())

			c.uptime = test.uptime
			c.report()
			found = c.looks(rescue, who)
			require.Empty(t, found.Wait)
			require.Equal(t, test.lost, found.Outcome == "")
		})
	}
}

// rebootHard has somebody else reboot an instance hard with this result, while
// its nova-compute asks for the instance's accelerators.
func (c *compute) rebootHard(who uuid.UUID, result string) {
	c.t.Helper()
	c.model.Hold()
	request := c.model.RebootHard(who, "somebody")
	require.NoError(c.t, c.RecordHardReboot(c.t.Context(), who, time.Now(), request))
	c.tidy()
	require.Equal(c.t, map[cyborg.DriftClass]int{cyborg.DriftLostAtBoot: 1}, c.drift(), "the reboot has not ended yet")
	c.model.Release(result)
	c.model.Set(novatest.Instance{ID: who, Status: novatest.Active, Host: "h1"})
}

// rescued returns an instance that has lost its accelerator, and the rescue of it
// that runs.
func (c *compute) rescued() (rescue, who uuid.UUID) {
	c.t.Helper()
	who = c.bind()
	c.reboot()
	return c.rescues(), who
}

// looks returns what a rescue of an instance should do next.
func (c *compute) looks(rescue, who uuid.UUID) workflows.LookAtInstanceResult {
	c.t.Helper()
	value, err := c.env.ExecuteActivity(workflows.LookAtInstanceActivity, workflows.LookAtInstanceInput{
		Operation: rescue, Host: "h1", Rescue: cyborg.Rescue{Instance: who, BootID: c.boot, BootedAt: time.Now().Add(-time.Minute)},
	})
	require.NoError(c.t, err)
	var result workflows.LookAtInstanceResult
	require.NoError(c.t, value.Get(&result))
	return result
}

// A rescue reboots only an instance that runs on the host of its accelerators
// and that no task works on.
func TestLookAtInstance(t *testing.T) {
	t.Parallel()
	c := newCompute(t, 1, conductor.Policy{})
	rescue, who := c.rescued()
	c.model.Delete(who)
	require.Equal(t, cyborg.RescueGone, c.looks(rescue, who).Outcome)

	for name, test := range map[string]struct {
		is      novatest.Instance
		outcome cyborg.RescueOutcome
		waits   string
	}{
		"runs":        {novatest.Instance{Status: novatest.Active, Host: "h1"}, "", ""},
		"off":         {novatest.Instance{Status: novatest.ShutOff, Host: "h1"}, cyborg.RescueOff, ""},
		"elsewhere":   {novatest.Instance{Status: novatest.Active, Host: "h2"}, cyborg.RescueElsewhere, ""},
		"offloaded":   {novatest.Instance{Status: "SHELVED_OFFLOADED"}, cyborg.RescueElsewhere, ""},
		"paused":      {novatest.Instance{Status: "PAUSED", Host: "h1"}, cyborg.RescueSkipped, ""},
		"broken":      {novatest.Instance{Status: "ERROR", Host: "h1"}, cyborg.RescueSkipped, ""},
		"worked on":   {novatest.Instance{Status: "REBOOT", Task: "rebooting", Host: "h1"}, "", "Nova works on it (rebooting)"},
		"not back":    {novatest.Instance{Status: novatest.Active, Host: "h1", HostStatus: "DOWN"}, "", "the nova-compute of host h1 is DOWN"},
		"unreachable": {novatest.Instance{Status: "UNKNOWN"}, "", "its cell is down"},
	} {
		test.is.ID = who
		c.model.Set(test.is)

		found := c.looks(rescue, who)
		require.Equal(t, test.outcome, found.Outcome, name)
		require.Equal(t, test.waits, found.Wait, name)
	}

	c.model.Act(who, "rebuild", "x", time.Now().Add(time.Minute))
	c.model.Set(novatest.Instance{ID: who, Status: novatest.Active, Host: "h1"})
	require.Equal(t, cyborg.RescueRecreated, c.looks(rescue, who).Outcome)
}

// Nova is asked for one reboot only, whatever breaks on the way and however
// often the activity is tried again.
func TestRebootOnce(t *testing.T) {
	t.Parallel()
	c := newCompute(t, 1, conductor.Policy{})
	rescue, who := c.rescued()
	c.model.Act(who, "reboot", openstacktest.OwnUserID, time.Now().Add(-time.Hour)) // because of an earlier boot
	before := c.looks(rescue, who).EarlierReboots
	require.Len(t, before, 1)

	reboot := func() (result workflows.RebootInstanceResult, err error) {
		value, err := c.env.ExecuteActivity(workflows.RebootInstanceActivity, workflows.RebootInstanceInput{
			Operation: rescue, Instance: who, EarlierReboots: before,
		})
		if err != nil {
			return result, err
		}
		return result, value.Get(&result)
	}

	// Nova accepts the request, and its response is lost.
	var cut atomic.Bool
	c.model.Disturb(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/action") || !cut.CompareAndSwap(false, true) {
			return false
		}
		c.model.ServeHTTP(&lost{header: http.Header{}}, r)
		panic(http.ErrAbortHandler)
	})

	_, err := reboot()
	require.Equal(t, cyborg.ErrUnavailable, workflows.FromFailure(err).Kind)
	require.Equal(t, 2, c.model.Reboots(who))
	for range 3 {
		result, err := reboot()
		require.NoError(t, err)
		require.Equal(t, workflows.RebootInstanceResult{Outcome: cyborg.RescueRebooted}, result)
	}
	require.Equal(t, 2, c.model.Reboots(who))

	// The reboot fails in Nova, or the instance is deleted.
	before = c.looks(rescue, who).EarlierReboots
	require.Len(t, before, 2)
	c.model.Release("Error")
	result, err := reboot()
	require.NoError(t, err)
	require.Equal(t, cyborg.RescueFailed, result.Outcome)
	require.Contains(t, result.Detail, "Error")

	c.model.Delete(who)
	result, err = reboot()
	require.NoError(t, err)
	require.Equal(t, cyborg.RescueGone, result.Outcome)
}

// Nova is not asked to reboot an instance while it works on it for somebody
// else.
func TestRebootWaitsForOtherTasks(t *testing.T) {
	t.Parallel()
	c := newCompute(t, 1, conductor.Policy{})
	rescue, who := c.rescued()
	c.model.Set(novatest.Instance{ID: who, Status: "REBUILD", Task: "rebuilding", Host: "h1"})

	_, err := c.env.ExecuteActivity(workflows.RebootInstanceActivity, workflows.RebootInstanceInput{Operation: rescue, Instance: who})
	require.Equal(t, cyborg.ErrBusy, workflows.FromFailure(err).Kind)
	require.Zero(t, c.model.Reboots(who))
}

// TestOnlyARescueReachesNova: Temporal says which instance is looked at and
// rebooted, and for which operation. The records know which ones the rescue is
// about, so that nobody who can write to Temporal has another instance of the
// cloud rebooted.
func TestOnlyARescueReachesNova(t *testing.T) {
	t.Parallel()
	c := newCompute(t, 1, conductor.Policy{})
	rescue, who := c.rescued()
	stranger := uuid.New()
	c.model.Set(novatest.Instance{ID: stranger, Status: novatest.Active, Host: "h1"})

	for name, in := range map[string]workflows.RebootInstanceInput{
		"no operation":     {Instance: who},
		"another instance": {Instance: stranger, Operation: rescue},
	} {
		_, err := c.env.ExecuteActivity(workflows.RebootInstanceActivity, in)
		require.Error(t, err, name)
		require.Equal(t, cyborg.ErrForbidden, workflows.FromFailure(err).Kind, "%s: %v", name, err)

		_, err = c.env.ExecuteActivity(workflows.LookAtInstanceActivity, workflows.LookAtInstanceInput{
			Operation: in.Operation, Host: "h1", Rescue: cyborg.Rescue{Instance: in.Instance, BootID: c.boot, BootedAt: time.Now()},
		})
		require.Error(t, err, name)
		require.Equal(t, cyborg.ErrForbidden, workflows.FromFailure(err).Kind, "%s: %v", name, err)
	}
	require.Zero(t, c.model.Reboots(who))
	require.Zero(t, c.model.Reboots(stranger))

	// Neither the host nor the time of its boot is taken from Temporal.
	c.model.Act(who, "rebuild", "x", time.Now().Add(-time.Hour))
	value, err := c.env.ExecuteActivity(workflows.LookAtInstanceActivity, workflows.LookAtInstanceInput{
		Operation: rescue, Host: "h2", Rescue: cyborg.Rescue{Instance: who, BootID: "another", BootedAt: time.Now().Add(-2 * time.Hour)},
	})
	require.NoError(t, err)
	var found workflows.LookAtInstanceResult
	require.NoError(t, value.Get(&found))
	require.Empty(t, found.Outcome, "it is rebooted")
	require.Empty(t, found.Wait)

	_, err = c.env.ExecuteActivity(workflows.RebootInstanceActivity, workflows.RebootInstanceInput{Instance: who, Operation: rescue})
	require.NoError(t, err)
	require.Equal(t, 1, c.model.Reboots(who))
}

// TestInstanceThatLacksItsCardIsNotRebooted: its card is no longer shown since the
// rescue was admitted. Another one may be at the same address, which Nova would give it.
func TestInstanceThatLacksItsCardIsNotRebooted(t *testing.T) {
	t.Parallel()
	c := newCompute(t, 1, conductor.Policy{})
	rescue, who := c.rescued()
	c.cards = 0
	c.report()

	value, err := c.env.ExecuteActivity(workflows.LookAtInstanceActivity, workflows.LookAtInstanceInput{
		Operation: rescue, Host: "h1", Rescue: cyborg.Rescue{Instance: who},
	})
	require.NoError(t, err)
	var found workflows.LookAtInstanceResult
	require.NoError(t, value.Get(&found))
	require.Equal(t, cyborg.RescueSkipped, found.Outcome)
	require.Equal(t, `its host does not show its accelerator "h1_card0"`, found.Detail)
}

// TestRescueOfV01Reboots: a run that a server of release 0.1 works on does not name its
// rescue when it has an instance rebooted. Its workflow's id does, and its own
// instances are rebooted, also while servers of both releases run.
func TestRescueOfV01Reboots(t *testing.T) {
	t.Parallel()
	c := newCompute(t, 1, conductor.Policy{})
	rescue, who := c.rescued()

	reboots := func(workflowID string, instance uuid.UUID) error {
		var suite testsuite.WorkflowTestSuite
		env := suite.NewTestWorkflowEnvironment()
		env.RegisterActivityWithOptions(c.all[workflows.RebootInstanceActivity], registered(workflows.RebootInstanceActivity))
		env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: workflowID})
		env.ExecuteWorkflow(func(ctx workflow.Context) error {
			ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
				StartToCloseTimeout: time.Minute, RetryPolicy: &temporal.RetryPolicy{MaximumAttempts: 1},
			})
			return workflow.ExecuteActivity(ctx, workflows.RebootInstanceActivity, workflows.RebootInstanceInput{Instance: instance}).Get(ctx, nil)
		})
		return env.GetWorkflowError()
	}

	require.Equal(t, cyborg.ErrNotFound, workflows.FromFailure(reboots("rescue/"+uuid.NewString(), who)).Kind)
	require.Equal(t, cyborg.ErrForbidden, workflows.FromFailure(reboots("attach/"+rescue.String(), who)).Kind)
	require.Equal(t, cyborg.ErrForbidden, workflows.FromFailure(reboots("rescue/"+rescue.String(), uuid.New())).Kind)
	require.Zero(t, c.model.Reboots(who))

	require.NoError(t, reboots("rescue/"+rescue.String(), who))
	require.Equal(t, 1, c.model.Reboots(who))
}

// lost is a response that never reaches its client.
type lost struct{ header http.Header }

func (l *lost) Header() http.Header          { return l.header }
func (*lost) Write(text []byte) (int, error) { return len(text), nil }
func (*lost) WriteHeader(int)                {}
