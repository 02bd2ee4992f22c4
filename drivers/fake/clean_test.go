package fake_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

// cleaning is a clean of the park's first handle, and the notes and percents that it tells.
type cleaning struct {
	request  drivers.CleanRequest
	notes    []string
	percents []int
}

// cleaning returns a clean that goes on after the prior note.
func (p *park) cleaning(t *testing.T, method cyborg.CleanMethod, prior json.RawMessage) *cleaning {
	t.Helper()
	_, target, handle := p.target(t)
	c := &cleaning{}
	c.request = drivers.CleanRequest{
		Target: target, Handle: handle, Method: method, Prior: prior,
		Note: func(note json.RawMessage) error {
			c.notes = append(c.notes, string(note))
			return nil
		},
		Progress: func(percent int, _ string) { c.percents = append(c.percents, percent) },
	}
	return c
}

// clean cleans the park's first handle.
func (p *park) clean(t *testing.T, method cyborg.CleanMethod) (cyborg.Evidence, error) {
	t.Helper()
	return p.driver.(drivers.Cleaner).Clean(t.Context(), p.cleaning(t, method, nil).request)
}

// handle returns the state of the park's first handle.
func (p *park) handle(t *testing.T) fake.Handle {
	t.Helper()
	return *p.card(t).Deployables["r0"].Handles["00fa:01:00.0"]
}

// failClean scripts the next clean of the first card to fail after a change.
func (p *park) failClean(t *testing.T) {
	t.Helper()
	require.NoError(t, p.bench.Edit(t.Context(), "00fa:01:00.0", func(card *fake.Card) {
		card.Fail[fake.StepClean] = fake.Failure{Times: 1, Kind: cyborg.ErrHardware, When: fake.After}
	}))
}

// TestEachMethodRemovesItsResidue: a reset and a boot remove what is in registers, and only
// a scrub removes what is stored. Each says so in its evidence.
func TestEachMethodRemovesItsResidue(t *testing.T) {
	t.Parallel()
	boot := filepath.Join(t.TempDir(), "boot_id")
	require.NoError(t, os.WriteFile(boot, []byte("first\n"), 0o600))
	p := newPark(t, map[string]any{"boot_id_file": boot})
	driver, target, handle := p.attach(t)
	require.Equal(t, leftBy("host"), p.handle(t).Residue)
	require.NoError(t, driver.Detach(t.Context(), detach(target, handle)))
	require.Equal(t, leftBy("host"), p.handle(t).Residue)

	evidence, err := p.clean(t, cyborg.CleanReset)
	require.NoError(t, err)
	require.Equal(t, cyborg.Evidence{Method: cyborg.CleanReset, Tool: "fake reset", ReadBack: "all registers read as after power-on"}, evidence)
	require.Equal(t, fake.Residue{Stored: "host"}, p.handle(t).Residue)

	require.NoError(t, p.bench.Leave(t.Context(), "00fa:01:00.0", handle.Identity, "qemu"))
	require.NoError(t, os.WriteFile(boot, []byte("second\n"), 0o600))
	require.NoError(t, driver.Uninstall(t.Context(), target))
	require.Equal(t, fake.Residue{Stored: "qemu"}, p.handle(t).Residue)

	evidence, err = p.clean(t, cyborg.CleanScrub)
	require.NoError(t, err)
	require.Equal(t, cyborg.CleanScrub, evidence.Method)
	require.Equal(t, fake.Residue{}, p.handle(t).Residue)

	_, err = p.clean(t, "wash")
	require.Equal(t, cyborg.ErrUnsupported, cyborg.ErrorKindOf(err), err)
}

// TestCleanOptionIsReported: each part says what its driver can do, and what it demands.
func TestCleanOptionIsReported(t *testing.T) {
	t.Parallel()
	for word, after := range map[string]cyborg.CleanMethod{"none": "", "reset": cyborg.CleanReset, "scrub": cyborg.CleanScrub} {
		for _, deployable := range newPark(t, map[string]any{"deployables": 2, "whole": true, "clean": word}).discover(t)[0].Deployables {
			require.Equal(t, &cyborg.Cleaning{Methods: cyborg.CleanMethods(), After: after}, deployable.Cleaning)
		}
	}
	require.Empty(t, newPark(t, nil).discover(t)[0].Deployables[0].Cleaning.After)
}

// TestUndoneAttachLeavesNothing: who has never got a handle has left nothing on it, also if
// the card was without power before the undo. What another one has left stays.
func TestUndoneAttachLeavesNothing(t *testing.T) {
	t.Parallel()
	p := newPark(t, nil)
	driver, target, handle := p.attach(t)
	undo := detach(target, handle)
	undo.Undo = true
	require.NoError(t, driver.Detach(t.Context(), undo))
	require.Equal(t, fake.Handle{}, p.handle(t))

	require.NoError(t, driver.Attach(t.Context(), attach(target, handle)))
	require.NoError(t, p.bench.Vanish(t.Context(), target.Device.Identity))
	require.NoError(t, p.bench.Return(t.Context(), target.Device.Identity))
	require.Equal(t, fake.Residue{Stored: "host"}, p.handle(t).Residue)
	require.NoError(t, driver.Detach(t.Context(), undo))
	require.Equal(t, fake.Handle{}, p.handle(t))

	require.NoError(t, p.bench.Leave(t.Context(), target.Device.Identity, handle.Identity, "qemu"))
	require.NoError(t, driver.Detach(t.Context(), undo))
	require.Equal(t, leftBy("qemu"), p.handle(t).Residue)
}

// TestHalfScrubbed: a scrub that has failed goes on after its note, also when the host was
// booted or only a reset is asked for. Without the note it begins anew.
func TestHalfScrubbed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		prior  string
		method cyborg.CleanMethod
		notes  []string
	}{
		{"goes on", `{"method":"scrub","done":1}`, cyborg.CleanScrub, []string{`{"method":"scrub","done":1}`, `{"method":"scrub","done":2}`, `{"method":"scrub","done":3}`}},
		{"goes on with a reset", `{"method":"scrub","done":1}`, cyborg.CleanReset, []string{`{"method":"scrub","done":1}`, `{"method":"scrub","done":2}`, `{"method":"scrub","done":3}`}},
		{"takes no note at its word", `{"method":"scrub","done":3}`, cyborg.CleanScrub, []string{`{"method":"scrub","done":1}`, `{"method":"scrub","done":2}`, `{"method":"scrub","done":3}`}},
		{"begins anew without a note", ``, cyborg.CleanReset, []string{`{"method":"scrub","done":0}`, `{"method":"scrub","done":1}`, `{"method":"scrub","done":2}`, `{"method":"scrub","done":3}`}},
		{"begins anew after another's note", `[7]`, cyborg.CleanScrub, []string{`{"method":"scrub","done":0}`, `{"method":"scrub","done":1}`, `{"method":"scrub","done":2}`, `{"method":"scrub","done":3}`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			boot := filepath.Join(t.TempDir(), "boot_id")
			require.NoError(t, os.WriteFile(boot, []byte("first\n"), 0o600))
			p := newPark(t, map[string]any{"boot_id_file": boot})
			require.NoError(t, p.bench.Leave(t.Context(), "00fa:01:00.0", "00fa:01:00.0", "qemu"))
			p.failClean(t)
			_, err := p.clean(t, cyborg.CleanScrub)
			require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err), err)
			require.Equal(t, fake.Handle{Residue: leftBy("qemu"), Scrubbed: 1, Cleaned: 1}, p.handle(t))

			require.NoError(t, os.WriteFile(boot, []byte("second\n"), 0o600))
			p.driver = p.restart(t)
			c := p.cleaning(t, test.method, json.RawMessage(test.prior))
			evidence, err := p.driver.(drivers.Cleaner).Clean(t.Context(), c.request)
			require.NoError(t, err)
			require.Equal(t, cyborg.CleanScrub, evidence.Method)
			require.Equal(t, test.notes, c.notes)
			require.Equal(t, fake.Handle{Cleaned: len(test.notes)}, p.handle(t))
			require.IsNonDecreasing(t, c.percents)
			require.Equal(t, 100, c.percents[len(c.percents)-1])
		})
	}
}

// TestInterruptedResetIsScrubbed: the note of an interrupted scrub that has not begun makes
// a scrub of a reset, and the note of a reset does not make a reset of a scrub.
func TestInterruptedResetIsScrubbed(t *testing.T) {
	t.Parallel()
	for _, of := range [][2]cyborg.CleanMethod{{cyborg.CleanReset, cyborg.CleanScrub}, {cyborg.CleanScrub, cyborg.CleanReset}} {
		p := newPark(t, nil)
		evidence, err := p.driver.(drivers.Cleaner).Clean(t.Context(), p.cleaning(t, of[0], json.RawMessage(`{"method":"`+of[1]+`","done":0}`)).request)
		require.NoError(t, err)
		require.Equal(t, cyborg.CleanScrub, evidence.Method)
	}
}

// TestWhatSticks: a clean of a handle that the options let stick fails, whatever is on it,
// until the script is lifted.
func TestWhatSticks(t *testing.T) {
	t.Parallel()
	p := newPark(t, map[string]any{"handles": 2, "stick": "00fa:01:00.0"})
	for _, method := range cyborg.CleanMethods() {
		_, err := p.clean(t, method)
		require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err), err)
	}
	require.NoError(t, p.bench.Leave(t.Context(), "00fa:01:00.0", "00fa:01:00.0", "qemu"))
	_, err := p.clean(t, cyborg.CleanScrub)
	require.ErrorContains(t, err, "what qemu has left")
	require.NotEmpty(t, cyborg.AsError(err).Hint)
	require.Equal(t, leftBy("qemu"), p.handle(t).Residue)
	require.Zero(t, p.handle(t).Scrubbed, "all of it was overwritten")

	driver, err := fake.New(p.environment(), map[string]any{"handles": 2})
	require.NoError(t, err)
	p.driver = driver
	_, err = p.clean(t, cyborg.CleanScrub)
	require.NoError(t, err)
}

// TestCleanHangsUntilItIsAllowed: a clean that its card makes slow tells its progress, and
// goes on when the card is quick again.
func TestCleanHangsUntilItIsAllowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPark(t, map[string]any{"clean_latency": "40s"})
		c := p.cleaning(t, cyborg.CleanScrub, nil)
		answer := make(chan error, 1)
		go func() {
			_, err := p.driver.(drivers.Cleaner).Clean(t.Context(), c.request)
			answer <- err
		}()

		<-time.After(25 * time.Second)
		require.Equal(t, 2, p.handle(t).Scrubbed)
		require.NoError(t, p.bench.Edit(t.Context(), "00fa:01:00.0", func(card *fake.Card) { card.Latency[fake.StepClean] = 0 }))
		<-time.After(time.Second)
		require.NoError(t, <-answer)
		require.Contains(t, c.percents, 60)
		require.IsNonDecreasing(t, c.percents)
	})
}

// TestTripwireOfUncleanHandles: who gets what another holder has left, although the driver
// demands that it is removed, is noted, and so is whoever gets what is half scrubbed.
func TestTripwireOfUncleanHandles(t *testing.T) {
	t.Parallel()
	const card = "00fa:01:00.0"
	one := fake.Trip{Card: card, Handle: card}

	for _, test := range []struct {
		name    string
		demands string
		do      func(t *testing.T, p *park, driver full, target drivers.Target, handle cyborg.HandleReport)
		what    string // as the tripwire says; empty for nothing
		heldBy  string
		leftBy  string
	}{
		{"another holder", "reset", func(t *testing.T, _ *park, driver full, target drivers.Target, handle cyborg.HandleReport) {
			t.Helper()
			require.NoError(t, driver.Attach(t.Context(), forInstance(target, handle, nil)))
		}, "unclean", instance, "host"},
		{"another holder after a reset", "reset", func(t *testing.T, p *park, driver full, target drivers.Target, handle cyborg.HandleReport) {
			t.Helper()
			_, err := p.clean(t, cyborg.CleanReset)
			require.NoError(t, err)
			require.NoError(t, driver.Attach(t.Context(), forInstance(target, handle, nil)))
		}, "", "", ""},
		{"another holder after a reset that is not enough", "scrub", func(t *testing.T, p *park, driver full, target drivers.Target, handle cyborg.HandleReport) {
			t.Helper()
			_, err := p.clean(t, cyborg.CleanReset)
			require.NoError(t, err)
			require.NoError(t, driver.Attach(t.Context(), forInstance(target, handle, nil)))
		}, "unclean", instance, "host"},
		{"another holder where nothing is demanded", "none", func(t *testing.T, _ *park, driver full, target drivers.Target, handle cyborg.HandleReport) {
			t.Helper()
			require.NoError(t, driver.Attach(t.Context(), forInstance(target, handle, nil)))
		}, "", "", ""},
		{"the same holder", "scrub", func(t *testing.T, _ *park, driver full, target drivers.Target, handle cyborg.HandleReport) {
			t.Helper()
			require.NoError(t, driver.Attach(t.Context(), attach(target, handle)))
		}, "", "", ""},
		{"a guest", "scrub", func(t *testing.T, p *park, driver full, target drivers.Target, handle cyborg.HandleReport) {
			t.Helper()
			_, err := p.clean(t, cyborg.CleanScrub)
			require.NoError(t, err)
			require.NoError(t, driver.Attach(t.Context(), forInstance(target, handle, nil)))
			require.NoError(t, p.bench.Hold(t.Context(), card, card, instance, true))
			require.NoError(t, p.bench.Leave(t.Context(), card, card, instance))
			require.NoError(t, p.bench.Hold(t.Context(), card, card, "", true))
			require.NoError(t, p.bench.Hold(t.Context(), card, card, "instance 2", true))
		}, "unclean", "instance 2", instance},
		{"half scrubbed", "none", func(t *testing.T, p *park, driver full, target drivers.Target, handle cyborg.HandleReport) {
			t.Helper()
			p.failClean(t)
			_, err := p.clean(t, cyborg.CleanScrub)
			require.Error(t, err)
			require.NoError(t, driver.Attach(t.Context(), attach(target, handle)))
		}, "half-scrubbed", "host", ""},
		{"cleaned while it is held", "none", func(t *testing.T, p *park, _ full, _ drivers.Target, _ cyborg.HandleReport) {
			t.Helper()
			require.NoError(t, p.bench.Hold(t.Context(), card, card, "host", false))
			_, err := p.clean(t, cyborg.CleanReset)
			require.NoError(t, err)
		}, "cleaned", "host", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := newPark(t, map[string]any{"prepares": true, "clean": test.demands})
			driver, target, handle := p.attach(t)
			require.NoError(t, driver.Detach(t.Context(), detach(target, handle)))
			test.do(t, p, driver, target, handle)

			trips, err := p.bench.Trips()
			require.NoError(t, err)
			if test.what == "" {
				require.Empty(t, trips)
				return
			}
			want := one
			want.What, want.HeldBy, want.LeftBy = test.what, test.heldBy, test.leftBy
			require.Equal(t, []fake.Trip{want}, trips)
		})
	}
}
