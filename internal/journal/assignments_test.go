package journal_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/journal"
)

// These are two deployables of one card.
var (
	r0 = journal.Subject{Backend: "b", Deployable: "r0"}
	r1 = journal.Subject{Backend: "b", Deployable: "r1"}
)

// late requires that a number is refused.
func late(t *testing.T, err error, says string) {
	t.Helper()
	require.Equal(t, cyborg.ErrLate, cyborg.ErrorKindOf(err), "%v", err)
	require.ErrorContains(t, err, says)
}

func TestRaiseRefusesLowerNumbers(t *testing.T) {
	t.Parallel()
	j, err := journal.Open(t.TempDir(), journal.Options{BootID: "boot"})
	require.NoError(t, err)
	defer j.Close()

	require.NoError(t, j.Raise(7, r0))
	require.NoError(t, j.Raise(7, r0), "the same number is a repeat")
	require.NoError(t, j.Raise(5, r1), "numbers of others do not count")
	require.NoError(t, j.Raise(0, r0), "0 is no number")
	late(t, j.Raise(6, r0), "number 6 comes too late for r0: this host has seen 7")

	late(t, j.Raise(6, r1, r0), "for r0")
	require.NoError(t, j.Raise(7, journal.BackendSubject("b"), journal.WhitelistSubject()))
	late(t, j.Raise(6, journal.BackendSubject("b")), "for backend b:")
	late(t, j.Raise(6, journal.WhitelistSubject()), "for the whitelist of Nova:")
	card := journal.DeviceSubject("b", "0000:01:00.0")
	require.NoError(t, j.Raise(5, card, journal.DeviceSubject("b", "0000:02:00.0")), "a device is not its backend")
	require.NoError(t, j.Raise(6, card))
	late(t, j.Raise(5, card), "for device 0000:01:00.0: this host has seen 6")
	require.NoError(t, j.Raise(5, r1), "nothing was raised by what was refused")
	require.EqualValues(t, 7, j.Assignment())
}

// The numbers are on the disk with the next write of anything, and survive
// rewrites of the file and restarts, however long ago they were seen.
func TestRaisedNumbersAreKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, err := journal.Open(dir, journal.Options{BootID: "boot"})
	require.NoError(t, err)

	require.NoError(t, j.Raise(7, r0))
	require.NoError(t, j.Write(journal.Change{Steps: []journal.Step{{
		StepKey: journal.StepKey{Operation: uuid.New(), Name: "s"}, State: journal.Done, Result: []byte(`"` + strings.Repeat("x", 400<<10) + `"`),
	}}}))
	require.NoError(t, j.Raise(8, r1))
	require.NoError(t, j.KeepRaised()) // the file is rewritten when it is opened again, because it is large by now
	require.NoError(t, j.Close())

	for range 2 {
		j, err = journal.Open(dir, journal.Options{BootID: "boot"})
		require.NoError(t, err)
		late(t, j.Raise(6, r0), "this host has seen 7")
		late(t, j.Raise(7, r1), "this host has seen 8")
		require.EqualValues(t, 8, j.Assignment())
		require.NoError(t, j.Close())
	}
}

// A number that could not be written is still refused below, and written with
// the next change.
func TestRaisedNumberSurvivesAFailedWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, err := journal.Open(dir, journal.Options{BootID: "boot"})
	require.NoError(t, err)
	require.NoError(t, j.Raise(7, r0))
	require.NoError(t, j.Close())
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(j.KeepRaised()))
	late(t, j.Raise(6, r0), "has seen 7")

	j, err = journal.Open(dir, journal.Options{BootID: "boot"})
	require.NoError(t, err)
	defer j.Close()
	require.NoError(t, j.Raise(6, r0), "what was never written was never relied on")
}

// A journal that was lost refuses what is older than the loss, except for the
// operations that were still open then.
func TestFloor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j, err := journal.Open(dir, journal.Options{BootID: "boot"})
	require.NoError(t, err)
	require.False(t, j.HasFloor())
	require.NoError(t, j.SetFloor(journal.Floor{Number: 100, Open: []int64{40, 90}}))
	require.NoError(t, j.Close())

	j, err = journal.Open(dir, journal.Options{BootID: "boot"})
	require.NoError(t, err)
	defer j.Close()
	require.True(t, j.HasFloor())
	require.EqualValues(t, 100, j.Assignment())

	late(t, j.Raise(99, r0), "number 99 comes too late for r0: it is from before this host lost its journal")
	late(t, j.Raise(100, r0), "lost its journal")
	require.NoError(t, j.Raise(40, r0))
	require.NoError(t, j.Raise(90, r0))
	late(t, j.Raise(40, r0), "has seen 90")
	require.NoError(t, j.Raise(101, r1))
	late(t, j.Raise(90, r1), "has seen 101")
}
