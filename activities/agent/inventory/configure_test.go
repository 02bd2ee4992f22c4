package inventory_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
)

// An option that only the host's configuration could set so stays as it is: a
// request for another value, which anybody may set, is refused.
func TestNoRequestSetsWhatTheHostHasSet(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, err := journal.Open(dir, journal.Options{BootID: "boot"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, j.Close()) })

	registry := drivers.NewRegistry()
	require.NoError(t, registry.Register("gadget", func(drivers.Environment, map[string]any) (drivers.Driver, error) {
		return &gadget{}, nil
	}, drivers.OwnOption{Name: "module", Open: func(value any) bool { return value == "harmless" }}))
	known, err := inventory.Open(inventory.Config{
		Host: "node", Version: "1", Root: "/", StateDir: dir, ScanTimeout: 10 * time.Second, FullScanInterval: 5 * time.Minute,
		Backends: []inventory.Setting{
			{Name: "own", Driver: "gadget", Enabled: true, Options: map[string]any{"module": "special"}},
			{Name: "open", Driver: "gadget", Enabled: true, Options: map[string]any{"module": "harmless"}},
		},
	}, registry, j, slog.New(slog.DiscardHandler))
	require.NoError(t, err)

	update := func(backend, option string) error {
		_, err := known.Configure(t.Context(), cyborg.ConfigureRequest{
			Backend: backend, Action: cyborg.ConfigureUpdate, Options: cyborg.JSONObject{option: "harmless"},
		}, anyway)
		return err
	}
	for _, option := range []string{"module", "Module"} {
		require.NoError(t, update("open", option))
		err := update("own", option)
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
		require.ErrorContains(t, err, option)
	}
	require.NoError(t, update("own", "speed"))
}

// tool is a gadget that can be closed, and that is asked how it is and what it measures.
type tool struct {
	gadget
	gate   chan struct{} // if set, a question waits for it, or for the end of its context
	asked  int           // how many questions wait
	closed []int         // how many waited when it was closed
}

// question is a question of the agent. The deaf ones wait for the gate alone.
func (o *tool) question(ctx context.Context) {
	o.mu.Lock()
	o.asked++
	gate, deaf := o.gate, o.deaf
	o.mu.Unlock()
	if deaf {
		ctx = context.WithoutCancel(ctx)
	}
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked--
}

func (o *tool) Health(ctx context.Context) (map[string][]cyborg.Condition, error) {
	o.question(ctx)
	return nil, ctx.Err()
}

func (o *tool) Metrics(ctx context.Context, _ cyborg.DeviceReport) ([]drivers.Sample, error) {
	o.question(ctx)
	return nil, ctx.Err()
}

func (o *tool) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = append(o.closed, o.asked+o.watching)
	return nil
}

// newTools returns the inventory of a host with a tool, and the tools that are made.
func newTools(t *testing.T) (*inventory.Inventory, <-chan *tool) {
	t.Helper()
	j, err := journal.Open(t.TempDir(), journal.Options{BootID: "boot"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, j.Close()) })

	made := make(chan *tool, 2)
	registry := drivers.NewRegistry()
	require.NoError(t, registry.Register("tool", func(drivers.Environment, map[string]any) (drivers.Driver, error) {
		o := &tool{gadget: gadget{devices: []cyborg.DeviceReport{device("a", "")}}}
		made <- o
		return o, nil
	}))
	known, err := inventory.Open(inventory.Config{
		Host: "node", Version: "1", Root: "/", StateDir: t.TempDir(), ScanTimeout: time.Hour, UsageTimeout: time.Hour,
		FullScanInterval: 5 * time.Hour, HealthInterval: 30 * time.Second,
		Backends: []inventory.Setting{{Name: "tool", Driver: "tool", Enabled: true}},
	}, registry, j, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return known, made
}

// TestNoDriverIsAskedWhileItIsClosed: what a driver is asked ends before the driver is
// closed for another one. Nobody waits for what does not end, and the driver is then
// closed once it has returned.
func TestNoDriverIsAskedWhileItIsClosed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		deaf bool
		wait time.Duration // of the change
		then []int         // how it was closed by its end
	}{
		"questions that end":      {wait: 0, then: []int{0}},
		"questions that never do": {deaf: true, wait: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				known, made := newTools(t)
				end := run(t, known)
				defer end()
				old, gate := <-made, make(chan struct{})
				open := sync.OnceFunc(func() { close(gate) })
				defer open()
				old.set(func(g *gadget) { old.gate, g.deaf = gate, test.deaf })

				measured := make(chan []inventory.Measured, 1)
				go func() { measured <- known.MeasureAll(t.Context(), known.Deployables()) }()
				time.Sleep(time.Minute) //nolint:forbidigo // in the bubble's time: until it is asked how it is
				synctest.Wait()
				require.Equal(t, 2, old.asked)
				require.Equal(t, 1, old.watchers())

				began := time.Now()
				_, err := known.Configure(t.Context(), cyborg.ConfigureRequest{Backend: "tool", Action: cyborg.ConfigureUpdate}, anyway)
				require.NoError(t, err)
				require.Equal(t, test.wait, time.Since(began))
				require.Equal(t, test.then, old.closed)

				open()
				synctest.Wait()
				require.Equal(t, []int{0}, old.closed)
				if !test.deaf {
					require.ErrorContains(t, (<-measured)[0].Err, "its driver was replaced")
				}
				require.Empty(t, (<-made).closed)
				require.NoError(t, known.MeasureAll(t.Context(), known.Deployables())[0].Err)
				require.Empty(t, known.Content().Backends[0].Devices[0].Deployables[0].Conditions)
			})
		})
	}
}

// anyway is the begin of a change that nothing refuses.
func anyway() error { return nil }
