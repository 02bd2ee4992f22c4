package journal_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/journal"
)

// A journal holds every position that one of its processes has reached, also
// after rewrites of the file and many restarts, and no other.
func TestPositions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, dir)
	_, err := j.NextSequence()
	require.NoError(t, err)
	first := j.Position()
	require.NotZero(t, first.Opening)
	require.EqualValues(t, 1, first.Writes, "a report's number is reserved first, so no report tells 0")

	require.NoError(t, j.Write(journal.Change{Steps: []journal.Step{{
		StepKey: journal.StepKey{Operation: uuid.New(), Name: "s"}, State: journal.Done, Result: []byte(`"` + strings.Repeat("x", 400<<10) + `"`),
	}}}))
	require.NoError(t, j.Raise(7, r0))
	require.NoError(t, j.KeepRaised())
	last := j.Position()
	require.Equal(t, journal.Position{Opening: first.Opening, Writes: 3}, last)
	require.NoError(t, j.Close())

	for range 3 { // the file is rewritten when it is opened again, because it is large by now
		j = open(t, dir)
		require.Zero(t, j.Position().Writes)
		require.True(t, j.Holds(first))
		require.True(t, j.Holds(last))
		require.True(t, j.Holds(journal.Position{}), "of a release that had none")
		require.False(t, j.Holds(journal.Position{Opening: first.Opening, Writes: 4}))
		require.False(t, j.Holds(journal.Position{Opening: uuid.New(), Writes: 1}))

		require.NoError(t, j.Write(journal.Change{}))
		require.NotEqual(t, first.Opening, j.Position().Opening)
		require.True(t, j.Holds(j.Position()))
		require.NoError(t, j.Close())
	}
}

// An old copy does not hold what the journal has reached since, in the same
// process or a later one, whatever it writes itself.
func TestOldCopyHoldsNotWhatCameLater(t *testing.T) {
	t.Parallel()
	for name, another := range map[string]bool{"in the same process": false, "in a later process": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "journal")
			j := open(t, dir)
			require.NoError(t, j.Write(journal.Change{}))
			copied, err := os.ReadFile(file)
			require.NoError(t, err)

			if another {
				require.NoError(t, j.Close())
				j = open(t, dir)
			}
			require.NoError(t, j.Write(journal.Change{}))
			known := j.Position()
			require.NoError(t, j.Close())

			require.NoError(t, os.WriteFile(file, copied, 0o600))
			for range 5 {
				j = open(t, dir)
				require.NoError(t, j.Write(journal.Change{}))
				require.False(t, j.Holds(known))
				require.NoError(t, j.Close())
			}
		})
	}
}

// An agent that is started again and again while no conductor answers keeps the
// position that the conductor knows.
func TestPositionsThatWereToldAreKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, dir)
	require.NoError(t, j.Told())
	require.NoError(t, j.Told())
	known := j.Position()
	require.EqualValues(t, 1, known.Writes, "that is written once")
	known.Told = false

	var untold journal.Position
	for n := range 300 {
		require.NoError(t, j.Close())
		j = open(t, dir)
		require.NoError(t, j.Write(journal.Change{}))
		if n == 0 {
			untold = j.Position()
		}
	}
	require.True(t, j.Holds(known))
	require.False(t, j.Holds(untold))
	require.NoError(t, j.Close())
}

// A journal that is an old copy forgets all that it says but its numbers, and
// holds the position from then on. The floor that it is told next counts also for
// what it has numbers of.
func TestRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, dir)

	op := uuid.New()
	step := journal.Step{StepKey: journal.StepKey{Operation: op, Name: "s"}, State: journal.Done, Result: []byte("{}")}
	attachment := journal.Attachment{Backend: "b", Deployable: "r0", Handle: "h", Device: "d", Operation: op, State: journal.Attached}
	loaded := journal.Loaded{RegionKey: journal.RegionKey{Backend: "b", Device: "d", Region: "r"}, SHA256: "sum"}
	require.NoError(t, j.SetFloor(journal.Floor{Number: 1}))
	require.NoError(t, j.Raise(7, r0))
	require.NoError(t, j.Write(journal.Change{
		Steps: []journal.Step{step}, Attachments: []journal.Attachment{attachment}, Cleanings: []journal.Cleaning{cleaning("c")},
		Layouts: []journal.Layout{layout("d")}, Loaded: []journal.Loaded{loaded},
		Staged: []journal.Staged{{Operation: op, SHA256: "sum"}},
	}))
	sequence, err := j.NextSequence()
	require.NoError(t, err)
	require.Zero(t, j.Forgot())

	known, before := journal.Position{Opening: uuid.New(), Writes: 5000}, j.Position()
	require.NoError(t, j.Restart(known))
	require.NotEqual(t, before.Opening, j.Position().Opening, "of a process that goes on, too")
	for range 2 {
		require.NoError(t, j.Close())
		j = open(t, dir)

		require.True(t, j.Holds(known))
		require.False(t, j.Ready(known), "the conductor has still to say which numbers count")
		require.Equal(t, known, j.Forgot())
		require.Empty(t, j.Attachments())
		require.Empty(t, j.Cleanings())
		require.Empty(t, j.Layouts())
		_, there := j.Step(step.StepKey)
		require.False(t, there)
		_, there = j.Loaded(loaded.RegionKey)
		require.False(t, there)
		_, there = j.Staged(op)
		require.False(t, there)
		require.False(t, j.HasFloor())

		// So that the next round reads a file that was rewritten.
		require.NoError(t, j.Write(journal.Change{DropStaged: make([]uuid.UUID, 10_000)}))
	}
	defer j.Close()

	require.NoError(t, j.SetFloor(journal.Floor{Number: 100, Open: []int64{90}}))
	require.True(t, j.Ready(known))
	late(t, j.Raise(8, r0), "number 8 comes too late for r0: it is from before this host lost its journal")
	require.NoError(t, j.Raise(90, r0))
	require.NoError(t, j.Raise(101, r1))
	require.EqualValues(t, 101, j.Assignment())

	next, err := j.NextSequence()
	require.NoError(t, err)
	require.Greater(t, next, sequence)
}
