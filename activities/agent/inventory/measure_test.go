package inventory_test

import (
	"context"
	"log/slog"
	"math"
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

// scale is a gadget that measures its devices.
type scale struct {
	gadget
	samples map[string][]drivers.Sample // by device
	gates   map[string]chan struct{}    // a measurement waits for its device's
	heeds   bool                        // it ends with its context while it waits
	asked   map[string]int
}

func (s *scale) Metrics(ctx context.Context, device cyborg.DeviceReport) ([]drivers.Sample, error) {
	s.mu.Lock()
	s.asked[device.Identity]++
	gate, samples, heeds := s.gates[device.Identity], s.samples[device.Identity], s.heeds
	s.mu.Unlock()
	if gate == nil {
		return samples, nil
	}
	if !heeds {
		ctx = context.WithoutCancel(ctx)
	}
	select {
	case <-gate:
		return samples, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// newScale returns a scale with the devices a and b, and the inventory of its host.
func newScale(t *testing.T) (*scale, *inventory.Inventory) {
	t.Helper()
	j, err := journal.Open(t.TempDir(), journal.Options{BootID: "boot"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, j.Close()) })

	s := &scale{
		gadget:  gadget{devices: []cyborg.DeviceReport{device("a", ""), device("b", "")}},
		samples: map[string][]drivers.Sample{}, gates: map[string]chan struct{}{}, asked: map[string]int{},
	}
	registry := drivers.NewRegistry()
	require.NoError(t, registry.Register("scale", func(drivers.Environment, map[string]any) (drivers.Driver, error) { return s, nil }))
	known, err := inventory.Open(inventory.Config{
		Host: "node", Version: "1", Root: "/", StateDir: t.TempDir(), ScanTimeout: 10 * time.Second, FullScanInterval: 5 * time.Hour,
		UsageTimeout: 5 * time.Second, Backends: []inventory.Setting{{Name: "scale", Driver: "scale", Enabled: true}},
	}, registry, j, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	known.Scan(t.Context())
	return s, known
}

// measureAll measures all devices within 5 seconds.
func measureAll(t *testing.T, known *inventory.Inventory) []inventory.Measured {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	return known.MeasureAll(ctx, known.Deployables())
}

// TestMeasureLeavesOutNonsense: samples that nobody can show are left out with the
// reason, and the others count.
func TestMeasureLeavesOutNonsense(t *testing.T) {
	t.Parallel()
	s, known := newScale(t)
	good := drivers.Sample{Deployable: "part_a", Name: "temperature_celsius", Value: 41}
	memory := good
	memory.Sensor = "memory"
	for _, test := range []struct {
		bad  func(s *drivers.Sample)
		want string
	}{
		{func(*drivers.Sample) {}, "it is there twice"},
		{func(s *drivers.Sample) { s.Deployable = "part_b" }, "the device has no such deployable"},
		{func(s *drivers.Sample) { s.Name = "Temp" }, "its name is none"},
		{func(s *drivers.Sample) { s.Name = "unmeasured" }, "its name is none"},
		{func(s *drivers.Sample) { s.Sensor = "\xff" }, "the name of its sensor is none"},
		{func(s *drivers.Sample) { s.Name, s.Value = "power_watts", math.NaN() }, "NaN is no measurement"},
	} {
		bad := good
		test.bad(&bad)
		s.samples["a"] = []drivers.Sample{good, bad, memory}
		all := measureAll(t, known)
		require.Len(t, all, 2)
		require.Equal(t, []drivers.Sample{good, memory}, all[0].Samples)
		require.ErrorContains(t, all[0].Err, test.want)
		require.NoError(t, all[1].Err)
	}
}

// TestMeasureThatHangs: a device that does not answer holds up no other one, and nobody
// asks for it again before it has answered.
func TestMeasureThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, known := newScale(t)
		s.samples["b"] = []drivers.Sample{{Deployable: "part_b", Name: "power_watts", Value: 7}}
		gate := make(chan struct{})
		s.gates["a"] = gate
		open := sync.OnceFunc(func() { close(gate) })
		defer open()

		began := time.Now()
		all := measureAll(t, known)
		require.Equal(t, 5*time.Second, time.Since(began))
		require.EqualError(t, all[0].Err, cyborg.UsageUnanswered)
		require.Equal(t, s.samples["b"], all[1].Samples)

		time.Sleep(3 * time.Second) //nolint:forbidigo // in the bubble's time
		began = time.Now()
		all = measureAll(t, known)
		require.Zero(t, time.Since(began))
		require.ErrorContains(t, all[0].Err, "an earlier measurement of a has not come to an end")
		require.Equal(t, s.samples["b"], all[1].Samples)
		require.Equal(t, map[string]int{"a": 1, "b": 2}, s.asked)

		open()
		synctest.Wait()
		require.NoError(t, measureAll(t, known)[0].Err)
	})
}

// TestMeasureAtTheSameTime: while a device is measured, whoever wants to know what it
// measures waits for that answer. Somebody who waits for a shorter time does not end it
// for others.
func TestMeasureAtTheSameTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, known := newScale(t)
		s.samples["a"] = []drivers.Sample{{Deployable: "part_a", Name: "power_watts", Value: 7}}
		gate := make(chan struct{})
		s.gates["a"], s.heeds = gate, true
		open := sync.OnceFunc(func() { close(gate) })
		defer open()

		answers := make(chan inventory.Measured, 3)
		for _, limit := range []time.Duration{time.Second, 5 * time.Second, 5 * time.Second} {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				answers <- known.MeasureAll(ctx, known.Deployables()[:1])[0]
			}()
			synctest.Wait()
		}
		require.EqualError(t, (<-answers).Err, cyborg.UsageUnanswered)
		open()
		for range 2 {
			one := <-answers
			require.NoError(t, one.Err)
			require.Equal(t, s.samples["a"], one.Samples)
		}
		require.Equal(t, 1, s.asked["a"])

		require.NoError(t, measureAll(t, known)[0].Err)
		require.Equal(t, 2, s.asked["a"], "what is over is no answer to a later question")
	})
}
