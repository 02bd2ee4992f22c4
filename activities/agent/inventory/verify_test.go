package inventory_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
)

// clamp is a gadget whose handles can be attached.
type clamp struct {
	gadget
	attached atomic.Bool
	failure  error
	asked    drivers.AttachedRequest // last
}

func (c *clamp) Attach(context.Context, drivers.AttachRequest) error {
	c.attached.Store(true)
	return nil
}

func (c *clamp) Detach(context.Context, drivers.DetachRequest) error {
	c.attached.Store(false)
	return nil
}

func (c *clamp) Attached(_ context.Context, request drivers.AttachedRequest) (bool, error) {
	c.asked = request
	return c.attached.Load(), c.failure
}

// newClamp returns a clamp with the device a, and the inventory and the journal of its
// host.
func newClamp(t *testing.T) (*clamp, *inventory.Inventory, *journal.Journal) {
	t.Helper()
	j, err := journal.Open(t.TempDir(), journal.Options{BootID: "boot"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, j.Close()) })

	c := &clamp{gadget: gadget{devices: []cyborg.DeviceReport{device("a", "")}}}
	registry := drivers.NewRegistry()
	require.NoError(t, registry.Register("clamp", func(drivers.Environment, map[string]any) (drivers.Driver, error) { return c, nil }))
	known, err := inventory.Open(inventory.Config{
		Host: "node", Version: "1", Root: "/", StateDir: t.TempDir(), ScanTimeout: 10 * time.Second, FullScanInterval: 5 * time.Minute,
		Backends: []inventory.Setting{{Name: "clamp", Driver: "clamp", Enabled: true}},
	}, registry, j, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return c, known, j
}

// A scan doubts an attachment that the hardware no longer shows although nobody
// detached it. It leaves the attachment alone where an operation works on the
// device, the device is away, or the driver cannot tell.
func TestAttachmentsAreVerified(t *testing.T) {
	t.Parallel()
	c, known, j := newClamp(t)
	entry := journal.Attachment{Backend: "clamp", Handle: "a", Device: "a", Deployable: "part_a", Operation: uuid.New(), State: journal.Attached}
	entry.HolderKind, entry.HandleUUID = string(cyborg.HolderInstance), uuid.New()
	key := entry.Key()
	require.NoError(t, j.Write(journal.Change{Attachments: []journal.Attachment{entry}}))

	state := func() journal.AttachmentState {
		known.Scan(t.Context())
		now, ok := j.Attachment(key)
		require.True(t, ok)
		return now.State
	}

	c.attached.Store(true)
	require.Equal(t, journal.Attached, state())
	require.Equal(t, cyborg.HolderInstance, c.asked.Holder)
	require.Equal(t, entry.HandleUUID, c.asked.HandleUUID)

	c.attached.Store(false)
	c.failure = cyborg.Errorf(cyborg.ErrBusy, "not now")
	require.Equal(t, journal.Attached, state(), "nobody can tell")

	c.failure = nil
	unlock, err := known.Lock(t.Context(), "a", "an operation")
	require.NoError(t, err)
	require.Equal(t, journal.Attached, state(), "an operation works on it")
	unlock()

	c.set(func(g *gadget) { g.devices = nil })
	require.Equal(t, journal.Attached, state(), "it is away")

	c.set(func(g *gadget) { g.devices = []cyborg.DeviceReport{device("a", "")} })
	require.Equal(t, journal.InDoubt, state())
	require.Equal(t, cyborg.AttachmentInDoubt, known.Content().Attachments[0].State)
	now, _ := j.Attachment(key)
	require.Equal(t, entry.Operation, now.Operation)

	// The driver knows nothing of handles that were only handed out, or were
	// attached before the last boot.
	entry.HandedOut = true
	require.NoError(t, j.Write(journal.Change{Attachments: []journal.Attachment{entry}}))
	require.Equal(t, journal.Attached, state())

	entry.HandedOut, entry.BootID = false, "before"
	require.NoError(t, j.Write(journal.Change{Attachments: []journal.Attachment{entry}}))
	require.Equal(t, journal.Attached, state())
}

// TestTriggeredLookNoticesARebinding: a message of the kernel, which triggers a look, is
// enough for the next report to say that somebody has undone an attachment.
func TestTriggeredLookNoticesARebinding(t *testing.T) {
	t.Parallel()
	c, known, j := newClamp(t)
	entry := journal.Attachment{Backend: "clamp", Handle: "a", Device: "a", Deployable: "part_a", Operation: uuid.New(), State: journal.Attached}
	require.NoError(t, j.Write(journal.Change{Attachments: []journal.Attachment{entry}}))
	c.attached.Store(true)

	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		known.Run(ctx, inventory.Restore{})
	}()
	defer func() {
		stop()
		<-ended
	}()
	<-known.Ready()

	c.attached.Store(false)
	known.Trigger()
	for known.Content().Attachments[0].State != cyborg.AttachmentInDoubt {
		select {
		case <-known.Changes():
		case <-ctx.Done():
			require.FailNow(t, "no report was due")
		}
	}
}
