package fake_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

// newFlashing returns a park of one card of that type whose images take effect later, and a
// function that boots its host.
func newFlashing(t *testing.T, kind string) (p *park, boot func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "boot_id")
	boots := "first"
	boot = func() {
		t.Helper()
		require.NoError(t, os.WriteFile(file, []byte(boots+"\n"), 0o600))
		boots += " and next"
	}
	boot()
	return newPark(t, map[string]any{"park": "1x" + kind, "activation": "power_cycle", "boot_id_file": file}), boot
}

// flashed returns which image is in effect in the park's first part, and which is pending.
func (p *park) flashed(t *testing.T) (inEffect, pending string) {
	t.Helper()
	one := p.discover(t)[0].Deployables[0]
	if one.PendingImage != nil {
		require.Equal(t, cyborg.ActivationPowerCycle, one.PendingImage.Until)
		pending = one.PendingImage.BitstreamID
	}
	return one.BitstreamID, pending
}

// requireFlashed requires which image is in effect in the park's first part, and which is
// pending.
func (p *park) requireFlashed(t *testing.T, inEffect, pending string) {
	t.Helper()
	isInEffect, isPending := p.flashed(t)
	require.Equal(t, []string{inEffect, pending}, []string{isInEffect, isPending}, "in effect, and pending")
}

// TestImageTakesEffectWithTheNextBoot: until the boot, the image before is in effect, also
// for the traits. No boot loses it.
func TestImageTakesEffectWithTheNextBoot(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"fpga", "nic"} {
		p, boot := newFlashing(t, kind)
		p.requireFlashed(t, "", "")

		p.program(t, 0, "aes", cyborg.Image{ID: "one"})
		p.requireFlashed(t, "", "one")
		require.Len(t, p.discover(t)[0].Deployables[0].Attributes, 2, "no trait of an image that is not in effect")
		p.driver = p.restart(t)
		p.requireFlashed(t, "", "one")

		boot()
		p.requireFlashed(t, "one", "")
		require.Equal(t, kind == "fpga", len(p.discover(t)[0].Deployables[0].Attributes) == 3, "the trait of %s", kind)
		boot()
		p.requireFlashed(t, "one", "")

		p.program(t, 0, "rsa", cyborg.Image{ID: "two"})
		p.program(t, 0, "des", cyborg.Image{ID: "three"})
		p.requireFlashed(t, "one", "three")
		p.program(t, 0, "aes", cyborg.Image{ID: "one"})
		p.requireFlashed(t, "one", "")
		boot()
		p.requireFlashed(t, "one", "")
	}
}

// TestHalfWrittenFlash: a program that fails in the middle leaves what is in effect alone. With
// the next boot the part would be empty. Another program makes it right.
func TestHalfWrittenFlash(t *testing.T) {
	t.Parallel()
	for _, when := range []fake.When{fake.Before, fake.After} {
		p, boot := newFlashing(t, "fpga")
		p.program(t, 0, "aes", cyborg.Image{ID: "one"})
		boot()
		fail := func() {
			t.Helper()
			require.NoError(t, p.bench.Edit(t.Context(), "00fa:01:00.0", func(card *fake.Card) {
				card.Fail[fake.StepProgram] = fake.Failure{Times: 1, Kind: cyborg.ErrHardware, When: when}
			}))
			require.Error(t, call(t, p, fake.StepProgram))
		}

		fail()
		if when == fake.Before {
			p.requireFlashed(t, "one", "")
			continue
		}
		p.requireFlashed(t, "one", "half-written")
		p.program(t, 0, "aes", cyborg.Image{ID: "one"})
		p.requireFlashed(t, "one", "")

		fail()
		boot()
		p.requireFlashed(t, "", "")
	}
}

// TestKilledWhileItFlashes kills a process that writes an image to flash memory. What is in
// effect is unchanged, and a restarted agent can complete the step.
func TestKilledWhileItFlashes(t *testing.T) {
	t.Parallel()
	p := newPark(t, map[string]any{"activation": "power_cycle"})
	require.NoError(t, p.bench.Edit(t.Context(), "00fa:01:00.0", func(card *fake.Card) {
		card.Deployables["r0"].BitstreamID = "one"
		card.Latency[fake.StepProgram] = fake.Duration(time.Hour)
	}))

	kill := p.victim(t, "flash")
	require.Eventually(t, func() bool {
		pending := p.card(t).Deployables["r0"].Pending
		return pending != nil && pending.BitstreamID == "half-written"
	}, 5*time.Minute, 10*time.Millisecond)
	kill()

	require.NoError(t, p.bench.Edit(t.Context(), "00fa:01:00.0", func(card *fake.Card) { clear(card.Latency) }))
	p.driver = p.restart(t)
	p.requireFlashed(t, "one", "half-written")
	p.program(t, 0, "rsa", cyborg.Image{ID: "two"})
	p.requireFlashed(t, "one", "two")
}

// TestPendingByHand: somebody writes into a card's file what its flash memory has. Another
// card in its place has nothing of that.
func TestPendingByHand(t *testing.T) {
	t.Parallel()
	p, boot := newFlashing(t, "nic")
	require.NoError(t, p.bench.Edit(t.Context(), p.identities(t)[0], func(card *fake.Card) {
		card.Deployables["r0"].Pending = &fake.PendingImage{Image: fake.Image{BitstreamID: "shell-2"}, Until: cyborg.ActivationPowerCycle}
	}))
	p.requireFlashed(t, "", "shell-2")
	boot()
	p.requireFlashed(t, "shell-2", "")

	p.program(t, 0, "shell", cyborg.Image{ID: "shell-3"})
	p.requireFlashed(t, "shell-2", "shell-3")
	require.NoError(t, p.bench.Exchange(t.Context(), p.identities(t)[0], "", "another"))
	p.requireFlashed(t, "", "")
}

// TestUnknownActivation: what brings an image into effect must be known to people.
func TestUnknownActivation(t *testing.T) {
	t.Parallel()
	_, err := fake.New(drivers.Environment{StateDir: t.TempDir()}, map[string]any{"activation": "soon"})
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, `activation: there is no "soon"; write reboot, power_cycle or nothing`)

	p := newPark(t, map[string]any{"activation": "reboot"})
	p.program(t, 0, "aes", cyborg.Image{ID: "one"})
	require.Equal(t, &cyborg.PendingImage{BitstreamID: "one", Until: cyborg.ActivationReboot}, p.discover(t)[0].Deployables[0].PendingImage)
}
