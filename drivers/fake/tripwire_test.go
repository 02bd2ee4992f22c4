package fake_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

// TestTripwire: each change that takes a handle from somebody is noted, and
// nothing else is.
func TestTripwire(t *testing.T) {
	t.Parallel()
	boot := filepath.Join(t.TempDir(), "boot_id")
	require.NoError(t, os.WriteFile(boot, []byte("first\n"), 0o600))

	p := newPark(t, map[string]any{"boot_id_file": boot})
	driver, target, handle := p.attach(t)
	card := p.identities(t)[0]
	hold := func(by string, guest bool) {
		t.Helper()
		require.NoError(t, p.bench.Hold(t.Context(), card, handle.Identity, by, guest))
	}
	trips := func() (noted []fake.Trip) {
		t.Helper()
		noted, err := p.bench.Trips()
		require.NoError(t, err)
		return noted
	}

	// What nobody holds may be changed, and so may what is held in a way that takes
	// nothing away.
	p.program(t, 0, "aes", cyborg.Image{ID: "one"})
	require.NoError(t, driver.Detach(t.Context(), detach(target, handle)))
	hold("host", false)
	require.NoError(t, driver.Attach(t.Context(), attach(target, handle)), "restored for its holder")
	require.NoError(t, driver.Attach(t.Context(), attach(target, handle)))
	require.Empty(t, trips())

	one := fake.Trip{Card: card, Handle: handle.Identity, HeldBy: "host"}
	detached, programmed := one, one
	detached.What, programmed.What = "detached", "programmed"
	require.NoError(t, driver.Detach(t.Context(), detach(target, handle)))
	want := []fake.Trip{detached}
	require.Equal(t, want, trips())

	p.program(t, 0, "rsa", cyborg.Image{ID: "two"})
	want = append(want, programmed, programmed) // emptied, and loaded
	require.Equal(t, want, trips())

	hold("a guest", true)
	attached, uninstalled := one, one
	attached.What, attached.HeldBy = "attached", "a guest"
	uninstalled.What, uninstalled.HeldBy = "uninstalled", "a guest"
	require.NoError(t, driver.Attach(t.Context(), attach(target, handle)))
	want = append(want, attached)
	require.Equal(t, want, trips())

	// A boot ends what was held.
	require.NoError(t, os.WriteFile(boot, []byte("second\n"), 0o600))
	p.program(t, 0, "aes", cyborg.Image{ID: "three"})
	require.Equal(t, want, trips())

	hold("a guest", true)
	require.NoError(t, driver.Uninstall(t.Context(), target))
	want = append(want, uninstalled)
	require.Equal(t, want, trips())

	hold("", true)
	require.NoError(t, driver.Install(t.Context(), target))
	require.NoError(t, driver.Uninstall(t.Context(), target))
	require.Equal(t, want, trips())

	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(p.bench.Hold(t.Context(), card, "0000:00:00.0", "x", false)))
}

// TestTripwireKnowsUsers: also a handle that nobody holds, and somebody uses, is
// not taken away without a note. A careless driver refuses none of these
// changes, so that the note alone tells of them.
func TestTripwireKnowsUsers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what string // as the tripwire says; empty for a change that takes nothing away
		do   func(t *testing.T, p *park)
	}{
		{"attached", func(t *testing.T, p *park) {
			t.Helper()
			driver, target, handle := p.target(t)
			require.NoError(t, driver.Install(t.Context(), target))
			p.use(t, "qemu")
			require.NoError(t, driver.Attach(t.Context(), attach(target, handle)))
		}},
		{"detached", func(t *testing.T, p *park) {
			t.Helper()
			driver, target, handle := p.attach(t)
			p.use(t, "qemu")
			require.NoError(t, driver.Detach(t.Context(), detach(target, handle)))
		}},
		{"programmed", func(t *testing.T, p *park) {
			t.Helper()
			p.use(t, "qemu")
			p.program(t, 0, "aes", cyborg.Image{ID: "one"})
		}},
		{"uninstalled", func(t *testing.T, p *park) {
			t.Helper()
			driver, target, _ := p.target(t)
			require.NoError(t, driver.Install(t.Context(), target))
			p.use(t, "qemu")
			require.NoError(t, driver.Uninstall(t.Context(), target))
		}},
		{"", func(t *testing.T, p *park) {
			t.Helper()
			driver, target, handle := p.attach(t)
			p.use(t, "the holder")
			require.NoError(t, driver.Attach(t.Context(), attach(target, handle)), "as it is")
			require.NoError(t, driver.Install(t.Context(), target))
			p.use(t, "")
			require.NoError(t, driver.Detach(t.Context(), detach(target, handle)))
		}},
	} {
		t.Run(test.what, func(t *testing.T) {
			t.Parallel()
			p := newPark(t, map[string]any{"careless": true})
			test.do(t, p)

			trips, err := p.bench.Trips()
			require.NoError(t, err)
			if test.what == "" {
				require.Empty(t, trips)
				return
			}
			require.NotEmpty(t, trips)
			require.Equal(t, fake.Trip{Card: "00fa:01:00.0", What: test.what, Handle: "00fa:01:00.0", InUseBy: "qemu"}, trips[0])
		})
	}
}

// use lets somebody use the first handle of the park's first card.
func (p *park) use(t *testing.T, by string) {
	t.Helper()
	require.NoError(t, p.bench.Use(t.Context(), "00fa:01:00.0", "00fa:01:00.0", by))
}
