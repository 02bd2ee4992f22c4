package workflows_test

import (
	"fmt"
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
