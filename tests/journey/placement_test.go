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

// withPlacement starts a Keystone and a model of Placement, and returns the
// model and the settings with which a server uses it.
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

// reserved waits until this many of a provider's resources are reserved.
func reserved(t *testing.T, model *placementtest.Placement, name string, want int) {
	t.Helper()
	require.Eventually(t, func() bool {
		p := model.Provider(name)
		return p != nil && p.Inventories["FPGA"].Reserved == want && p.Inventories["FPGA"].Total > 0
	}, 3*time.Minute, 20*time.Millisecond, "provider %s does not get to %d reserved", name, want)
}

// TestPlacementFollowsTheRecords changes an accelerator by operations and by
// hand, with a kill in between, and Placement follows. Operations on an
// allocated provider are refused, and changes that somebody else makes in
// Placement are repaired and recorded as drift.
func TestPlacementFollowsTheRecords(t *testing.T) {
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

	// Its provider is fenced while it is programmed, also over a kill.
	c := catch(t, s, program, a.UUID)
	reserved(t, model, name, 1)
	s.Kill(t)
	require.Equal(t, 1, model.Provider(name).Inventories["FPGA"].Reserved)
	s.Restart(t)
	c.hurry(t, s)
	h.end("placement", cyborg.OperationSucceeded, c.id)
	reserved(t, model, name, 0)

	// Operations on what Nova has allocated fail.
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

	// A deleted provider is created again.
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
