package agent_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// TestTheJournalKnowsBeforeTheHardware: when a driver is called, the journal
// says already that the step has begun and that the attachment is in doubt. An
// agent that dies in the call could otherwise not know that it touched anything.
func TestTheJournalKnowsBeforeTheHardware(t *testing.T) {
	t.Parallel()
	op := uuid.New()
	for name, test := range map[string]struct {
		step     fake.Step
		activity string
		input    any
		key      string // the name of the step in the journal
	}{
		"attach": {fake.StepAttach, workflows.AttachActivity, attach(op, handle), workflows.AttachActivity + "/" + handle},
		"detach": {fake.StepDetach, workflows.DetachActivity, detach(op, handle), workflows.DetachActivity},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.ready()
			if name == "detach" {
				h.must(workflows.AttachActivity, attach(uuid.New(), handle), nil)
			}
			h.edit(func(c *fake.Card) { c.Latency[test.step] = fake.Duration(time.Hour) })
			before := h.fate.count(name)

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			env := h.environment(ctx)
			env.SetTestTimeout(5 * time.Minute)
			ended := make(chan error, 1)
			go func() {
				_, err := env.ExecuteActivity(test.activity, test.input)
				ended <- err
			}()

			require.Eventually(t, func() bool { return h.fate.count(name) > before || len(ended) > 0 }, 5*time.Minute, time.Millisecond)
			require.Empty(t, ended)
			step, known := h.journal.Step(journal.StepKey{Operation: op, Name: test.key})
			require.True(t, known)
			require.Equal(t, journal.Started, step.State)
			require.Equal(t, map[string]cyborg.AttachmentState{handle: cyborg.AttachmentInDoubt}, h.attachments())

			cancel()
			require.Error(t, <-ended)
		})
	}
}

// TestAStepSucceedsOnlyInTheJournal: a step whose end could not be written to
// the journal has not succeeded. The records would otherwise say so, and the
// journal would leave it in doubt.
func TestAStepSucceedsOnlyInTheJournal(t *testing.T) {
	t.Parallel()
	for name := range crashes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for point := 0; ; point++ {
				require.Less(t, point, 40, "the activity never gets through")
				h := newHost(t)
				c := crashes()[name]
				c.prepare(h)
				h.startAs(&fate{dieAt: point})
				failed := h.try(c.activity, c.input)

				h.fate.mu.Lock()
				died := h.fate.points > point
				h.fate.mu.Unlock()
				require.Equal(t, died, failed, "killed at point %d", point)
				if !died {
					return
				}
			}
		})
	}
}
