package journey_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/openstack/glance/glancetest"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestNobodyGetsWhatTheHostUses: the host has begun to use a card since its last
// report. Neither an instance nor a service gets it, through /v1 or as Nova binds
// it, and whoever asked learns who uses it. The card stays free, and is given away
// when that user is gone.
func TestNobodyGetsWhatTheHostUses(t *testing.T) {
	t.Parallel()
	keystone, glance, compute := openstacktest.NewKeystone(t), glancetest.Start(t), &nova{}
	server := httptest.NewServer(compute)
	t.Cleanup(server.Close)
	keystone.Serve("image", glance.URL)
	keystone.Serve("compute", server.URL)
	glance.Trust(keystone.IsOwn)

	s := harness.Start(t, harness.Options{Hosts: []string{"fake:1xfpga"}, Env: append(shortWaits(),
		"CYBORG_OPENSTACK_AUTH_URL="+keystone.URL, "CYBORG_OPENSTACK_PASSWORD="+openstacktest.OwnPassword,
	)})
	profile(t, s, "one", map[string]string{"resources:FPGA": "1"})
	image := glance.Add(fake.MakeImage("FPGA", "aes", []byte("payload")), nil)
	profile(t, s, "image", map[string]string{"resources:FPGA": "1", "accel:bitstream_id": image.String()})

	a := s.Accelerators(t)[0]
	_, err := s.API.MakeReady(t.Context(), a.UUID)
	require.NoError(t, err)

	use := func(by string) {
		for _, handle := range a.Handles {
			require.NoError(t, s.Bench("fake").Use(t.Context(), deviceOf(t, s, a), handle.Identity, by))
		}
	}
	requireFree := func() {
		now, _, err := s.API.Accelerator(t.Context(), a.UUID)
		require.NoError(t, err)
		require.Equal(t, cyborg.StatusReady, now.Status)
		require.Empty(t, now.Holders)
		require.Nil(t, now.Fence)
		require.Empty(t, now.BitstreamID)
	}
	bind := func(profile string) (arq string, status int) {
		arq = makeRequest(t, s, profile)
		id, status := patchRequest(t, s, arq, a, uuid.NewString())
		ended(t, s, caught{id: id})
		return arq, status
	}
	holders := []cyborg.Holder{
		{Kind: cyborg.HolderInstance, ID: uuid.NewString()}, {Kind: cyborg.HolderService, ID: "dns"}, {Kind: cyborg.HolderHost, ID: "fake"},
	}

	use("swap on /dev/sdb")
	for _, holder := range holders {
		_, err := s.API.Attach(t.Context(), a.UUID, holder)
		require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), "%s: %v", holder.Kind, err)
		require.ErrorContains(t, err, "in use by swap on /dev/sdb")
		requireFree()
	}

	for _, profile := range []string{"one", "image"} {
		arq, status := bind(profile)
		require.Contains(t, []int{http.StatusConflict, http.StatusAccepted}, status) // the second on a machine that is slow
		_, _, shown := request(t, s, http.MethodGet, requestsPath+"/"+arq, nil)
		require.Equal(t, string(cyborg.ARQBindFailed), shown["state"])
		require.Contains(t, shown["status_reason"], "in use by swap on /dev/sdb")
		requireFree()
		requireTold(t, compute, arq, "failed")
	}

	use("")
	for _, holder := range holders {
		_, err := s.API.Attach(t.Context(), a.UUID, holder)
		require.NoError(t, err, "%s", holder.Kind)
		_, err = s.API.Detach(t.Context(), a.UUID, cyborg.Holder{})
		require.NoError(t, err)
	}

	arq, status := bind("image")
	require.Equal(t, http.StatusAccepted, status)
	require.Equal(t, cyborg.ARQBound, stateOf(t, s, arq))
	requireTold(t, compute, arq, "completed")
	harness.RequireSound(t, s)
}

// requireTold waits until Nova was told how the bind of a request has ended.
func requireTold(t *testing.T, compute *nova, arq, event string) {
	t.Helper()
	until(t, "notified", func(context.Context) error {
		if len(compute.notified(arq)) == 0 {
			return fmt.Errorf("Nova has no event of request %s", arq)
		}
		return nil
	})
	for _, told := range compute.notified(arq) { // twice where the answer to the first was late
		require.Equal(t, event, told)
	}
}

// TestNobodyGetsWhatASilentHostHas: an attach to an instance waits for the host's
// agent as any step does, and says since when the host is silent.
func TestNobodyGetsWhatASilentHostHas(t *testing.T) {
	t.Parallel()
	s, agent, cards := startRack(t, "CYBORG_OPERATIONS_AGENT_WAIT=1s")
	a := cards[0]
	harness.Until(t, t.Context(), "ready", func() error { // a busy agent may not take a step within a second
		_, err := s.API.MakeReady(t.Context(), a.UUID)
		return err
	})
	agent.Kill(t)
	waitSilent(t, s, rack)

	_, err := s.API.Attach(t.Context(), a.UUID, cyborg.Holder{Kind: cyborg.HolderInstance, ID: uuid.NewString()})
	require.Equal(t, cyborg.ErrHostSilent, cyborg.ErrorKindOf(err), "%v", err)
	require.ErrorContains(t, err, "check that nobody uses")

	now, _, err := s.API.Accelerator(t.Context(), a.UUID)
	require.NoError(t, err)
	require.Empty(t, now.Holders)
}
