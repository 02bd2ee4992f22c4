package journey_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/openstack/glance/glancetest"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/workflows"
)

// nova is a stub of Nova that accepts events, unless it is away.
type nova struct {
	mu      sync.Mutex // guards the fields below
	away    bool       // every request is answered with 503
	refused int        // how often that has happened
	events  []novaEvent
}

// novaEvent is the part of an external event that the test looks at.
type novaEvent struct {
	ARQ    string `json:"tag"`
	Status string `json:"status"`
}

func (n *nova) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()

	if n.away {
		n.refused++
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}

	var body struct{ Events []novaEvent }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}

	n.events = append(n.events, body.Events...)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(`{"events": []}`))
}

// set makes Nova unavailable or available, and returns how many requests it has
// refused so far.
func (n *nova) set(away bool) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.away = away
	return n.refused
}

// notified returns the events of a request so far.
func (n *nova) notified(arq string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()

	var out []string
	for _, e := range n.events {
		if e.ARQ == arq {
			out = append(out, e.Status)
		}
	}

	return out
}

// until waits until check returns nil; what names the awaited state.
func until(t *testing.T, what string, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	harness.Until(t, ctx, what, func() error { return check(ctx) })
}

// TestL3L13NovaIsNotified binds too slowly, fails, and binds while Nova is
// away. Nova is notified of the timeout at the deadline and not after the undo
// (L3), and of a bind whose run was terminated before it could notify Nova
// (L13). It is notified of each bind once.
func TestL3L13NovaIsNotified(t *testing.T) {
	t.Parallel()
	keystone, glance, compute := openstacktest.NewKeystone(t), glancetest.Start(t), &nova{}

	server := httptest.NewServer(compute)
	t.Cleanup(server.Close)
	keystone.Serve("image", glance.URL)
	keystone.Serve("compute", server.URL)
	glance.Trust(keystone.IsOwn)

	s := harness.Start(t, harness.Options{Hosts: []string{"fake:2xfpga"}, Env: append(shortWaits(),
		"CYBORG_OPENSTACK_AUTH_URL="+keystone.URL, "CYBORG_OPENSTACK_PASSWORD="+openstacktest.OwnPassword, "CYBORG_ARQS_BIND_TIMEOUT=15s",
	)})

	cards := s.Accelerators(t)
	for i := range cards {
		_, err := s.API.MakeReady(t.Context(), cards[i].UUID)
		require.NoError(t, err)
	}

	temporal := s.TemporalClient(t)
	slowCard, other := cards[0], cards[1]

	device, err := s.API.Device(t.Context(), slowCard.DeviceUUID)
	require.NoError(t, err)

	// A bind whose image takes longer than arqs.bind_timeout. Nova is notified
	// while the undo, which is as slow, is still under way.
	_, err = s.API.Program(t.Context(), slowCard.UUID, cyborg.Image{Source: image(t, s, "fake", "aes"), ID: "aes-1"}) // the image that the undo restores
	require.NoError(t, err)

	slowImage := glance.Add(fake.MakeImage("FPGA", "slow", []byte("payload")), nil)
	profile(t, s, "slow", map[string]string{"resources:FPGA": "1", "accel:bitstream_id": slowImage.String()})
	setLatency(t, s, slowCard.Host, device.Identity, fake.StepProgram, slow)

	arq := makeRequest(t, s, "slow")
	late, status := patchRequest(t, s, arq, slowCard, uuid.NewString())
	require.Equal(t, http.StatusAccepted, status)

	until(t, "notified", func(context.Context) error {
		if len(compute.notified(arq)) == 0 {
			return fmt.Errorf("Nova has no event of request %s", arq)
		}
		return nil
	})

	atWork(t, s, late, workflows.RestoreActivity)
	require.Equal(t, cyborg.ARQBindFailed, stateOf(t, s, arq))

	hold, _, err := s.API.Accelerator(t.Context(), slowCard.UUID)
	require.NoError(t, err)
	require.Len(t, hold.Holders, 1, "the holders before the undo has ended")

	setLatency(t, s, slowCard.Host, device.Identity, fake.StepProgram, 0)
	op := ended(t, s, caught{id: late})
	require.Equal(t, cyborg.OperationFailed, op.State)
	require.Equal(t, cyborg.ErrTimeout, op.Error.Kind)

	h := newHistorian(t, s)
	h.end("too-late", cyborg.OperationFailed, late)

	// A bind that fails after the card was changed.
	h.fail(slowCard, fake.Failure{Times: 1, Kind: cyborg.ErrHardware, When: fake.After}, fake.StepProgram)

	broken := makeRequest(t, s, "slow")
	failing, status := patchRequest(t, s, broken, slowCard, uuid.NewString())
	require.Contains(t, []int{http.StatusAccepted, http.StatusBadGateway}, status)
	h.end("failed", cyborg.OperationFailed, failing)

	// A bind whose run is terminated while Nova is away.
	profile(t, s, "one", map[string]string{"resources:FPGA": "1"})
	before := compute.set(true)
	plain := makeRequest(t, s, "one")

	id, status := patchRequest(t, s, plain, other, uuid.NewString())
	require.Equal(t, http.StatusAccepted, status)

	until(t, "refused by Nova", func(context.Context) error {
		if compute.set(true) == before {
			return fmt.Errorf("Nova has not been asked yet")
		}
		return nil
	})

	op = ended(t, s, caught{id: id})
	require.NoError(t, temporal.TerminateWorkflow(t.Context(), op.WorkflowID, "", "by hand"))
	compute.set(false)

	until(t, "notified", func(context.Context) error {
		if len(compute.notified(plain)) == 0 {
			return fmt.Errorf("Nova has no event of request %s", plain)
		}
		return nil
	})

	store := s.Store(t)
	until(t, "without pending notifications", func(ctx context.Context) error {
		left, err := store.UnnotifiedBinds(ctx, 0, db.OperationPlace{}, 10)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("Nova has not been notified of %v", left)
		}
		return err
	})

	require.Equal(t, []string{"failed"}, compute.notified(arq))
	require.Equal(t, []string{"failed"}, compute.notified(broken))
	require.Equal(t, []string{"completed"}, compute.notified(plain))
	require.Equal(t, cyborg.ARQBound, stateOf(t, s, plain))

	harness.RequireSound(t, s)
	h.replay()
}
