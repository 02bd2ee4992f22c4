package inventory_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
)

// patient is a gadget that says how its devices are.
type patient struct {
	gadget
	said map[string][]cyborg.Condition
	ill  error         // why it cannot say
	gate chan struct{} // if set, a check waits for it, whatever becomes of its context
}

func (p *patient) Health(context.Context) (map[string][]cyborg.Condition, error) {
	p.mu.Lock()
	said, ill, gate := p.said, p.ill, p.gate
	p.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return said, ill
}

// newPatient returns a patient with the device a, of which a discovery has something to
// say, too, and the inventory of its host, which asks every half minute.
func newPatient(t *testing.T) (*patient, *inventory.Inventory) {
	t.Helper()
	j, err := journal.Open(t.TempDir(), journal.Options{BootID: "boot"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, j.Close()) })

	one := device("a", "")
	one.Deployables[0].Conditions = []cyborg.Condition{{Code: "b", Level: cyborg.ConditionNotice}}
	p := &patient{gadget: gadget{devices: []cyborg.DeviceReport{one}}}
	registry := drivers.NewRegistry()
	require.NoError(t, registry.Register("patient", func(drivers.Environment, map[string]any) (drivers.Driver, error) { return p, nil }))
	known, err := inventory.Open(inventory.Config{
		Host: "node", Version: "1", Root: "/", StateDir: t.TempDir(), ScanTimeout: 10 * time.Second, FullScanInterval: 5 * time.Hour,
		HealthInterval: 30 * time.Second,
		Backends:       []inventory.Setting{{Name: "patient", Driver: "patient", Enabled: true}},
	}, registry, j, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return p, known
}

// run runs the inventory until the end of the test, and returns after its first look.
func run(t *testing.T, known *inventory.Inventory) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		known.Run(ctx)
	}()
	<-known.Ready()
	return func() { cancel(); <-ended }
}

// codes lists the codes of what is reported of the device.
func codes(known *inventory.Inventory) []string {
	var out []string
	for _, c := range known.Content().Backends[0].Devices[0].Deployables[0].Conditions {
		out = append(out, string(c.Level)+" "+c.Code)
	}
	return out
}

// TestHealthIsReported: what a driver says about its devices is in the first report, with
// what a discovery says, and in one soon after it has changed. Where it cannot say, that
// is reported in its place.
func TestHealthIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, known := newPatient(t)
		p.said = map[string][]cyborg.Condition{"part_a": {{Code: "ecc", Level: cyborg.ConditionDegraded}}, "part_z": {{Code: "gone"}}}
		end := run(t, known)
		defer end()
		require.Equal(t, []string{"degraded ecc", "notice b"}, codes(known))

		for _, test := range []struct {
			change func(p *patient)
			want   []string
		}{
			{func(p *patient) {
				p.said = map[string][]cyborg.Condition{"part_a": {{Code: "b", Level: cyborg.ConditionUnready}}}
			}, []string{"unready b"}},
			{func(p *patient) { p.said, p.ill = nil, errors.New("no sensor") }, []string{"degraded health_unknown", "notice b"}},
			{func(p *patient) { p.ill = nil }, []string{"notice b"}},
		} {
			looks := p.count()
			p.mu.Lock()
			test.change(p)
			p.mu.Unlock()
			time.Sleep(40 * time.Second) //nolint:forbidigo // in the bubble's time
			synctest.Wait()
			require.Equal(t, test.want, codes(known))
			require.Equal(t, looks+1, p.count())
			require.NotEmpty(t, known.Changes())
		}

		// While nothing changes, a check makes no look.
		looks := p.count()
		time.Sleep(10 * time.Minute) //nolint:forbidigo // in the bubble's time
		require.Equal(t, looks, p.count())
	})
}

// TestHealthThatHangs: a check that never ends holds up the first look for its time, and
// nothing else.
func TestHealthThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, known := newPatient(t)
		p.gate = make(chan struct{})
		began := time.Now()
		end := run(t, known)
		defer end()
		require.Equal(t, 12*time.Second, time.Since(began))
		require.Equal(t, []string{"degraded health_unknown", "notice b"}, codes(known))

		began = time.Now()
		_, err := known.Observe(t.Context(), "patient", "a", nil)
		require.NoError(t, err)
		require.Zero(t, time.Since(began))

		close(p.gate)
		time.Sleep(40 * time.Second) //nolint:forbidigo // in the bubble's time
		synctest.Wait()
		require.Equal(t, []string{"notice b"}, codes(known))
	})
}
