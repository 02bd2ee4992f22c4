package fake_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

// call takes one step on the first card of a park.
func call(t *testing.T, p *park, step fake.Step) error {
	t.Helper()
	return stepCall(t, p, step)()
}

// stepCall prepares what a step needs, and returns the call that takes it.
func stepCall(t *testing.T, p *park, step fake.Step) func() error {
	t.Helper()
	ctx := t.Context()

	device := cyborg.DeviceReport{Identity: "00fa:01:00.0", Type: cyborg.DeviceTypeFPGA}
	target := drivers.Target{Device: device, Deployable: cyborg.DeployableReport{Name: "fake_fpga_00fa_01_00_0_r0"}}
	handle := cyborg.HandleReport{Identity: "00fa:01:00.0"}
	driver := p.driver.(full)
	path, image := stage(t, fake.MakeImage(cyborg.DeviceTypeFPGA, "aes", []byte("payload")))

	without := func(_ any, err error) error { return err }

	return map[fake.Step]func() error{
		fake.StepInstall:   func() error { return driver.Install(ctx, target) },
		fake.StepUninstall: func() error { return driver.Uninstall(ctx, target) },
		fake.StepAttach:    func() error { return driver.Attach(ctx, attach(target, handle)) },
		fake.StepDetach:    func() error { return driver.Detach(ctx, detach(target, handle)) },
		fake.StepProgram: func() error {
			return driver.Program(ctx, drivers.ProgramRequest{Target: target, Path: path, Image: image, Progress: quiet})
		},
		fake.StepClean: func() error {
			return without(driver.Clean(ctx, drivers.CleanRequest{
				Target: target, Handle: handle, Method: cyborg.CleanScrub, Note: forget, Progress: quiet,
			}))
		},
		fake.StepPartition: func() error {
			return driver.Partition(ctx, drivers.PartitionRequest{Device: device, Layout: cyborg.Layout{"half": 2}, Note: forget, Progress: quiet})
		},
		fake.StepDiscover: func() error { return without(driver.Discover(ctx)) },
		fake.StepAttached: func() error {
			return without(driver.Attached(ctx, drivers.AttachedRequest{Target: target, Handle: handle, Holder: cyborg.HolderHost}))
		},
		fake.StepInUse:      func() error { return without(driver.InUse(ctx, target, handle)) },
		fake.StepUsage:      func() error { return without(driver.Metrics(ctx, target.Device)) },
		fake.StepHealth:     func() error { return without(driver.Health(ctx)) },
		fake.StepCheckImage: func() error { return driver.CheckImage(ctx, target, path, image) },
	}[step]
}

// prepare brings the first card into a state in which the step has something to
// do.
func prepare(t *testing.T, p *park, step fake.Step) {
	t.Helper()
	require.NoError(t, p.bench.Edit(t.Context(), "00fa:01:00.0", func(card *fake.Card) {
		region := card.Deployables["r0"]
		region.Installed = step != fake.StepInstall
		region.Handles["00fa:01:00.0"].Attached = step == fake.StepDetach
		card.Layout = nil
	}))
}

// card returns the state of the first card.
func (p *park) card(t *testing.T) fake.Card {
	t.Helper()
	card, err := p.bench.Card(t.Context(), "00fa:01:00.0")
	require.NoError(t, err)
	return card
}

func TestEachStepFailsAsScripted(t *testing.T) {
	t.Parallel()

	for _, step := range fake.Steps() {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			for _, when := range []fake.When{fake.Before, fake.After} {
				failure := fake.Failure{Times: 2, Kind: cyborg.ErrBusy, When: when, Message: "the moon is full"}
				p := newPark(t, map[string]any{"partition": true})
				prepare(t, p, step)
				require.NoError(t, p.bench.Edit(t.Context(), "00fa:01:00.0", func(card *fake.Card) { card.Fail[step] = failure }))

				for left := 1; left >= 0; left-- {
					err := call(t, p, step)
					require.Equal(t, cyborg.ErrBusy, cyborg.ErrorKindOf(err))
					require.EqualError(t, err, "the moon is full")
					require.Equal(t, fake.Times(left), p.card(t).Fail[step].Times)
					p.driver = p.restart(t) // which failures are used up is kept in the card's file
					if when == fake.After {
						prepare(t, p, step) // the step has made its change before it failed, and needs a new one to make
					}
				}

				require.NoError(t, call(t, p, step))
			}
		})
	}
}

// A scripted failure comes before or after the hardware was changed, as its
// script says.
func TestFailureBeforeOrAfterTheTouch(t *testing.T) {
	t.Parallel()

	touched := map[fake.Step]func(card fake.Card) bool{
		fake.StepInstall:   func(card fake.Card) bool { return card.Deployables["r0"].Installed },
		fake.StepUninstall: func(card fake.Card) bool { return !card.Deployables["r0"].Installed },
		fake.StepAttach:    func(card fake.Card) bool { return card.Deployables["r0"].Handles["00fa:01:00.0"].Attached },
		fake.StepDetach:    func(card fake.Card) bool { return !card.Deployables["r0"].Handles["00fa:01:00.0"].Attached },
		fake.StepProgram:   func(card fake.Card) bool { return card.Deployables["r0"].BitstreamID != "old" },
		fake.StepClean:     func(card fake.Card) bool { return card.Deployables["r0"].Handles["00fa:01:00.0"].Scrubbed > 0 },
		fake.StepPartition: func(card fake.Card) bool { return card.Layout != nil },
	}
	for step, touched := range touched {
		for _, when := range []fake.When{fake.Before, fake.After} {
			p := newPark(t, map[string]any{"partition": true, "fail": map[string]any{string(step): map[string]any{"when": string(when)}}})
			prepare(t, p, step)
			require.NoError(t, p.bench.Edit(t.Context(), "00fa:01:00.0", func(card *fake.Card) {
				card.Deployables["r0"].BitstreamID = "old"
			}))

			err := call(t, p, step)
			require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err))
			require.EqualError(t, err, string(step)+" on fake card 00fa:01:00.0 failed, as its script says")
			require.Equalf(t, when == fake.After, touched(p.card(t)), "%s failed %s the hardware was touched", step, when)
			if step == fake.StepProgram && when == fake.After {
				require.Empty(t, p.card(t).Deployables["r0"].BitstreamID, "the new image was not loaded")
			}
		}
	}
}

func TestFailureRepeatsForever(t *testing.T) {
	t.Parallel()

	p := newPark(t, map[string]any{"fail": map[string]any{"install": "always"}})
	for range 3 {
		require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(call(t, p, fake.StepInstall)))
		p.driver = p.restart(t)
	}

	p.edit(t, `"always"`, `1`)
	require.Error(t, call(t, p, fake.StepInstall))
	require.NoError(t, call(t, p, fake.StepInstall))
}

// TestOptionsScriptIsAppliedOnce restarts and reconfigures the driver. A script
// is applied once, until another replaces it.
func TestOptionsScriptIsAppliedOnce(t *testing.T) {
	t.Parallel()

	p := newPark(t, map[string]any{"fail": map[string]any{"install": 1}, "in_use": "00fa:01:00.0"})
	require.Error(t, call(t, p, fake.StepInstall))
	require.NoError(t, p.bench.Use(t.Context(), "00fa:01:00.0", "00fa:01:00.0", ""))

	p.driver = p.restart(t)
	require.NoError(t, call(t, p, fake.StepInstall))
	require.NoError(t, call(t, p, fake.StepAttach))
	require.NoError(t, call(t, p, fake.StepDetach))

	reconfigured, err := fake.New(p.environment(), map[string]any{"vanish": "00fa:01:00.0"})
	require.NoError(t, err)
	p.driver = reconfigured
	require.Empty(t, p.discover(t))

	reconfigured, err = fake.New(p.environment(), nil)
	require.NoError(t, err)
	p.driver = reconfigured
	require.Len(t, p.discover(t), 1)
	require.True(t, p.card(t).Deployables["r0"].Installed, "a script is not the hardware")
}

// A card that vanishes while a step waits makes that step fail.
func TestFailureOfVanishingDuringStep(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		p := newPark(t, map[string]any{"attach_latency": "1h"})
		prepare(t, p, fake.StepAttach)
		answer, take := make(chan error, 1), stepCall(t, p, fake.StepAttach)
		go func() { answer <- take() }()

		<-time.After(time.Minute)
		require.NoError(t, p.bench.Vanish(t.Context(), "00fa:01:00.0"))
		require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(<-answer))
	})
}

// Each step takes as long as its option says, and no time where there is
// nothing left to do.
func TestLatencies(t *testing.T) {
	t.Parallel()

	options := map[string]any{
		"install_latency": "2s", "uninstall_latency": "3s", "attach_latency": "4s", "detach_latency": "5s", "program_latency": "6s",
		"clean_latency": "8s", "partition": true, "partition_latency": "9s",
	}
	for step, seconds := range map[fake.Step]int{
		fake.StepInstall: 2, fake.StepUninstall: 3, fake.StepAttach: 4, fake.StepDetach: 5, fake.StepProgram: 6, fake.StepClean: 8, fake.StepPartition: 9, fake.StepUsage: 0,
	} {
		t.Run(string(step), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := newPark(t, options)
				prepare(t, p, step)

				start := time.Now()
				require.NoError(t, call(t, p, step))
				require.Equal(t, time.Duration(seconds)*time.Second, time.Since(start))

				if seconds > 0 && step != fake.StepProgram && step != fake.StepClean { // each staged image is a different one, and a clean is always done
					start = time.Now()
					require.NoError(t, call(t, p, step))
					require.Zero(t, time.Since(start), "what is done takes no time")
				}
			})
		})
	}
}

// TestLatencyIsScripted sets a latency in the card's file, for each step, and
// removes it while a step waits.
func TestLatencyIsScripted(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		p := newPark(t, map[string]any{"install_latency": "1h"})
		slow := func(step fake.Step, latency time.Duration) {
			require.NoError(t, p.bench.Edit(t.Context(), "00fa:01:00.0", func(card *fake.Card) {
				card.Latency[step] = fake.Duration(latency)
			}))
		}
		slow(fake.StepUsage, 7*time.Second)
		start := time.Now()
		require.NoError(t, call(t, p, fake.StepUsage))
		require.Equal(t, 7*time.Second, time.Since(start))

		start = time.Now()
		answer, take := make(chan error, 1), stepCall(t, p, fake.StepInstall)
		go func() { answer <- take() }()
		<-time.After(time.Minute)
		slow(fake.StepInstall, 0)
		require.NoError(t, <-answer)
		require.Less(t, time.Since(start), 2*time.Minute)
	})
}

func TestProgressFollowsTime(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		p := newPark(t, map[string]any{"program_latency": "10s"})
		driver, target, _ := p.target(t)
		path, image := stage(t, fake.MakeImage(cyborg.DeviceTypeFPGA, "aes", []byte("payload")))
		start, percents := time.Now(), []int{}
		require.NoError(t, driver.Program(t.Context(), drivers.ProgramRequest{
			Target: target, Path: path, Image: image,
			Progress: func(percent int, note string) {
				require.NotEmpty(t, note)
				if percent < 100 {
					require.Equal(t, int(10*time.Since(start)/time.Second), percent)
				}
				percents = append(percents, percent)
			},
		}))

		require.Equal(t, 0, percents[0])
		require.Contains(t, percents, 50)
		require.Equal(t, 100, percents[len(percents)-1])
	})
}

func TestDeadlineIsTimeout(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		p := newPark(t, map[string]any{"install_latency": "1h"})
		driver, target, _ := p.target(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := driver.Install(ctx, target)
		require.Equal(t, cyborg.ErrTimeout, cyborg.ErrorKindOf(err))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.False(t, p.card(t).Deployables["r0"].Installed)
	})
}
