package conductor_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/testsuite"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/conductor"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/openstack/placement"
	"github.com/cyborg-project/cyborg/internal/openstack/placement/placementtest"
	"github.com/cyborg-project/cyborg/internal/postgres/postgrestest"
	"github.com/cyborg-project/cyborg/workflows"
)

// cloud holds the records of some hosts and a model of Placement that is kept
// in step with them.
type cloud struct {
	*db.Store
	t     testing.TB
	url   string
	model *placementtest.Placement
	acts  *conductor.Placement
	env   *testsuite.TestActivityEnvironment
	seq   int64
}

// newCloud returns a cloud without hosts, on a database of its own.
func newCloud(t testing.TB) *cloud {
	t.Helper()
	url := postgrestest.NewFrom(t, "migrated", func(ctx context.Context, url string) error {
		_, err := db.Migrate(ctx, url)
		return err
	})

	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	store, err := db.Open(t.Context(), url, db.Options{}, log)
	require.NoError(t, err)
	t.Cleanup(store.Close)

	c := &cloud{Store: store, t: t, url: url, model: placementtest.New()}
	c.acts = conductor.NewPlacement(store, placement.New(c.model), conductor.PlacementOptions{CompareEvery: time.Microsecond, Width: 1}, log)

	var suite testsuite.WorkflowTestSuite
	c.env = suite.NewTestActivityEnvironment()
	all := conductor.New(store, nil, conductor.Policy{}, conductor.Cloud{Placement: c.acts}, conductor.Grants{}, log)
	for name, a := range all.All() {
		c.env.RegisterActivityWithOptions(a, registered(name))
	}
	for name, a := range c.acts.Queued() {
		c.env.RegisterActivityWithOptions(a, registered(name))
	}

	require.NoError(t, store.SetPlacementFollowing(t.Context(), true, time.Microsecond))
	return c
}

// aCard returns the report of a card with deployables that have num handles
// each. Each trait becomes an attribute of every deployable.
func aCard(name string, deployables int, num int, traits ...string) cyborg.DeviceReport {
	out := cyborg.DeviceReport{
		Identity: name, Type: cyborg.DeviceTypeFPGA, VendorID: "1234", ProductID: "1", Vendor: "Acme", Model: "F1",
		ControlPath: cyborg.ControlPath{Kind: "PCI", Info: map[string]string{"bus": name}},
	}

	for i := range deployables {
		d := cyborg.DeployableReport{
			Name: fmt.Sprintf("%s.%d", name, i), Specs: cyborg.Specs{Num: num, DeviceType: cyborg.DeviceTypeFPGA},
			Attributes: []cyborg.Attribute{{Key: "rc", Value: "FPGA"}}, ProgramSet: fmt.Sprint(i),
		}

		for n, trait := range traits {
			d.Attributes = append(d.Attributes, cyborg.Attribute{Key: fmt.Sprintf("trait%d", n), Value: trait})
		}
		for n := range num {
			d.Handles = append(d.Handles, cyborg.HandleReport{
				Kind: cyborg.HandleTestPCI, Identity: fmt.Sprintf("%s/%d", d.Name, n), Info: map[string]string{"function": fmt.Sprint(n)},
			})
		}
		out.Deployables = append(out.Deployables, d)
	}

	return out
}

// report has a host report these cards, and no others.
func (c *cloud) report(host string, cards ...cyborg.DeviceReport) {
	c.t.Helper()
	c.seq++

	content := agentapi.Content{
		Backends:    []agentapi.BackendReport{{Name: "fake", Driver: "fake", State: cyborg.BackendOK, Services: []string{}, Devices: cards}},
		Attachments: []agentapi.Attachment{},
	}

	replies, err := c.MergeReports(c.t.Context(), []agentapi.Report{{
		Host: host, BootID: "b", AgentVersion: "1", Sequence: c.seq, Digest: content.Digest(), Content: content,
	}})
	require.NoError(c.t, err)
	require.True(c.t, replies[0].Accepted)
}

// ready takes all accelerators of a host into service.
func (c *cloud) ready(host string) {
	c.t.Helper()
	for _, a := range c.of(host) {
		c.operate(db.Admission{Request: cyborg.ProvisionRequest{Accelerator: a.UUID}})
	}
}

// of returns the accelerators of a host.
func (c *cloud) of(host string) []cyborg.Accelerator {
	c.t.Helper()
	found, err := c.Accelerators(c.t.Context(), db.AcceleratorFilter{Hosts: []string{host}}, db.Page{})
	require.NoError(c.t, err)
	return found
}

// begin admits and begins an operation, and leaves it running.
func (c *cloud) begin(admission db.Admission) uuid.UUID {
	c.t.Helper()
	admission.ID, admission.Actor = uuid.New(), cyborg.Actor{Name: "alice"}
	admitted, err := c.Admit(c.t.Context(), admission)
	require.NoError(c.t, err)
	_, err = c.Begin(c.t.Context(), db.Run{Operation: admitted.Operation.ID, ID: "run"})
	require.NoError(c.t, err)
	return admitted.Operation.ID
}

// operate admits, begins and ends an operation.
func (c *cloud) operate(admission db.Admission) {
	c.t.Helper()
	operation := c.begin(admission)
	require.NoError(c.t, c.End(c.t.Context(), db.Run{Operation: operation, ID: "run"}, cyborg.Outcome{
		Operation: operation, State: cyborg.OperationSucceeded,
	}))
}

// run executes an activity. It decodes the result into out, unless that is nil.
func (c *cloud) run(name string, in, out any) error {
	value, err := c.env.ExecuteActivity(name, in)
	if err == nil && out != nil {
		err = value.Get(out)
	}
	return err
}

// sync brings a host's providers into step with the records.
func (c *cloud) sync(host string) workflows.SyncPlacementResult {
	c.t.Helper()
	var out workflows.SyncPlacementResult
	require.NoError(c.t, c.run(workflows.SyncPlacementActivity, workflows.SyncPlacementInput{Host: host}, &out))
	return out
}

// compare compares every host that is due with Placement, and requires that
// each comparison worked.
func (c *cloud) compare() workflows.ComparePlacementResult {
	c.t.Helper()
	var out workflows.ComparePlacementResult
	require.NoError(c.t, c.run(workflows.ComparePlacementActivity, workflows.ComparePlacementInput{Hosts: 100}, &out))
	require.Empty(c.t, out.Failed)
	return out
}

// fence closes the provider of an accelerator. It fails if somebody other than
// these consumers has an allocation of it.
func (c *cloud) fence(a *cyborg.Accelerator, consumers ...string) error {
	return c.run(workflows.FencePlacementActivity, workflows.FencePlacementInput{
		Host: a.Host, Accelerators: []uuid.UUID{a.UUID}, Consumers: consumers,
	}, nil)
}

// requireReserved asserts how many units of each named provider are reserved. A
// count of -1 says that the provider does not exist.
func (c *cloud) requireReserved(want map[string]int) {
	c.t.Helper()
	for name, reserved := range want {
		got := c.model.Provider(name)
		if reserved < 0 {
			require.Nil(c.t, got, name)
			continue
		}

		require.NotNil(c.t, got, name)
		for class, inventory := range got.Inventories {
			require.Equal(c.t, reserved, inventory.Reserved, "%s of %s", class, name)
			require.Equal(c.t, inventory.Total, inventory.MaxUnit, "%s of %s", class, name)
		}
	}
}

// exec changes the records with SQL, for what no method of the store can bring
// about.
func (c *cloud) exec(sql string, args ...any) {
	c.t.Helper()
	conn, err := pgx.Connect(c.t.Context(), c.url)
	require.NoError(c.t, err)
	defer conn.Close(c.t.Context())

	_, err = conn.Exec(c.t.Context(), sql, args...)
	require.NoError(c.t, err)
}

// drift returns the recorded differences by class, including the repaired ones.
func (c *cloud) drift() map[cyborg.DriftClass]cyborg.Drift {
	c.t.Helper()
	listed, err := c.Drift(c.t.Context(), db.DriftFilter{}, db.Page{})
	require.NoError(c.t, err)

	out := map[cyborg.DriftClass]cyborg.Drift{}
	for _, d := range listed {
		out[d.Class] = d
	}
	return out
}

// L20: Placement gets no provider for an accelerator that nobody has taken into
// service. The card may be in use in some other way.
func TestL20InactiveAcceleratorsAreReserved(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.model.AddHost("h1")
	c.report("h1", aCard("a", 1, 2))

	c.sync("h1")
	c.requireReserved(map[string]int{"h1_a.0": -1})

	c.ready("h1")
	c.sync("h1")
	c.requireReserved(map[string]int{"h1_a.0": 0})
}

// Each deployable in service has a provider with its inventory and its traits.
// What the records give out without Nova is reserved, and a sync without a
// difference writes nothing.
func TestPlacementFollowsTheRecords(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	root := c.model.AddHost("h1")
	c.report("h1", aCard("a", 1, 2, "CUSTOM_A", "my-trait"))
	c.ready("h1")
	c.sync("h1")

	got := c.model.Provider("h1_a.0")
	require.Equal(t, cyborg.ProviderUUID("h1_a.0"), got.UUID)
	require.Equal(t, root.UUID, got.Parent)
	require.Equal(t, []string{"CUSTOM_A", "CUSTOM_MY_TRAIT", "OWNER_CYBORG"}, got.Traits)
	require.Equal(t, map[string]placementtest.Inventory{
		"FPGA": {Total: 2, MinUnit: 1, MaxUnit: 2, StepSize: 1, AllocationRatio: 1},
	}, got.Inventories)

	// An accelerator that was attached without Nova is not available to Nova.
	a := c.of("h1")[0]
	vm := cyborg.Holder{Kind: cyborg.HolderInstance, ID: uuid.NewString()}
	c.operate(db.Admission{Request: cyborg.AttachRequest{Accelerator: a.UUID, Holder: vm}})
	c.sync("h1")
	c.requireReserved(map[string]int{"h1_a.0": 1})

	c.operate(db.Admission{Request: cyborg.DetachRequest{Accelerator: a.UUID}})
	c.operate(db.Admission{Request: cyborg.RetireRequest{Accelerator: a.UUID}})
	c.sync("h1")
	c.requireReserved(map[string]int{"h1_a.0": 2})

	// Nothing has changed since the last sync.
	c.model.Writes()
	c.sync("h1")
	writes, reads := c.model.Writes()
	require.Empty(t, writes)
	require.Equal(t, 5, reads)
}

// L5: maintenance of a card reserves all of its providers, and none of another
// card or another host.
func TestL5MaintenanceReservesItsProviders(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	for _, host := range []string{"h1", "h2"} {
		c.model.AddHost(host)
		c.report(host, aCard("a", 3, 1), aCard("b", 2, 2))
		c.ready(host)
	}

	devices, err := c.Devices(t.Context(), db.DeviceFilter{Hosts: []string{"h2"}}, db.Page{})
	require.NoError(t, err)
	for _, d := range devices {
		if d.Identity == "b" {
			_, err := c.MaintainDevice(t.Context(), d.UUID, cyborg.Maintenance{Reason: "fan"}, cyborg.Actor{Name: "alice"})
			require.NoError(t, err)
		}
	}

	c.sync("h1")
	c.sync("h2")
	c.requireReserved(map[string]int{
		"h1_a.0": 0, "h1_a.1": 0, "h1_a.2": 0, "h1_b.0": 0, "h1_b.1": 0,
		"h2_a.0": 0, "h2_a.1": 0, "h2_a.2": 0, "h2_b.0": 2, "h2_b.1": 2,
	})
}

// L6: a reserved provider stays reserved when its inventory or traits are
// written for another reason, and its max_unit stays at the total.
func TestL6ReservedStaysReserved(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.model.AddHost("h1")
	c.report("h1", aCard("a", 1, 2))
	c.ready("h1")

	a := c.of("h1")[0]
	_, err := c.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "fan"}, cyborg.Actor{Name: "alice"})
	require.NoError(t, err)
	c.sync("h1")
	c.requireReserved(map[string]int{"h1_a.0": 2})

	c.report("h1", aCard("a", 1, 4, "CUSTOM_NEW"))
	c.sync("h1")
	c.requireReserved(map[string]int{"h1_a.0": 4})

	_, err = c.Enable(t.Context(), a.UUID, cyborg.Actor{Name: "alice"})
	require.NoError(t, err)
	c.sync("h1")
	c.requireReserved(map[string]int{"h1_a.0": 0})
}

// L14: whichever request fails, and in whatever way, the sync is retried until
// the tree is right. A provider that somebody removes is created again.
func TestL14FailedRequestsAreRetried(t *testing.T) {
	t.Parallel()
	for _, fault := range []placementtest.Fault{{Status: 503}, {Status: 500, After: true}, {Cut: true, After: true}, {Status: 409}, {Status: 409, After: true}} {
		t.Run(fmt.Sprintf("%+v", fault), func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			c.model.AddHost("h1")
			c.report("h1", aCard("a", 1, 1, "CUSTOM_A"))
			c.ready("h1")

			requests := 0
			c.model.Fail = func(*http.Request) *placementtest.Fault {
				requests++
				if requests%3 == 0 && requests < 60 {
					return &fault
				}
				return nil
			}

			tries := 0
			require.Eventually(t, func() bool {
				tries++
				err := c.run(workflows.SyncPlacementActivity, workflows.SyncPlacementInput{Host: "h1"}, nil)
				if err != nil {
					require.True(t, workflows.FromFailure(err).Kind.Retryable(), "%v", err)
				}
				return err == nil
			}, 5*time.Minute, time.Millisecond)

			c.model.Fail = nil
			c.sync("h1")
			c.requireReserved(map[string]int{"h1_a.0": 0})

			c.model.Remove("h1_a.0")
			found := c.compare()
			require.Equal(t, map[cyborg.DriftClass]int{cyborg.DriftMissingProvider: 1}, found.Drift)
			require.Equal(t, 1, found.Repaired)
			c.requireReserved(map[string]int{"h1_a.0": 0})
			require.NotZero(t, c.drift()[cyborg.DriftMissingProvider].RepairedAt)
			require.Empty(t, c.compare().Drift)
		})
	}
}

// L15: the provider of a card that vanishes under an instance is reserved, kept
// and reported as drift, and does not stop the host's other providers from
// being synchronized. It is removed once nobody has an allocation of it.
func TestL15VanishedProviderInUseIsKept(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.model.AddHost("h1")
	c.report("h1", aCard("a", 1, 1), aCard("b", 1, 1))
	c.ready("h1")
	c.sync("h1")

	c.model.Allocate("vm", "h1_a.0", "FPGA", 1)
	c.report("h1", aCard("b", 1, 1), aCard("c", 1, 1))
	c.ready1("h1", "h1_c.0")
	c.sync("h1")
	c.requireReserved(map[string]int{"h1_a.0": 1, "h1_b.0": 0, "h1_c.0": 0})

	c.compare()
	vanished := c.drift()[cyborg.DriftVanishedInUse]
	require.Zero(t, vanished.RepairedAt)
	require.Contains(t, vanished.Detail, "vm")

	// The records have forgotten it, and yet the provider stays as long as the
	// instance has an allocation.
	c.exec("UPDATE deployables SET missing_since = now() - interval '1 day' WHERE presence = 'missing'")
	c.exec("UPDATE attach_handles SET missing_since = now() - interval '1 day' WHERE presence = 'missing'")
	_, err := c.Forget(t.Context(), time.Hour)
	require.NoError(t, err)
	c.sync("h1")
	c.requireReserved(map[string]int{"h1_a.0": 1})
	c.compare()
	require.Zero(t, c.drift()[cyborg.DriftOrphanProvider].RepairedAt)

	c.model.Allocate("vm", "h1_a.0", "FPGA", -1)
	c.compare()
	c.requireReserved(map[string]int{"h1_a.0": -1, "h1_b.0": 0, "h1_c.0": 0})
	require.Empty(t, c.compare().Drift)
	for _, d := range c.drift() {
		require.NotZero(t, d.RepairedAt, d.Class)
	}
}

// ready1 takes one accelerator of a host into service, found by its provider's
// name.
func (c *cloud) ready1(host, deployable string) {
	c.t.Helper()
	for _, a := range c.of(host) {
		if a.ProviderName == deployable {
			c.operate(db.Admission{Request: cyborg.ProvisionRequest{Accelerator: a.UUID}})
		}
	}
}

// A host without a compute node waits until that exists, and is not retried all
// the time meanwhile. A sync of one host leaves the providers of other hosts
// alone, even where they are in its tree.
func TestPlacementWaitsForTheComputeNode(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.report("h1", aCard("a", 1, 1))
	c.ready("h1")

	require.NoError(t, c.SetPlacementFollowing(t.Context(), true, time.Hour))
	due, err := c.TakeDuePlacement(t.Context(), 10, time.Hour)
	require.NoError(t, err)
	require.Equal(t, []string{"h1"}, due)

	require.NotEmpty(t, c.sync("h1").Waits)
	due, err = c.TakeDuePlacement(t.Context(), 10, time.Hour)
	require.NoError(t, err)
	require.Empty(t, due)
	require.Zero(t, c.drift()[cyborg.DriftNoComputeNode].RepairedAt)

	root := c.model.AddHost("h1")
	require.Empty(t, c.sync("h1").Waits)
	require.NotZero(t, c.drift()[cyborg.DriftNoComputeNode].RepairedAt)

	other := c.model.AddHost("h2")
	c.report("h2", aCard("b", 1, 1))
	stray := c.model.Provider("h1_a.0")
	stray.Parent = other.UUID
	c.model.Put(*stray)

	c.sync("h2")
	require.NotNil(t, c.model.Provider("h1_a.0"))
	require.Equal(t, 1, c.compare().Drift[cyborg.DriftWrongParent])
	require.Equal(t, root.UUID, c.model.Provider("h1_a.0").Parent)
}

// L23: nothing is scheduled on a host that has been silent for too long.
func TestL23SilentHostIsReserved(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.model.AddHost("h1")
	c.report("h1", aCard("a", 1, 2))
	c.ready("h1")
	c.sync("h1")

	c.exec("UPDATE hosts SET last_seen = now() - interval '1 hour'")
	_, err := c.RecordSilentHosts(t.Context(), time.Minute)
	require.NoError(t, err)
	c.sync("h1")
	c.requireReserved(map[string]int{"h1_a.0": 2})

	c.exec("UPDATE hosts SET last_seen = now()")
	_, err = c.RecordSilentHosts(t.Context(), time.Minute)
	require.NoError(t, err)
	c.sync("h1")
	c.requireReserved(map[string]int{"h1_a.0": 0})
}

// An operation that changes the hardware is refused where somebody has an
// allocation of the provider, and the error names the consumer.
func TestPlacementFenceRefusesAllocatedProviders(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.model.AddHost("h1")
	c.report("h1", aCard("a", 1, 1))
	c.ready("h1")
	c.sync("h1")

	a := c.of("h1")[0]
	require.Equal(t, cyborg.ErrInternal, workflows.FromFailure(c.fence(&a)).Kind, "the records have not fenced it")

	operation := c.begin(db.Admission{Request: cyborg.ProgramRequest{Accelerator: a.UUID, Image: cyborg.Image{Source: "x"}}})
	require.NoError(t, c.fence(&a))
	c.requireReserved(map[string]int{"h1_a.0": 1})

	c.model.Allocate("11111111-2222-3333-4444-555555555555", "h1_a.0", "FPGA", 1)
	failure := workflows.FromFailure(c.fence(&a))
	require.Equal(t, cyborg.ErrInUse, failure.Kind)
	require.Contains(t, failure.Message, "11111111-2222-3333-4444-555555555555")
	require.NoError(t, c.fence(&a, "11111111-2222-3333-4444-555555555555"))

	check := workflows.CheckAllocationsInput{Accelerator: a.UUID, Consumers: []string{"other"}}
	require.NoError(t, c.run(workflows.CheckAllocationsActivity, check, nil))
	check.Consumers = []string{"11111111-2222-3333-4444-555555555555"}
	require.Equal(t, cyborg.ErrInUse, workflows.FromFailure(c.run(workflows.CheckAllocationsActivity, check, nil)).Kind)

	// A slow Placement does not let the activity's heartbeat time out: the fault
	// holds its answer back until the activity has sent one.
	heard := make(chan struct{})
	once := sync.OnceFunc(func() { close(heard) })
	c.env.SetOnActivityHeartbeatListener(func(*activity.Info, converter.EncodedValues) { once() })
	c.model.Fail = func(*http.Request) *placementtest.Fault {
		select {
		case <-heard:
			return nil
		case <-time.After(time.Minute):
			return &placementtest.Fault{Status: http.StatusGatewayTimeout}
		}
	}

	require.Equal(t, cyborg.ErrInUse, workflows.FromFailure(c.run(workflows.CheckAllocationsActivity, check, nil)).Kind)

	require.NoError(t, c.End(t.Context(), db.Run{Operation: operation, ID: "run"}, cyborg.Outcome{Operation: operation, State: cyborg.OperationSucceeded}))
	c.sync("h1")
	c.requireReserved(map[string]int{"h1_a.0": 0})
}

// A fence may be confirmed at any moment of a sync that is about to open the
// same provider. From then on the provider must stay reserved, so the sync must
// not write what it planned before. The test tries each request of the sync in
// turn as that moment.
func TestPlacementFenceInvalidatesOldPlans(t *testing.T) {
	t.Parallel()
	for at := 1; ; at++ {
		c := newCloud(t)
		c.model.AddHost("h1")
		c.report("h1", aCard("a", 1, 2))
		c.ready("h1")

		a := c.of("h1")[0]
		_, err := c.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "x"}, cyborg.Actor{Name: "alice"})
		require.NoError(t, err)
		c.sync("h1")
		_, err = c.Enable(t.Context(), a.UUID, cyborg.Actor{Name: "alice"})
		require.NoError(t, err)

		requests, fenced := 0, false
		c.model.Fail = func(*http.Request) *placementtest.Fault {
			if requests++; requests == at { // in the middle of the sync
				other := *c
				c.model.Fail = nil

				var suite testsuite.WorkflowTestSuite
				other.env = suite.NewTestActivityEnvironment()
				all := conductor.New(c.Store, nil, conductor.Policy{}, conductor.Cloud{Placement: c.acts}, conductor.Grants{}, slog.New(slog.DiscardHandler))
				for name, activity := range all.All() {
					other.env.RegisterActivityWithOptions(activity, registered(name))
				}

				other.begin(db.Admission{Request: cyborg.ProgramRequest{Accelerator: a.UUID, Image: cyborg.Image{Source: "x"}}})
				require.NoError(t, other.fence(&a))
				fenced = true
				c.requireReserved(map[string]int{"h1_a.0": 2})
			}
			return nil
		}

		err = c.run(workflows.SyncPlacementActivity, workflows.SyncPlacementInput{Host: "h1"}, nil) // it may lose to the fence
		if !fenced {
			require.NoError(t, err)
			require.Greater(t, at, 5)
			return
		}

		c.requireReserved(map[string]int{"h1_a.0": 2})
	}
}

// Each class of difference that others cause in a tree is found, recorded and
// repaired.
func TestPlacementDrift(t *testing.T) {
	t.Parallel()
	for class, meddle := range map[cyborg.DriftClass]func(c *cloud, p *placementtest.Provider){
		cyborg.DriftMissingProvider: func(c *cloud, p *placementtest.Provider) { c.model.Remove(p.Name) },
		cyborg.DriftWrongParent: func(c *cloud, p *placementtest.Provider) {
			p.Parent = c.model.Provider("h1_numa0").UUID
			c.model.Put(*p)
		},
		cyborg.DriftWrongName: func(c *cloud, p *placementtest.Provider) { p.Name = "other"; c.model.Put(*p) },
		cyborg.DriftInventory: func(c *cloud, p *placementtest.Provider) {
			p.Inventories = map[string]placementtest.Inventory{"FPGA": {Total: 9, MinUnit: 1, MaxUnit: 9, StepSize: 1, AllocationRatio: 1}}
			c.model.Put(*p)
		},
		cyborg.DriftReserved: func(c *cloud, p *placementtest.Provider) {
			p.Inventories = map[string]placementtest.Inventory{"FPGA": {Total: 2, Reserved: 1, MinUnit: 1, MaxUnit: 2, StepSize: 1, AllocationRatio: 1}}
			c.model.Put(*p)
		},
		cyborg.DriftTraits: func(c *cloud, p *placementtest.Provider) { p.Traits = []string{"OWNER_CYBORG"}; c.model.Put(*p) },
		cyborg.DriftOrphanProvider: func(c *cloud, p *placementtest.Provider) {
			c.model.Put(placementtest.Provider{UUID: uuid.New(), Name: "h1_zzz", Parent: p.Parent, Traits: []string{"OWNER_CYBORG"}})
		},
	} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			c.model.AddHost("h1")
			c.report("h1", aCard("a", 1, 2, "CUSTOM_A"))
			c.ready("h1")
			c.sync("h1")
			require.Empty(t, c.compare().Drift)

			before := c.model.Provider("h1_a.0")
			meddle(c, c.model.Provider("h1_a.0"))

			found := c.compare()
			require.Equal(t, map[cyborg.DriftClass]int{class: 1}, found.Drift)
			require.Equal(t, 1, found.Repaired)

			after := c.model.Provider("h1_a.0")
			before.Generation = after.Generation
			require.Equal(t, before, after)
			require.Nil(t, c.model.Provider("h1_zzz"))

			require.NotZero(t, c.drift()[class].RepairedAt)
			require.Empty(t, c.compare().Drift)
		})
	}
}

// Somebody else changes a provider while differences are repaired, so that the
// tree is read and planned again. What was repaired before that is drift, too.
func TestPlacementDriftBeforeACollision(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.model.AddHost("h1")
	c.report("h1", aCard("a", 3, 2, "CUSTOM_A"))
	c.ready("h1")
	c.sync("h1")
	require.Empty(t, c.compare().Drift)

	for _, name := range []string{"h1_a.0", "h1_a.1", "h1_a.2"} {
		p := c.model.Provider(name)
		p.Traits = []string{"OWNER_CYBORG"}
		c.model.Put(*p)
	}

	writes := 0
	c.model.Fail = func(r *http.Request) *placementtest.Fault {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/traits") {
			if writes++; writes == 2 {
				return &placementtest.Fault{Status: http.StatusConflict, Code: "placement.concurrent_update"}
			}
		}
		return nil
	}

	found := c.compare()
	require.Equal(t, map[cyborg.DriftClass]int{cyborg.DriftTraits: 3}, found.Drift)
	require.Equal(t, 3, found.Repaired)
	require.Equal(t, 4, writes, "each once, and one again")
	require.Empty(t, c.compare().Drift)
}

// Allocations are compared with the accelerator requests, provider by provider.
// A difference is reported only if the next comparison finds it again, and it
// is never repaired, because allocations belong to Nova.
func TestPlacementAllocationDrift(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.model.AddHost("h1")
	c.report("h1", aCard("a", 2, 2))
	c.ready("h1")
	c.sync("h1")

	c.exec(`INSERT INTO device_profiles (name, groups) VALUES ('two', '[{"resources:FPGA": "2"}]')`)
	vm, one := uuid.NewString(), c.of("h1")[0]
	request := cyborg.BindRequest{Host: "h1", Holder: cyborg.Holder{Kind: cyborg.HolderInstance, ID: vm}, Within: time.Minute}
	arqs, err := c.CreateARQs(t.Context(), "two", cyborg.Actor{Name: "alice"})
	require.NoError(t, err)
	for i := range arqs {
		request.ARQs = append(request.ARQs, cyborg.BindARQ{UUID: arqs[i].UUID, Provider: one.ProviderUUID})
	}
	c.operate(db.Admission{Request: request})

	found := func() map[cyborg.DriftClass]string {
		require.Zero(t, c.compare().Repaired)
		told := map[cyborg.DriftClass]string{}
		for class, d := range c.drift() {
			if d.RepairedAt.IsZero() {
				told[class] = d.Name + ": " + d.Detail
			}
		}
		return told
	}

	c.model.Allocate(vm, one.ProviderName, "FPGA", 2)
	c.model.Writes()
	require.Empty(t, found())
	require.Empty(t, found())

	c.model.Allocate(vm, one.ProviderName, "FPGA", 1)
	c.model.Allocate(vm, "h1_a.1", "FPGA", 1) // another provider than the one it is bound to
	require.Empty(t, found(), "Nova may be at work")
	require.Equal(t, map[cyborg.DriftClass]string{
		cyborg.DriftMissingAllocation: one.ProviderName + ": " + vm + " has 2 of it through accelerator requests, and 1 allocated in Placement",
		cyborg.DriftUnknownAllocation: "h1_a.1: " + vm + " has an allocation of it, and no accelerator request",
	}, found())

	c.model.Allocate(vm, "h1_a.1", "FPGA", -1)
	c.model.Allocate(vm, one.ProviderName, "FPGA", 2)
	require.Empty(t, found())

	c.model.Allocate(vm, one.ProviderName, "FPGA", -1)
	require.Empty(t, found())
	require.Contains(t, found()[cyborg.DriftMissingAllocation], "2 of it through accelerator requests, and 0 allocated in Placement")

	writes, _ := c.model.Writes()
	require.Empty(t, writes)
}

// A write that Placement rejects is recorded as drift, and the host waits
// instead of being retried all the time.
func TestPlacementRejectionIsRetriedLater(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.model.AddHost("h1")
	c.report("h1", aCard("a", 1, 1))
	c.ready("h1")

	c.model.Fail = func(r *http.Request) *placementtest.Fault {
		if r.Method == http.MethodPost {
			return &placementtest.Fault{Status: 400}
		}
		return nil
	}

	require.Contains(t, c.sync("h1").Waits, "400")
	require.Zero(t, c.drift()[cyborg.DriftRefused].RepairedAt)

	c.model.Fail = nil
	require.Empty(t, c.sync("h1").Waits)
	require.NotZero(t, c.drift()[cyborg.DriftRefused].RepairedAt)
}

// L8: a trait that was set through the API stays on its provider whatever the
// host reports. Deleting it takes it from that provider only.
func TestL8TraitsSetThroughTheAPIStay(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.model.AddHost("h1")
	c.report("h1", aCard("a", 2, 1, "CUSTOM_SHARED"))
	c.ready("h1")

	alice := cyborg.Actor{Name: "alice"}
	a := c.of("h1")[0]
	set, err := c.CreateAttribute(t.Context(), db.DeployableFilter{UUIDs: []uuid.UUID{a.UUID}}, cyborg.Attribute{Key: "trait9", Value: "CUSTOM_MINE"}, alice)
	require.NoError(t, err)
	c.sync("h1")
	require.Equal(t, []string{"CUSTOM_MINE", "CUSTOM_SHARED", "OWNER_CYBORG"}, c.model.Provider(a.ProviderName).Traits)

	c.report("h1", aCard("a", 2, 1, "CUSTOM_SHARED", "CUSTOM_NEW"))
	c.sync("h1")
	require.Equal(t, []string{"CUSTOM_MINE", "CUSTOM_NEW", "CUSTOM_SHARED", "OWNER_CYBORG"}, c.model.Provider(a.ProviderName).Traits)

	require.NoError(t, c.DeleteAttribute(t.Context(), set.UUID, alice))
	c.report("h1", aCard("a", 1, 1))
	c.sync("h1")
	require.Equal(t, []string{"OWNER_CYBORG"}, c.model.Provider(a.ProviderName).Traits)
	require.Contains(t, c.model.Provider("h1_a.1").Traits, "CUSTOM_SHARED")

	writes, _ := c.model.Writes()
	require.NotContains(t, strings.Join(writes, "\n"), "DELETE")
}

// While Placement is away, a round sends it one request only, and does not
// count the hosts as out of step. A later round compares them.
func TestPlacementAwayWhileComparing(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	for _, host := range []string{"h1", "h2", "h3"} {
		c.model.AddHost(host)
		c.report(host, aCard("a", 1, 1))
		c.ready(host)
		c.sync(host)
	}

	require.NoError(t, c.SetPlacementFollowing(t.Context(), true, 0))
	requests := 0
	c.model.Fail = func(*http.Request) *placementtest.Fault {
		requests++
		return &placementtest.Fault{Status: 503}
	}

	var out workflows.ComparePlacementResult
	require.NoError(t, c.run(workflows.ComparePlacementActivity, workflows.ComparePlacementInput{Hosts: 100}, &out))
	require.Zero(t, out.Compared)
	require.Len(t, out.Failed, 1)
	require.Equal(t, 1, requests)

	state, err := c.PlacementState(t.Context())
	require.NoError(t, err)
	require.Zero(t, state.OutOfStep)

	c.model.Fail = nil
	require.Equal(t, 3, c.compare().Compared)
}

// A round takes only as many hosts at a time as it compares in parallel,
// because a process that dies leaves the hosts that it has taken behind.
func TestPlacementComparisonTakesLimitedHosts(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	for _, host := range []string{"h1", "h2", "h3"} {
		c.model.AddHost(host)
		c.report(host, aCard("a", 1, 1))
		c.ready(host)
		c.sync(host)
	}
	require.NoError(t, c.SetPlacementFollowing(t.Context(), true, 0))

	most := 0
	c.model.Fail = func(*http.Request) *placementtest.Fault {
		state, err := c.PlacementState(t.Context())
		require.NoError(t, err)
		most = max(most, state.OutOfStep)
		return nil
	}

	require.Equal(t, 3, c.compare().Compared)
	require.Equal(t, 1, most)
}

// Forgetting a host removes our providers below its compute node, and leaves
// the providers of others there.
func TestPlacementOfAForgottenHost(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	c.model.AddHost("h1")
	c.report("h1", aCard("a", 2, 1))
	c.ready("h1")
	c.sync("h1")
	c.requireReserved(map[string]int{"h1_a.0": 0, "h1_a.1": 0})

	c.exec("UPDATE hosts SET last_seen = now() - interval '1 hour'")
	require.NoError(t, c.ForgetHost(t.Context(), "h1", cyborg.Actor{Name: "alice"}))
	c.sync("h1")
	c.requireReserved(map[string]int{"h1_a.0": -1, "h1_a.1": -1, "h1_numa0": 0})

	require.NoError(t, c.SetPlacementFollowing(t.Context(), true, time.Hour))
	due, err := c.TakeDuePlacement(t.Context(), 100, time.Hour)
	require.NoError(t, err)
	require.Empty(t, due)
}
