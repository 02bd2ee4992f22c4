package inventory_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/internal/journal"
)

// divisible is a card that is divided like that.
func divisible(identity string, layout cyborg.Layout) cyborg.DeviceReport {
	report := device(identity, "")
	report.Fingerprint = cyborg.Fingerprint{Model: "m", Serial: identity}
	report.Partitioning = &cyborg.Partitioning{Parts: []cyborg.PartKind{{Name: "vf", Most: 4}}, Layout: layout}
	return report
}

// wants is the journal's layout of a card.
func wants(identity string, layout map[string]int) journal.Layout {
	return journal.Layout{
		DeviceKey: journal.DeviceKey{Backend: "b", Device: identity}, Wanted: layout, Operation: uuid.Max, Note: []byte(`{}`),
		Fingerprint: journal.Fingerprint{Model: "m", Serial: identity},
	}
}

// TestFindDevice finds a card as a whole, also one that has nothing that can be had.
func TestFindDevice(t *testing.T) {
	t.Parallel()
	bare := cyborg.DeviceReport{Identity: "bare"}
	r := newRig(t, map[string]*gadget{"b": {devices: []cyborg.DeviceReport{device("a", ""), bare}}})

	found, err := r.FindDevice(t.Context(), "b", "bare", time.Hour)
	require.NoError(t, err)
	require.Equal(t, "b", found.Backend)
	require.Equal(t, "bare", found.Device.Identity)
	require.Zero(t, found.Deployable)
	require.NotNil(t, found.Driver)
	require.Equal(t, 1, r.gadgets["b"].count(), "it had not looked yet")

	_, err = r.FindDevice(t.Context(), "b", "bare", time.Hour)
	require.NoError(t, err)
	require.Equal(t, 1, r.gadgets["b"].count())
	_, err = r.FindDevice(t.Context(), "b", "bare", 0)
	require.NoError(t, err)
	require.Equal(t, 2, r.gadgets["b"].count())

	_, err = r.FindDevice(t.Context(), "b", "part_a", time.Hour)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, `backend b of host node has no device "part_a"; it has: a, bare`)
	_, err = r.FindDevice(t.Context(), "none", "a", time.Hour)
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))

	r.gadgets["b"].set(func(g *gadget) { g.failure = cyborg.Errorf(cyborg.ErrHardware, "it smoked") })
	_, err = r.FindDevice(t.Context(), "b", "a", 0)
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
}

// TestLayoutsAreNormal: equal hardware has equal reports, whatever zeros its driver lists.
func TestLayoutsAreNormal(t *testing.T) {
	t.Parallel()
	layout := cyborg.Layout{"vf": 2, "half": 0}
	r := newRig(t, map[string]*gadget{"b": {devices: []cyborg.DeviceReport{divisible("a", layout), divisible("c", nil)}}})
	r.Scan(t.Context())
	devices := r.Content().Backends[0].Devices
	require.Equal(t, cyborg.Layout{"vf": 2}, devices[0].Partitioning.Layout)
	require.Equal(t, cyborg.Layout{}, devices[1].Partitioning.Layout)
	require.Len(t, layout, 2, "the driver's own is not touched")
}

// TestReportsGiveUpLayouts: what a report shows otherwise than the journal wants it is not
// wanted any more, before the report goes out. The rest is.
func TestReportsGiveUpLayouts(t *testing.T) {
	t.Parallel()
	vf := map[string]int{"vf": 2}
	r := newRig(t, map[string]*gadget{"b": {devices: []cyborg.DeviceReport{
		divisible("same", cyborg.Layout{"vf": 2}), divisible("whole", nil), divisible("other", nil), divisible("at work", nil), device("cannot", ""),
	}}})
	exchanged := wants("other", vf)
	exchanged.Fingerprint.Serial = "of another card"
	require.NoError(t, r.journal.Write(journal.Change{Layouts: []journal.Layout{
		wants("same", vf), wants("whole", vf), exchanged, wants("at work", vf), wants("cannot", vf), wants("gone", vf),
	}}))
	wanted := func() (still []string) {
		for _, entry := range r.journal.Layouts() {
			require.NotEmpty(t, entry.Note, "the driver's note stays")
			if entry.Wanted != nil {
				still = append(still, entry.Device)
			}
		}
		return still
	}

	_, err := r.Report(t.Context())
	require.NoError(t, err)
	require.Len(t, wanted(), 6, "nothing was looked at yet")

	unlock, err := r.LockFor(t.Context(), "at work", "", "a partition", uuid.New())
	require.NoError(t, err)
	beside, err := r.LockFor(t.Context(), "whole", "part_whole", "an attach", uuid.New())
	require.NoError(t, err)
	defer beside()
	r.Scan(t.Context())
	require.Len(t, wanted(), 6, "nothing was reported yet")
	_, err = r.Report(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"at work", "gone", "other", "same"}, wanted())

	unlock()
	_, err = r.Report(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"gone", "other", "same"}, wanted())

	require.NoError(t, r.journal.Write(journal.Change{Layouts: []journal.Layout{wants("whole", vf)}}))
	require.NoError(t, r.journal.Close())
	_, err = r.Report(t.Context())
	require.Error(t, err, "what cannot be written must not be reported")
}

// TestAWithheldBackend: reports say why it cannot be used, and nothing of its devices.
func TestAWithheldBackend(t *testing.T) {
	t.Parallel()
	r := newRig(t, map[string]*gadget{"b": {devices: []cyborg.DeviceReport{divisible("a", nil)}}, "c": {}})
	require.NoError(t, r.journal.Write(journal.Change{Layouts: []journal.Layout{wants("a", map[string]int{"vf": 2})}}))
	r.Scan(t.Context())
	<-r.Changes()
	release := r.Withhold("b", "its driver hangs")
	<-r.Changes()
	report, err := r.Report(t.Context())
	require.NoError(t, err)
	require.Equal(t, cyborg.BackendFailed, report.Content.Backends[0].State)
	require.Equal(t, map[string]string{"b": "failed its driver hangs", "c": "ok "}, r.states())
	require.Empty(t, report.Content.Backends[0].Devices)
	_, err = r.FindDevice(t.Context(), "b", "a", 0)
	require.ErrorContains(t, err, "its driver hangs")
	require.NotNil(t, r.journal.Layouts()[0].Wanted)

	release()
	<-r.Changes()
	require.Equal(t, "ok ", r.states()["b"])
}

// TestRestoreComesBeforeTheInventoryIsReady: it sees what the first look saw, and nothing is
// reported before it ends.
func TestRestoreComesBeforeTheInventoryIsReady(t *testing.T) {
	t.Parallel()
	r := newRig(t, map[string]*gadget{"b": {devices: []cyborg.DeviceReport{device("a", "old")}}})
	ctx, stop := context.WithCancel(t.Context())
	called := 0
	var running sync.WaitGroup
	running.Go(func() {
		r.Run(ctx, inventory.Restore{First: func(restoring context.Context) {
			called++
			require.NoError(t, restoring.Err())
			require.Equal(t, "old", r.image("a"))
			select {
			case <-r.Ready():
				require.Fail(t, "ready before the layouts are restored")
			default:
			}
		}})
	})
	<-r.Ready()
	stop()
	running.Wait()
	require.Equal(t, 1, called)
}

// TestDevicesWithAnUndoneLayout: a device whose layout the boot may have undone is in no report
// and gives up nothing before its restoring has ended. It is taken once, and again where it was
// not there after all. All others are reported meanwhile.
func TestDevicesWithAnUndoneLayout(t *testing.T) {
	t.Parallel()
	vf := map[string]int{"vf": 2}
	r := newRig(t, map[string]*gadget{"b": {}})
	undone := func(identity string) journal.Layout {
		entry := wants(identity, vf)
		entry.BootID = "the boot before"
		return entry
	}
	exchanged, given := undone("exchanged"), undone("given up")
	exchanged.Fingerprint.Serial, given.Wanted = "of another card", nil
	require.NoError(t, r.journal.Write(journal.Change{Layouts: []journal.Layout{undone("a"), exchanged, given, wants("seen", vf), undone("elsewhere")}}))
	reported := func() (identities []string) {
		report, err := r.Report(t.Context())
		require.NoError(t, err)
		for _, device := range report.Content.Backends[0].Devices {
			identities = append(identities, device.Identity)
		}
		return identities
	}
	wanted := func() map[string]int {
		entry, _ := r.journal.Layout(journal.DeviceKey{Backend: "b", Device: "a"})
		return entry.Wanted
	}
	r.Scan(t.Context())
	require.Empty(t, r.TakeUndone(), "nothing is there")

	others := []cyborg.DeviceReport{divisible("exchanged", nil), divisible("given up", nil), divisible("seen", nil), divisible("unknown", nil)}
	r.gadgets["b"].set(func(g *gadget) { g.devices = slices.Concat(others, []cyborg.DeviceReport{divisible("a", nil)}) })
	r.Scan(t.Context())
	rest := []string{"exchanged", "given up", "seen", "unknown"}
	require.Equal(t, rest, reported())
	taken := r.TakeUndone()
	require.Len(t, taken, 1)
	require.Equal(t, "a", taken[0].Device)
	require.Empty(t, r.TakeUndone(), "it is taken")
	require.Equal(t, rest, reported())
	require.NotNil(t, wanted())

	for len(r.Changes()) > 0 {
		<-r.Changes()
	}
	r.EndRestore(taken[0].DeviceKey, false)
	<-r.Changes()
	require.Equal(t, rest, reported())
	require.Len(t, r.TakeUndone(), 1)
	r.EndRestore(taken[0].DeviceKey, true)
	<-r.Changes()
	require.Equal(t, append([]string{"a"}, rest...), reported())
	require.Nil(t, wanted())
	require.Empty(t, r.TakeUndone())
}

// TestRestoreFollowsLooks: what has appeared is to be restored after each look, also while the
// restoring of something else has not ended.
func TestRestoreFollowsLooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]*gadget{"b": {}})
		ctx, stop := context.WithCancel(t.Context())
		calls := make(chan struct{}, 100)
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		running.Go(func() {
			r.Run(ctx, inventory.Restore{Later: func(ctx context.Context) {
				calls <- struct{}{}
				<-ctx.Done()
			}})
		})
		<-r.Ready()
		synctest.Wait()
		before := len(calls)
		for more := range 3 {
			require.NoError(t, r.Scan(t.Context())[0].Err)
			synctest.Wait()
			require.Len(t, calls, before+more+1)
		}
	})
}
