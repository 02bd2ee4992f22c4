package workflows_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/workflows"
)

// fromGlance is a world that loads an image from Glance.
func fromGlance() *world {
	w := newWorld(cyborg.OperationProgram)
	w.work.Program.Image = cyborg.GlanceImage(uuid.MustParse("5c2bd7a4-9e2f-4c44-9c5f-2f1b4cf0c0de"))
	return w
}

// glanceCalls are the calls of such an operation, in order.
func glanceCalls() []string { return []string{"Begin", "Find", "Stage", "Record", "Program", "End"} }

// TestImageFromGlance: the host is handed the one-time URL, and what is loaded
// has the id and the checksum that Glance has.
func TestImageFromGlance(t *testing.T) {
	t.Parallel()
	w := fromGlance()
	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationSucceeded, result.State)
	require.Equal(t, glanceCalls(), w.calls)

	require.Equal(t, workflows.ImageFetch(w.work.Operation, "secret"), w.staged.Fetch)
	require.Equal(t, cyborg.Checksum("sha512:00"), w.staged.Image.Checksum)
	require.Equal(t, "found", w.programmed.Image.ID)
	require.Equal(t, "aes", w.outcome.Result["function_id"])
	require.Equal(t, "find image", w.outcome.Steps[0].Name)
}

// TestQueriesOfImagesAreInNoStep: the query of an image's URL may be a signature.
// Where an older release has recorded it as part of the work, it is not repeated.
func TestQueriesOfImagesAreInNoStep(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationProgram)
	w.work.Program.Image = cyborg.Image{Source: "https://images.example/a?signature=1", SHA256: "abc"}
	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationSucceeded, result.State)

	shown := "https://images.example/a?…"
	require.Equal(t, shown, w.staged.Image.Source)
	require.Equal(t, shown, w.programmed.Image.Source)
	require.Equal(t, shown, w.outcome.Images[w.work.Targets[0].Accelerator].Source)
}

// TestImageFromGlanceFails: each step in turn fails, for good or for a while,
// before or after its effect, or is cancelled.
func TestImageFromGlanceFails(t *testing.T) {
	t.Parallel()
	for at, name := range glanceCalls() {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/after=%v", name, after), func(t *testing.T) {
				t.Parallel()
				w := fromGlance()
				w.failAt, w.failAfter, w.failure = at, after, cyborg.Errorf(cyborg.ErrImageRejected, "step %d refused", at)
				result, err := w.run(t, false)
				if name == "End" {
					require.Error(t, err)
					return
				}

				require.NoError(t, err)
				require.Equal(t, cyborg.OperationFailed, result.State)
				require.Equal(t, cyborg.ErrImageRejected, w.outcome.Error.Kind)
				if name != "Program" { // an agent that refuses has not loaded it
					w.requireUntouched(t, w.String())
				}
			})
		}

		t.Run(name+"/passes", func(t *testing.T) {
			t.Parallel()
			w := fromGlance()
			w.failAt, w.failure = at, cyborg.Errorf(cyborg.ErrUnavailable, "away for a moment")
			result, err := w.run(t, false)
			require.NoError(t, err)
			require.Equal(t, cyborg.OperationSucceeded, result.State)
		})

		t.Run(name+"/cancelled", func(t *testing.T) {
			t.Parallel()
			w := fromGlance()
			w.cancelAt = at
			result, err := w.run(t, false)
			require.NoError(t, err)
			if name == "End" {
				require.Equal(t, cyborg.OperationSucceeded, result.State)
				return
			}

			require.Equal(t, cyborg.OperationCancelled, result.State)
			w.requireUntouched(t, w.String())
		})
	}
}

// TestStagedAgain: where the host does not have the staged image any more, because
// it has lost its journal or has another agent, the image is staged again, and an
// image from Glance is found again first. That is done a few times.
func TestStagedAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		world  *world
		lost   int
		ends   cyborg.OperationState
		middle []string
	}{
		"once": {
			newWorld(cyborg.OperationProgram), 1, cyborg.OperationSucceeded,
			[]string{"Stage", "Record", "NotStaged", "Stage", "Record", "Program"},
		},
		"once, from Glance": {
			fromGlance(), 1, cyborg.OperationSucceeded,
			[]string{"Find", "Stage", "Record", "NotStaged", "Find", "Stage", "Record", "Program"},
		},
		"by a bind": {
			newWorld(cyborg.OperationBind), 2, cyborg.OperationSucceeded,
			[]string{"Stage", "Record", "NotStaged", "Stage", "Record", "NotStaged", "Stage", "Record", "Program"},
		},
		"always": {
			newWorld(cyborg.OperationProgram), 100, cyborg.OperationFailed,
			[]string{"Stage", "Record", "NotStaged", "Stage", "Record", "NotStaged", "Stage", "Record", "NotStaged"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := c.world
			w.unstaged = c.lost
			result, err := w.run(t, false)
			require.NoError(t, err)
			require.Equal(t, c.ends, result.State)
			require.Equal(t, slices.Concat([]string{"Begin"}, c.middle, []string{"End"}), w.calls)
			if c.ends != cyborg.OperationSucceeded {
				require.Equal(t, cyborg.ErrNotStaged, result.Error.Kind)
				w.requireUntouched(t, w.String())
			}
		})
	}
}

// TestSecondImageOfABindIsStagedAgain: what the loads before have done, and would be
// undone, does not keep a load from being repeated.
func TestSecondImageOfABindIsStagedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationBind)
	second := cyborg.Target{Accelerator: uuid.New(), Backend: "fake", Device: "d", Deployable: "second", BitstreamID: "before"}
	w.work.Targets = append(w.work.Targets, second)
	w.work.Loads = append(w.work.Loads, cyborg.ImageLoad{Accelerator: second.Accelerator, Image: cyborg.Image{Source: "new.img"}})
	w.lostFrom, w.unstaged = second.Deployable, 1

	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationSucceeded, result.State)
	require.Equal(t, []string{"Begin", "Stage", "Record", "Program", "Stage", "Record", "NotStaged", "Stage", "Record", "Program", "End"}, w.calls)
}

// TestNotStagedAgainAfterAnAttempt: an attempt that may have begun is undone, and
// nothing is loaded over what it has left.
func TestNotStagedAgainAfterAnAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(cyborg.OperationProgram)
	w.failAt, w.failAfter, w.failure = 3, true, cyborg.Errorf(cyborg.ErrUnavailable, "the agent was killed")
	w.refuse = cyborg.Errorf(cyborg.ErrNotStaged, "the agent has lost its journal")

	result, err := w.run(t, false)
	require.NoError(t, err)
	require.Equal(t, cyborg.OperationFailed, result.State)
	require.Equal(t, cyborg.ErrNotStaged, result.Error.Kind)
	require.Equal(t, []string{"Begin", "Stage", "Record", "Program", "Program", "Restore", "End"}, w.calls)
	w.requireUntouched(t, w.String())
}
