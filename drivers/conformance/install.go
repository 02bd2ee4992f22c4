package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

func installChecks() []check {
	return []check{
		// installChecks lists the checks of drivers with Installer.
		{name: "can be repeated", run: installCanBeRepeated},
		{name: "is undone", run: installIsUndone},
		{name: "of nothing is undone", run: installOfNothingIsUndone},
		{name: "does not begin under an ended context", run: installDoesNotBegin},
		{name: "is interrupted", needs: canBeSlow, run: installIsInterrupted},
		{name: "of what vanished fails", needs: canVanish, run: installOfWhatVanished},
		{name: "of another card in its place fails", needs: canBeExchanged, run: installOfAnotherCard},
	}
}

// canBeSlow says whether the rig can make steps slow.
func canBeSlow(b *bench) bool { return b.Slow != nil }

// installer returns the driver under test as an Installer.
func (b *bench) installer() drivers.Installer { return b.Driver.(drivers.Installer) } //nolint:forcetypeassert // its group runs only where it is one

// install takes the target into service where the driver is an Installer;
// otherwise there is nothing to do.
func (b *bench) install(t *testing.T) {
	t.Helper()
	if installer, ok := b.Driver.(drivers.Installer); ok {
		require.NoError(t, installer.Install(t.Context(), b.target))
	}
}

// installCanBeRepeated checks that a second Install changes nothing, also after
// a restart.
func installCanBeRepeated(t *testing.T, b *bench) {
	b.install(t)
	once := b.state(t)

	b.install(t)
	require.Equal(t, once, b.state(t))

	b.Driver = b.Restart(t)
	b.install(t)
	require.Equal(t, once, b.state(t))
}

// installIsUndone checks that Uninstall restores the state, also when it is
// repeated.
func installIsUndone(t *testing.T, b *bench) {
	before := b.state(t)

	b.install(t)
	b.Driver = b.Restart(t)

	for range 2 {
		require.NoError(t, b.installer().Uninstall(t.Context(), b.target))
		require.Equal(t, before, b.state(t))
	}
}

// installOfNothingIsUndone checks an Uninstall without any Install before.
func installOfNothingIsUndone(t *testing.T, b *bench) {
	before := b.state(t)
	require.NoError(t, b.installer().Uninstall(t.Context(), b.target))
	require.Equal(t, before, b.state(t))
}

// installDoesNotBegin checks that Install changes nothing when its context has
// ended already.
func installDoesNotBegin(t *testing.T, b *bench) {
	before := b.state(t)
	err := promptly(t, "Install", func() error { return b.installer().Install(ended(t), b.target) })
	requireStopped(t, err)
	require.Equal(t, before, b.state(t))
}

// installIsInterrupted ends the context in the middle of an Install and checks
// that the Install can then be undone and repeated.
func installIsInterrupted(t *testing.T, b *bench) {
	before := b.state(t)

	quick := b.Slow(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	requireStopped(t, promptly(t, "an interrupted Install", func() error { return b.installer().Install(ctx, b.target) }))
	quick()

	b.Driver = b.Restart(t)
	require.NoError(t, b.installer().Uninstall(t.Context(), b.target))
	require.Equal(t, before, b.state(t))
	b.install(t)
}

// installOfWhatVanished checks that Install fails on a vanished card and
// Uninstall does not.
func installOfWhatVanished(t *testing.T, b *bench) {
	b.Vanish(t, b.target.Device)

	err := promptly(t, "Install", func() error { return b.installer().Install(t.Context(), b.target) })
	require.Error(t, err)
	require.NoError(t, promptly(t, "Uninstall", func() error { return b.installer().Uninstall(t.Context(), b.target) }),
		"of what is gone there is nothing left to undo")
}

// installOfAnotherCard checks that a card in the place of the target's is not
// installed for it, and that nothing is left to uninstall.
func installOfAnotherCard(t *testing.T, b *bench) {
	b.install(t)
	b.exchange(t)
	before := b.state(t)

	require.NoError(t, b.installer().Uninstall(t.Context(), b.target))
	err := b.installer().Install(t.Context(), b.target)
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "an install of another card answers %v", err)
	require.Equal(t, before, b.state(t))
}
