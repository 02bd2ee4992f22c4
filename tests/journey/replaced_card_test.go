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

// TestReplacedCardGoesToNobody puts another card into the place of an attached one,
// while the agent runs and while the machine is off. The holder of the one does not
// get the other, by no report, boot or round of Reconcile. Once it has given the one
// back, by itself or by force, the other comes as new hardware.
func TestReplacedCardGoesToNobody(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	bench := s.Bench(rack)

	running := func(exchange func()) {
		exchange()
		_, err := s.API.Discover(ctx, rack) // a kernel would have told the agent
		require.NoError(t, err)
	}
	off := func(exchange func()) {
		a.Kill(t)
		exchange()
		a.Reboot(t)
		a.Restart(t)
	}
	for i, c := range []struct {
		name    string
		holder  cyborg.Holder
		product string // of the other card; empty for the same model
		while   func(exchange func())
	}{
		{"of another model, in the place of the host's", cyborg.Holder{}, "fa99", running},
		{"of the same model, in the place of the host's", cyborg.Holder{}, "", running},
		{"in the place of an instance's", cyborg.Holder{Kind: cyborg.HolderInstance, ID: uuid.NewString()}, "", running},
		{"while the machine is off", cyborg.Holder{}, "", off},
	} {
		id, device := cards[i].UUID, deviceOf(t, s, cards[i])
		_, err := s.API.MakeReady(ctx, id)
		require.NoError(t, err, c.name)
		_, err = s.API.Attach(ctx, id, c.holder)
		require.NoError(t, err, c.name)

		c.while(func() { require.NoError(t, bench.Exchange(ctx, device, c.product, "another"), c.name) })
		var seen apiclient.Accelerator
		harness.Until(t, ctx, c.name+": seen", func() (err error) {
			seen, _, err = s.API.Accelerator(ctx, id)
			if err == nil && seen.ReplacedBy == "" {
				err = fmt.Errorf("it is %s", seen.Status)
			}
			return err
		})
		require.Contains(t, seen.ReplacedBy, "serial another", c.name)
		require.Len(t, seen.Holders, 1, c.name)

		requireUntouched(ctx, t, bench, device)
		_, err = s.API.Attach(ctx, id, cyborg.Holder{Kind: cyborg.HolderInstance, ID: uuid.NewString()})
		require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "%s: %v", c.name, err)

		_, err = s.API.Detach(ctx, id, seen.Holders[0])
		require.NoError(t, err, c.name)
		harness.Until(t, ctx, c.name+": new hardware", func() error {
			all, err := apiclient.Collect(s.API.Accelerators(ctx, apiclient.AcceleratorFilter{Hosts: []string{rack}}, apiclient.Page{}))
			if err != nil {
				return err
			}
			at := slices.IndexFunc(all, func(now apiclient.Accelerator) bool { return now.ProviderName == seen.ProviderName })
			if at < 0 || all[at].UUID == id || all[at].Status != cyborg.StatusInactive {
				return fmt.Errorf("%s is not among %v", seen.ProviderName, all)
			}
			return nil
		})
		requireUntouched(ctx, t, bench, device)
		harness.RequireSound(t, s)
	}
}

// requireUntouched requires that no handle of the card is attached, and none of its
// parts installed.
func requireUntouched(ctx context.Context, t *testing.T, bench fake.Bench, device string) {
	t.Helper()
	card, err := bench.Card(ctx, device)
	require.NoError(t, err)
	for _, part := range card.Deployables {
		require.False(t, part.Installed)
		for _, handle := range part.Handles {
			require.False(t, handle.Attached)
		}
	}
}
