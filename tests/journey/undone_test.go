package journey_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// TestUndoneAttachmentIsSettledWithoutARound undoes an attachment, by a boot of the
// machine and by hand. The next report shows that the accelerator is not prepared any
// more, and has it attached again, long before the next round of Reconcile.
func TestUndoneAttachmentIsSettledWithoutARound(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t, "CYBORG_CONDUCTOR_RECONCILE_INTERVAL=24h")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()

	for i, c := range []struct {
		name, reason string
		undo         func(device string)
	}{
		{"by a boot", "a boot of its host has undone an attachment", func(string) {
			a.Kill(t)
			a.Reboot(t)
			a.Restart(t)
		}},
		{"by hand", "it is no longer attached on its host, and no operation has detached it", func(device string) {
			require.NoError(t, s.Bench(rack).Edit(ctx, device, func(card *fake.Card) {
				for _, region := range card.Deployables {
					for _, handle := range region.Handles {
						handle.Attached = false
					}
				}
			}))
			_, err := s.API.Discover(ctx, rack) // a kernel would have told the agent
			require.NoError(t, err)
		}},
	} {
		id, device := cards[i].UUID, deviceOf(t, s, cards[i])
		_, err := s.API.MakeReady(ctx, id)
		require.NoError(t, err, c.name)
		_, err = s.API.Attach(ctx, id, cyborg.Holder{})
		require.NoError(t, err, c.name)
		harness.RequireSound(t, s)

		// The card cannot be attached again for a while, so that the test can look.
		failing := func(failure map[fake.Step]fake.Failure) {
			require.NoError(t, s.Bench(rack).Edit(ctx, device, func(card *fake.Card) { card.Fail = failure }), c.name)
		}
		failing(map[fake.Step]fake.Failure{fake.StepAttach: {Times: fake.Always, Kind: cyborg.ErrHardware, When: fake.Before}})
		c.undo(device)

		harness.Until(t, ctx, c.name+": shown", func() error {
			found, _, err := s.API.Accelerator(ctx, id)
			if err != nil {
				return err
			}
			at := slices.IndexFunc(found.Handles, func(h cyborg.AttachHandle) bool { return h.Undone != nil })
			if at < 0 || found.Status != cyborg.StatusFenced || found.Fence.Reason != c.reason || found.Handles[at].Undone.Reason != c.reason {
				return fmt.Errorf("it is %s, and its handles are %+v", found.Status, found.Handles)
			}
			return nil
		})

		failing(nil)
		harness.Until(t, ctx, c.name+": settled", func() error {
			found, _, err := s.API.Accelerator(ctx, id)
			if err == nil && found.Status != cyborg.StatusAttached {
				err = fmt.Errorf("it is %s", found.Status)
			}
			return err
		})
		harness.RequireSound(t, s)
		requireUndoneTold(ctx, t, s, id, c.reason)
	}
}

// requireUndoneTold requires that the history of the accelerator says that an
// attachment was undone, why, and that it was settled.
func requireUndoneTold(ctx context.Context, t *testing.T, s *harness.Standalone, id uuid.UUID, reason string) {
	t.Helper()
	harness.Until(t, ctx, "told", func() error {
		told := map[string]bool{}
		for event, err := range s.API.History(ctx, id, apiclient.Page{}) {
			if err != nil {
				return err
			}
			switch event.Axis {
			case cyborg.AxisFence:
				told[event.From+" → "+event.To] = true
			case cyborg.AxisUndone:
				told["undone: "+event.To] = true
			case cyborg.AxisSettled:
				told[fmt.Sprint("settled ", event.Data["now"])] = true
			default:
			}
		}

		for _, want := range []string{" → " + reason, reason + " → ", "undone: " + reason, "settled attached"} {
			if !told[want] {
				return fmt.Errorf("%q is not among %v", want, told)
			}
		}
		return nil
	})
}
