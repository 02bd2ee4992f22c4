// Package races_test lets many clients race for a few accelerators through
// several API processes, and checks their answers with models of accelerators
// and of accelerator requests.
package races_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	temporal "go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

var (
	operations = flag.Int("races.operations", 1000, "number of requests that the clients of the race \"history\" send")
	clients    = flag.Int("races.clients", 24, "number of clients")
	seed       = flag.Uint64("races.seed", 0, "seed of the random choices; 0 for a new one, which is logged")
)

// holderOf splits the text of a holder.
func holderOf(text string) (kind, id string) {
	kind, id, _ = strings.Cut(text, ":")
	return kind, id
}

// system is a standalone and two more processes with an API.
type system struct {
	*harness.Standalone
	endpoints []endpoint
	temporal  temporal.Client
	rack      *harness.Agent // of the race "history"

	mu     sync.Mutex // guards rounds
	rounds []span     // of Reconcile
}

// start runs a system with these hosts. The limits of the API are so high that
// no request is refused because of the load, and no host counts as silent
// because its agent is slow. Rounds of Reconcile run only when a test says so.
func start(t *testing.T, hosts ...string) *system {
	t.Helper()
	s := &system{Standalone: harness.Start(t, harness.Options{Hosts: hosts, Env: []string{
		"CYBORG_API_MAX_IN_FLIGHT=500", "CYBORG_API_QUEUE_WAIT=10m", "CYBORG_API_SYNC_WAIT=10m", "CYBORG_OPERATIONS_AGENT_WAIT=10m", "CYBORG_ARQS_BIND_TIMEOUT=10m",
		"CYBORG_CONDUCTOR_SILENT_AFTER=10m", "CYBORG_CONDUCTOR_RECONCILE_INTERVAL=24h", "CYBORG_OPERATIONS_HEARTBEAT=5s",
		"CYBORG_AGENT_NOVA_CONF_DIR=" + t.TempDir(), "CYBORG_LOG_LEVEL=warn",
	}})}

	s.temporal = s.TemporalClient(t)

	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)

	urls := []string{s.URL, s.StartServer(t, "api").URL, s.StartServer(t, "api", "conductor").URL}
	for _, url := range urls {
		s.endpoints = append(s.endpoints, endpoint{url: url, http: &http.Client{Transport: transport}})
	}

	return s
}

// optionsOf returns the driver options of a park whose steps take some time, so
// that requests meet them under way.
func optionsOf(park string, handles int) cyborg.JSONObject {
	return cyborg.JSONObject{
		"park": park, "handles": handles, "attach_latency": "5ms", "detach_latency": "5ms", "program_latency": "20ms", "install_latency": "10ms",
	}
}

// park configures the cards of a host, each with this many handles, and returns
// the accelerators when they are reported.
func (s *system) park(t *testing.T, host, park string, handles int) []apiclient.Accelerator {
	t.Helper()
	_, err := s.API.UpdateDriver(t.Context(), host, "fake", optionsOf(park, handles))
	require.NoError(t, err)

	var found []apiclient.Accelerator
	harness.Until(t, t.Context(), "configured", func() error {
		found, err = apiclient.Collect(s.API.Accelerators(t.Context(), apiclient.AcceleratorFilter{Hosts: []string{host}}, apiclient.Page{}))
		if err != nil {
			return err
		}

		for i := range found {
			if len(found[i].Handles) != handles {
				return fmt.Errorf("%s has %d handles, not %d", found[i].Name, len(found[i].Handles), handles)
			}
		}
		return nil
	})

	return found
}

// TestRaces runs all races on one system. Each has hosts of its own.
func TestRaces(t *testing.T) {
	t.Parallel()
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("-races.seed=%d", *seed)

	s := start(t, "names=fake:6xnic", "fit-1=fake:5xgpu", "fit-2=fake:5xgpu", "keys=fake:1xqat",
		"retry=fake:1xaichip", "driver=fake:2xssd", "force=fake:1xfpga", "requests=fake:2xfpga", "group=fake:1xfpga")
	s.rack = s.StartAgent(t, "rack", "3xfpga") // it ends after the cleanup, which still needs it
	s.StartAgent(t, "partition", "1xfpga")
	t.Cleanup(func() {
		if !t.Failed() { // a race that has failed may have left the host down
			s.requireSound(t)
		}
	})

	for name, race := range map[string]func(t *testing.T){
		"history": s.raceHistory, "one name": s.raceForName, "what fits": s.raceForFit,
		"one key": s.raceWithOneKey, "retry": s.raceToRetry, "driver": s.raceWithDriver,
		"force": s.raceToForce, "requests": s.raceOfRequests, "group": s.raceForGroup, "partition": s.raceToPartition,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			race(t)
		})
	}
}

// requireSound runs Reconcile until everything is true that must be at rest.
func (s *system) requireSound(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()

	harness.Until(t, ctx, "sound", func() error {
		s.round(t)
		return s.Unsound(ctx)
	})
}

// atRest waits until a host's operations have ended, and returns them.
func (s *system) atRest(t *testing.T, host string) []apiclient.Operation {
	t.Helper()
	var ops []apiclient.Operation
	harness.Until(t, t.Context(), "at rest", func() (err error) {
		ops, err = apiclient.Collect(s.API.Operations(t.Context(), apiclient.OperationFilter{Hosts: []string{host}}, apiclient.Page{}))

		for _, op := range ops {
			if !op.State.Ended() {
				return fmt.Errorf("operation %s %s is still %s", op.Kind, op.ID, op.State)
			}
		}
		return err
	})
	return ops
}
