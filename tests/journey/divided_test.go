package journey_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
	"github.com/cyborg-project/cyborg/workflows"
)

// divides has the fake driver of the rack divide its cards, and returns the id of the device of
// one of them.
func divides(t *testing.T, s *harness.Standalone, card apiclient.Accelerator) uuid.UUID {
	t.Helper()
	_, err := s.API.UpdateDriver(t.Context(), rack, "fake", cyborg.JSONObject{"park": "5xfpga", "partition": true})
	require.NoError(t, err)
	requireLayout(t.Context(), t, s, card.DeviceUUID, cyborg.Layout{}, nil)
	return card.DeviceUUID
}

// requireLayout waits until the device is divided like that, and that is what is wanted of it.
func requireLayout(ctx context.Context, t *testing.T, s *harness.Standalone, id uuid.UUID, layout cyborg.Layout, wanted *cyborg.Layout) {
	t.Helper()
	harness.Until(t, ctx, "divided: "+layout.String(), func() error {
		device, err := s.API.Device(ctx, id)
		if err != nil {
			return err
		}
		if device.Partitioning == nil || !device.Partitioning.Layout.Equal(layout) {
			return fmt.Errorf("it is %+v", device.Partitioning)
		}
		if (wanted == nil) != (device.WantedLayout == nil) || wanted != nil && !wanted.Equal(*device.WantedLayout) {
			return fmt.Errorf("wanted is %v", device.WantedLayout)
		}
		return nil
	})
}

// partsOf returns the accelerators of a device, by the ends of their names, and requires that
// all are there.
func partsOf(t *testing.T, s *harness.Standalone, device uuid.UUID) map[string]apiclient.Accelerator {
	t.Helper()
	parts := map[string]apiclient.Accelerator{}
	for _, a := range s.Accelerators(t) {
		if a.DeviceUUID == device {
			require.Equal(t, cyborg.PresencePresent, a.Presence, a.Name)
			parts[a.Name[strings.LastIndex(a.Name, "_")+1:]] = a
		}
	}
	return parts
}

// namesOf lists what partsOf has returned.
func namesOf(parts map[string]apiclient.Accelerator) []string {
	var names []string
	for name := range parts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// TestCardIsDividedAndMadeWhole: a card is divided while its agent and the servers are killed,
// each part is given out on its own, a boot of the host keeps the parts, and the card is whole
// again in the end. It is never divided, nor made whole, while somebody has any of it.
func TestCardIsDividedAndMadeWhole(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t, "CYBORG_OPERATIONS_AGENT_WAIT=5m")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	device, identity := divides(t, s, cards[0]), deviceOf(t, s, cards[0])
	_, err := s.API.MakeReady(ctx, cards[0].UUID)
	require.NoError(t, err)

	holder := cyborg.Holder{Kind: cyborg.HolderInstance, ID: uuid.NewString()}
	_, err = s.API.Attach(ctx, cards[0].UUID, holder)
	require.NoError(t, err)
	_, err = s.API.PartitionDevice(ctx, device, cyborg.Layout{"half": 2})
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), "%v", err)
	_, err = s.API.Detach(ctx, cards[0].UUID, holder)
	require.NoError(t, err)

	// What does not fit is refused by its host, and nothing is changed.
	_, err = s.API.PartitionDevice(ctx, device, cyborg.Layout{"half": 2, "quarter": 1})
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "%v", err)
	require.Equal(t, []string{"r0"}, namesOf(partsOf(t, s, device)))

	want := cyborg.Layout{"half": 1, "quarter": 2}
	setLatency(t, s, rack, identity, fake.StepPartition, slow)
	answer, err := s.API.PartitionDevice(ctx, device, want, apiclient.Async())
	require.NoError(t, err)
	atWork(t, s, answer.Operation.ID, workflows.PartitionActivity)
	_, err = s.API.Attach(ctx, cards[0].UUID, holder)
	require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err), "%v", err)
	a.Kill(t)
	s.Kill(t)
	setLatency(t, s, rack, identity, fake.StepPartition, 0)
	s.Restart(t)
	a.Restart(t)
	requireLayout(ctx, t, s, device, want, &want)
	harness.RequireSound(t, s)
	parts := partsOf(t, s, device)
	require.Equal(t, []string{"half0", "quarter0", "quarter1"}, namesOf(parts))

	for _, part := range parts {
		_, err = s.API.MakeReady(ctx, part.UUID)
		require.NoError(t, err)
	}
	_, err = s.API.Attach(ctx, parts["half0"].UUID, holder)
	require.NoError(t, err)
	onHost := cyborg.Holder{Kind: cyborg.HolderHost, ID: rack}
	_, err = s.API.Attach(ctx, parts["quarter1"].UUID, onHost)
	require.NoError(t, err)
	_, err = s.API.PartitionDevice(ctx, device, cyborg.Layout{})
	require.Equal(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), "%v", err)

	// The boot loses the parts, and the agent makes them again before it reports.
	a.Kill(t)
	a.Reboot(t)
	a.Restart(t)
	requireLayout(ctx, t, s, device, want, &want)
	harness.RequireSound(t, s)
	after := partsOf(t, s, device)
	for name, part := range parts {
		require.Equal(t, part.UUID, after[name].UUID)
		for event, err := range s.API.History(ctx, part.UUID, apiclient.Page{}) {
			require.NoError(t, err)
			require.False(t, event.Axis == cyborg.AxisPresence && event.To == string(cyborg.PresenceMissing), "%s was missing", name)
		}
	}
	require.Equal(t, cyborg.StatusAttached, after["quarter1"].Status)

	_, err = s.API.Detach(ctx, parts["half0"].UUID, holder)
	require.NoError(t, err)
	_, err = s.API.Detach(ctx, parts["quarter1"].UUID, onHost)
	require.NoError(t, err)
	_, stderr, code := s.CLI(t, "device", "partition", device.String(), "--whole", "--yes")
	require.Zero(t, code, stderr)
	requireLayout(ctx, t, s, device, cyborg.Layout{}, &cyborg.Layout{})
	whole := partsOf(t, s, device)
	require.Equal(t, []string{"r0"}, namesOf(whole))
	_, err = s.API.MakeReady(ctx, whole["r0"].UUID)
	require.NoError(t, err)
	_, err = s.API.Attach(ctx, whole["r0"].UUID, holder)
	require.NoError(t, err)
	harness.RequireSound(t, s)
}

// TestDividedCardThatAppearsAfterABoot: a card that its host does not show in its first report
// after a boot has its parts again when it does, and so have their holders. It is never shown
// whole.
func TestDividedCardThatAppearsAfterABoot(t *testing.T) {
	t.Parallel()
	s, a, cards := startRack(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	device, identity := divides(t, s, cards[0]), deviceOf(t, s, cards[0])
	want := cyborg.Layout{"half": 2}
	_, err := s.API.PartitionDevice(ctx, device, want)
	require.NoError(t, err)
	parts := partsOf(t, s, device)
	_, err = s.API.MakeReady(ctx, parts["half1"].UUID)
	require.NoError(t, err)
	_, err = s.API.Attach(ctx, parts["half1"].UUID, cyborg.Holder{Kind: cyborg.HolderHost, ID: rack})
	require.NoError(t, err)

	presence := func(want cyborg.Presence) {
		harness.Until(t, ctx, "the card is "+string(want), func() error {
			found, err := s.API.Device(ctx, device)
			if err == nil && found.Presence != want {
				err = fmt.Errorf("it is %s", found.Presence)
			}
			return err
		})
	}
	a.Kill(t)
	require.NoError(t, s.Bench(rack).Vanish(ctx, identity))
	a.Reboot(t)
	a.Restart(t)
	presence(cyborg.PresenceMissing)
	require.NoError(t, s.Bench(rack).Return(ctx, identity))
	_, err = s.API.Discover(ctx, rack)
	require.NoError(t, err)
	presence(cyborg.PresencePresent)
	requireLayout(ctx, t, s, device, want, &want)
	harness.RequireSound(t, s)
	require.Equal(t, []string{"half0", "half1"}, namesOf(partsOf(t, s, device)))
	require.Equal(t, parts["half1"].UUID, partsOf(t, s, device)["half1"].UUID)
	for event, err := range s.API.DeviceHistory(ctx, device, apiclient.Page{}) {
		require.NoError(t, err)
		require.False(t, event.Axis == cyborg.AxisLayout && event.From == want.String(), "it was shown as %q", event.To)
	}
	harness.Until(t, ctx, "the part is attached again", func() error {
		if status := partsOf(t, s, device)["half1"].Status; status != cyborg.StatusAttached {
			return fmt.Errorf("it is %s", status)
		}
		return nil
	})
}

// TestFailedPartitionIsUndone: a card that cannot be divided as wanted is as it was before. Where
// that fails as well, nobody gets anything of it before a partition has succeeded.
func TestFailedPartitionIsUndone(t *testing.T) {
	t.Parallel()
	s, _, cards := startRack(t, "CYBORG_OPERATIONS_UNDO=1s", "CYBORG_OPERATIONS_ATTEMPTS=2")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	device, identity := divides(t, s, cards[0]), deviceOf(t, s, cards[0])
	_, err := s.API.MakeReady(ctx, cards[0].UUID)
	require.NoError(t, err)
	edit := func(change func(c *fake.Card)) { require.NoError(t, s.Bench(rack).Edit(ctx, identity, change)) }

	// The hardware makes a part less, each time. What the undo wants it has: nothing.
	edit(func(c *fake.Card) { c.Fewer = fake.Always })
	_, err = s.API.PartitionDevice(ctx, device, cyborg.Layout{"quarter": 4})
	require.Equal(t, cyborg.ErrHardware, cyborg.ErrorKindOf(err), "%v", err)
	requireLayout(ctx, t, s, device, cyborg.Layout{}, nil)
	harness.RequireSound(t, s)
	require.Equal(t, cyborg.StatusReady, partsOf(t, s, device)["r0"].Status)
	require.Len(t, partsOf(t, s, device), 1)

	// It was divided. Another layout fails in the middle, and so does the undo.
	edit(func(c *fake.Card) { c.Fewer = 0 })
	half := cyborg.Layout{"half": 2}
	_, err = s.API.PartitionDevice(ctx, device, half)
	require.NoError(t, err)
	edit(func(c *fake.Card) {
		c.Fail = map[fake.Step]fake.Failure{fake.StepPartition: {Times: fake.Always, Kind: cyborg.ErrHardware, When: fake.After}}
	})
	answer, err := s.API.PartitionDevice(ctx, device, cyborg.Layout{"quarter": 1}, apiclient.Async())
	require.NoError(t, err)
	op := ended(t, s, caught{id: answer.Operation.ID})
	require.Equal(t, cyborg.OperationNeedsOperator, op.State, "%+v", op.Error)
	found, err := s.API.Device(ctx, device)
	require.NoError(t, err)
	require.NotEmpty(t, found.Accelerators)
	for _, part := range found.Accelerators {
		require.Equal(t, cyborg.LifecycleError, part.Lifecycle, part.Name)
		_, err = s.API.Attach(ctx, part.UUID, cyborg.Holder{Kind: cyborg.HolderHost, ID: rack})
		require.Error(t, err)
	}

	// What the remedy says.
	edit(func(c *fake.Card) { c.Fail = map[fake.Step]fake.Failure{} })
	_, err = s.API.PartitionDevice(ctx, device, half)
	require.NoError(t, err)
	requireLayout(ctx, t, s, device, half, &half)
	harness.RequireSound(t, s)
	for _, part := range partsOf(t, s, device) {
		require.NotEqual(t, cyborg.StatusError, part.Status, part.Name)
	}
}
