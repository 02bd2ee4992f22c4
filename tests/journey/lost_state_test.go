package journey_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/tests/clock"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestLoseStateWhileAttached removes the state of an agent while a card is
// attached to its host and in use, and corrects its clock, which was ahead. The
// agent's reports are still accepted, and its journal gets back the entry on
// which records and card agree. Nobody touches the card.
func TestLoseStateWhileAttached(t *testing.T) {
	t.Parallel()
	clock.Need(t)
	s, a, cards := startRack(t)

	a.Kill(t)
	a.SetClock(t, 3*time.Hour)
	a.Restart(t)

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()

	id, handle := cards[0].UUID, cards[0].Handles[0].Identity
	_, err := s.API.MakeReady(ctx, id)
	require.NoError(t, err)
	_, err = s.API.Attach(ctx, id, cyborg.Holder{})
	require.NoError(t, err)

	card := deviceOf(t, s, cards[0])
	require.NoError(t, s.Bench(rack).Use(ctx, card, handle, "qemu"))
	harness.RequireSound(t, s)

	a.Kill(t)
	before, err := s.Bench(rack).Card(ctx, card)
	require.NoError(t, err)

	a.LoseState(t)
	a.SetClock(t, 0)
	a.Restart(t)

	harness.Until(t, ctx, "back in the journal", func() error {
		if !strings.Contains(a.Output(), "the journal did not know it") {
			return fmt.Errorf("the agent has not logged that it added the attachment to its journal")
		}
		return nil
	})

	harness.RequireSound(t, s)

	after, err := s.Bench(rack).Card(ctx, card)
	require.NoError(t, err)
	require.Equal(t, before.Deployables, after.Deployables)

	require.Contains(t, a.Output(), "the conductor has later reports of this host")
	harness.Until(t, ctx, "logged", func() error {
		if !strings.Contains(s.Output(), "a host has settled an attachment") {
			return fmt.Errorf("the conductor has not logged that the host has settled an attachment")
		}
		return nil
	})

	_, err = s.API.Detach(ctx, id, cyborg.Holder{})
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), "%v", err)
	require.NoError(t, s.Bench(rack).Use(ctx, card, handle, ""))

	_, err = s.API.Detach(ctx, id, cyborg.Holder{})
	require.NoError(t, err)

	harness.RequireSound(t, s)
}

// TestForgetJournalWhileAttached gives up the journal of an agent while a card is
// attached to its host. It cannot be done to an agent that runs. The next one gets
// the attachment back from the records and the hardware, and goes on.
func TestForgetJournalWhileAttached(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()

	id := cards[0].UUID
	_, err := s.API.MakeReady(ctx, id)
	require.NoError(t, err)
	_, err = s.API.Attach(ctx, id, cyborg.Holder{})
	require.NoError(t, err)

	said, code := a.ForgetJournal(t, "--yes")
	require.Equal(t, 4, code, said)
	require.Contains(t, said, "stop that one first")

	a.Kill(t)
	said, code = a.ForgetJournal(t)
	require.Equal(t, 2, code, said)
	require.Contains(t, said, "The journal has 1 attachments")

	said, code = a.ForgetJournal(t, "--yes")
	require.Equal(t, 0, code, said)
	require.Contains(t, said, "The journal is forgotten")

	a.Restart(t)
	harness.Until(t, ctx, "back in the journal", func() error {
		if !strings.Contains(a.Output(), "the journal did not know it") {
			return fmt.Errorf("the agent has not logged that it added the attachment to its journal")
		}
		return nil
	})
	text, err := os.ReadFile(filepath.Join(s.StateDir, "agents", rack, "journal"))
	require.NoError(t, err)
	require.Contains(t, string(text), `"floor":`, "it was told which numbers count")

	_, err = s.API.Detach(ctx, id, cyborg.Holder{})
	require.NoError(t, err)
	harness.RequireSound(t, s)
}

// TestLoseStateDuringOperations removes the state directory during each
// operation. The operation ends, and the records agree with the cards.
func TestLoseStateDuringOperations(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t)
	for i, stage := range stages(rack) {
		c := catch(t, s, stage, cards[i].UUID)
		a.Kill(t)
		a.LoseState(t)
		c.hurry(t, s)
		a.Restart(t)

		op := ended(t, s, c)
		t.Logf("%s: %s %+v", stage.name, op.State, op.Error)

		if stage.name != "program" { // its image was in the lost directory, too
			require.Equal(t, cyborg.OperationSucceeded, op.State, "%+v", op.Error)
		}

		harness.RequireSound(t, s)
	}
}
