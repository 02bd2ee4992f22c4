package journey_test

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
	"github.com/cyborg-project/cyborg/internal/openstack/placement/placementtest"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/workflows"
)

// withPlacement starts a cloud of as much as Placement needs, and says how a server finds it.
func withPlacement(t *testing.T) (model *placementtest.Placement, env []string) {
	t.Helper()
	keystone := openstacktest.NewKeystone(t)
	model = placementtest.New()
	server := httptest.NewServer(model)
	t.Cleanup(server.Close)
	keystone.Serve("placement", server.URL)
	return model, []string{
		"CYBORG_OPENSTACK_AUTH_URL=" + keystone.URL + "/v3", "CYBORG_OPENSTACK_USERNAME=" + openstacktest.OwnUser,
		"CYBORG_OPENSTACK_PASSWORD=" + openstacktest.OwnPassword, "CYBORG_PLACEMENT_ENABLED=true",
		"CYBORG_PLACEMENT_COMPARE_INTERVAL=1s", "CYBORG_CONDUCTOR_RECONCILE_INTERVAL=1s",
	}
}

// reserved waits until so many of a provider are reserved.
func reserved(t *testing.T, model *placementtest.Placement, name string, want int) {
	t.Helper()
	require.Eventually(t, func() bool {
		p := model.Provider(name)
		return p != nil && p.Inventories["FPGA"].Reserved == want && p.Inventories["FPGA"].Total > 0
	}, 3*time.Minute, 20*time.Millisecond, "%s: %d reserved", name, want)
}

// Placement follows what operators and operations do to an accelerator, whatever is killed meanwhile; what it has allocated
// is refused to operations; and what others do to it is repaired and told.
func TestPlacementFollows(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	model, env := withPlacement(t)
	model.AddHost("fake")
	s := harness.Start(t, harness.Options{Hosts: []string{"fake:1xfpga"}, Env: append(shortWaits(), env...)})
	h := newHistorian(t, s)
	a := s.Accelerators(t)[0]
	program := stages("fake")[1]
	program.before(t, s, a.UUID)
	program.before = func(*testing.T, *harness.Standalone, uuid.UUID) {}
	name := a.ProviderName
	reserved(t, model, name, 0)

	// Fenced while it is programmed, whoever dies in between.
	c := catch(t, s, program, a.UUID)
	reserved(t, model, name, 1)
	s.Kill(t)
	require.Equal(t, 1, model.Provider(name).Inventories["FPGA"].Reserved)
	s.Restart(t)
	c.hurry(t, s)
	h.end("placement", cyborg.OperationSucceeded, c.id)
	reserved(t, model, name, 0)

	// Nothing is done to what Nova has allocated.
	instance := cyborg.Holder{Kind: cyborg.HolderInstance, ID: uuid.NewString()}
	model.Allocate(instance.ID, name, "FPGA", 1)
	retire := func() (apiclient.Answer, error) { return s.API.Retire(ctx, a.UUID, apiclient.Async()) }
	h.play("allocated", cyborg.OperationFailed, retire)
	_, err := s.API.Attach(ctx, a.UUID, instance)
	require.NoError(t, err)
	h.play("allocated", cyborg.OperationFailed, func() (apiclient.Answer, error) { return s.API.Detach(ctx, a.UUID, instance, apiclient.Async()) })
	model.Allocate(instance.ID, name, "FPGA", -1)
	_, err = s.API.Detach(ctx, a.UUID, instance)
	require.NoError(t, err)
	reserved(t, model, name, 0)

	// What somebody deletes comes back.
	model.Remove(name)
	reserved(t, model, name, 0)
	require.Eventually(t, func() bool {
		found, err := apiclient.Collect(s.API.Drift(ctx, apiclient.DriftFilter{Hosts: []string{"fake"}}, apiclient.Page{}))
		require.NoError(t, err)
		return len(found) > 0 && found[0].Repaired
	}, 3*time.Minute, 50*time.Millisecond)

	h.play("placement", cyborg.OperationSucceeded, retire)
	reserved(t, model, name, 1)
	h.keep("succeeded", "placement/fake", "")
	h.runs(workflows.ReconcileWorkflow)
	h.replay()
}
