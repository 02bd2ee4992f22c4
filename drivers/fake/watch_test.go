package fake_test

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

// TestWatchReportsWhatDiscoverFinds changes the park in many ways. Watch calls
// changed once for each change that Discover would report, and for no other.
func TestWatchReportsWhatDiscoverFinds(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		boot := filepath.Join(t.TempDir(), "boot_id")
		require.NoError(t, os.WriteFile(boot, []byte("first"), 0o600))
		p := newPark(t, map[string]any{"park": "2xfpga", "boot_id_file": boot})
		driver, target, handle := p.target(t)

		ctx, cancel := context.WithCancel(t.Context())
		calls, done := &atomic.Int64{}, make(chan error, 1)
		go func() { done <- driver.Watch(ctx, func() { calls.Add(1) }) }()
		synctest.Wait()
		require.EqualValues(t, 1, calls.Load(), "one call for what may have changed before")

		// Watch looks every half second. Each change below is made between two looks: a
		// look in the middle of a change would make two of it.
		<-time.After(250 * time.Millisecond)

		edit := func(change func(card *fake.Card)) {
			require.NoError(t, p.bench.Edit(t.Context(), target.Device.Identity, change))
		}

		for _, event := range []struct {
			name  string
			tells int64
			do    func()
		}{
			{"nothing", 0, func() {}},
			{"install", 0, func() { require.NoError(t, driver.Install(t.Context(), target)) }},
			{"attach", 0, func() { require.NoError(t, driver.Attach(t.Context(), attach(target, handle))) }},
			{"use", 0, func() { require.NoError(t, p.bench.Use(t.Context(), target.Device.Identity, handle.Identity, "qemu")) }},
			{"vanish", 1, func() { require.NoError(t, p.bench.Vanish(t.Context(), target.Device.Identity)) }},
			{"return", 1, func() { require.NoError(t, p.bench.Return(t.Context(), target.Device.Identity)) }},
			{"program", 1, func() { p.program(t, 0, "aes", cyborg.Image{ID: "new"}) }},
			{"boot", 1, func() { require.NoError(t, os.WriteFile(boot, []byte("second"), 0o600)) }},
			{"discover is to fail", 1, func() {
				edit(func(card *fake.Card) {
					card.Fail[fake.StepDiscover] = fake.Failure{Times: 2, Kind: cyborg.ErrHardware, When: fake.Before}
				})
			}},
			{"discover fails", 0, func() {
				_, err := driver.Discover(t.Context())
				require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err))
			}},
			{"discover fails for the last time", 1, func() {
				_, err := driver.Discover(t.Context())
				require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err))
			}},
			{"attach is to fail", 0, func() {
				edit(func(card *fake.Card) {
					card.Fail[fake.StepAttach] = fake.Failure{Times: fake.Always, Kind: cyborg.ErrBusy, When: fake.Before}
				})
			}},
			{"a mistake", 1, func() { p.edit(t, `"vanished"`, `"vanishd"`) }},
			{"its correction", 1, func() { p.edit(t, `"vanishd"`, `"vanished"`) }},
		} {
			before := calls.Load()
			event.do()
			<-time.After(3 * time.Second)
			require.Equal(t, event.tells, calls.Load()-before, event.name)
		}

		// The card is back before Watch looks again, but a Discover in between has
		// reported it as gone.
		identity, before := target.Device.Identity, calls.Load()
		require.NoError(t, p.bench.Vanish(t.Context(), identity))
		seen, err := driver.Discover(t.Context())
		require.NoError(t, err)
		require.Len(t, seen, 1)
		require.NoError(t, p.bench.Return(t.Context(), identity))
		<-time.After(3 * time.Second)
		require.EqualValues(t, 1, calls.Load()-before)

		cancel()
		require.NoError(t, <-done)
	})
}
