package db_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// flash is what a test loads into the flash memory of a card.
func flash() cyborg.Image { return cyborg.Image{Source: "flash.img", SHA256: "f1", ID: "flash"} }

// powerCycled is a pending image that takes effect with a power cycle.
func powerCycled(id string) *cyborg.PendingImage {
	return &cyborg.PendingImage{BitstreamID: id, Until: cyborg.ActivationPowerCycle}
}

// waits makes the driver of the host's card show one image in effect, and another one that
// is pending; empty for none.
func (h *host) waits(t *testing.T, card int, bitstream, pending string) {
	t.Helper()
	part := &h.content.Backends[0].Devices[card].Deployables[0]
	part.BitstreamID, part.PendingImage = bitstream, nil
	if pending != "" {
		part.PendingImage = powerCycled(pending)
	}
}

// requireImages fails unless the accelerator has this image in effect, this one pending,
// and has lost this one; empty for none.
func (r *records) requireImages(t *testing.T, id uuid.UUID, bitstream, pending, lost string) {
	t.Helper()
	a := r.accelerator(t, id)
	require.Equal(t, bitstream, a.BitstreamID)
	if pending == "" {
		require.Nil(t, a.PendingImage)
	} else {
		require.Equal(t, powerCycled(pending), a.PendingImage)
	}
	if lost == "" {
		require.Nil(t, a.LostImage)
	} else {
		require.NotNil(t, a.LostImage)
		require.Equal(t, lost, a.LostImage.BitstreamID)
	}
}

// flashes programs an accelerator with an image that is pending from then on, and ends the
// operation with what its host has seen.
func (r *records) flashes(t *testing.T, h *host, work cyborg.Work, image cyborg.Image) {
	t.Helper()
	h.waits(t, 0, h.content.Backends[0].Devices[0].Deployables[0].BitstreamID, image.ID)
	h.sequence++
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded, Images: map[uuid.UUID]cyborg.Image{work.Targets[0].Accelerator: image},
		Observations: []cyborg.Observation{{Sequence: h.sequence, Backend: "fake", Device: h.content.Backends[0].Devices[0]}},
		Result:       map[string]any{"bitstream_id": image.ID, "pending": string(cyborg.ActivationPowerCycle)},
	}))
}

// idle lists the accelerators whose lost images Reconcile would load again.
func (r *records) idle(t *testing.T) (out []uuid.UUID) {
	t.Helper()
	found, err := r.LostImages(t.Context(), 10)
	require.NoError(t, err)
	for i := range found {
		out = append(out, found[i].UUID)
	}
	return out
}

// TestPendingImage: a report sets and clears the image that is pending, and one that knows
// of none clears it. The history has each change. What is in effect is not pending, and an
// image without an id is none.
func TestPendingImage(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")

	h.waits(t, 0, "factory", "new")
	h.report(t)
	r.requireImages(t, a.UUID, "factory", "new", "")
	h.content.Backends[0].Devices[0].Deployables[0].PendingImage.Until = "full_moon"
	h.report(t)
	require.Equal(t, cyborg.Activation("full_moon"), r.accelerator(t, a.UUID).PendingImage.Until, "people read what only a newer release knows")

	h.waits(t, 0, "factory", "newer")
	h.report(t)
	r.requireImages(t, a.UUID, "factory", "newer", "")
	h.waits(t, 0, "newer", "")
	h.report(t)
	r.requireImages(t, a.UUID, "newer", "", "")
	h.waits(t, 0, "newer", "newer")
	h.report(t)
	r.requireImages(t, a.UUID, "newer", "", "")
	h.content.Backends[0].Devices[0].Deployables[0].PendingImage = powerCycled("")
	h.report(t)
	r.requireImages(t, a.UUID, "newer", "", "")

	require.Equal(t, []string{" → new", "new → new", "new → newer", "newer → "}, r.changes(t, cyborg.SubjectAccelerator, cyborg.AxisPendingImage))

	added := r.addHost(t, "h2", 0)
	added.content.Backends[0].Devices = append(added.content.Backends[0].Devices, device("card0"))
	added.waits(t, 0, "factory", "new")
	added.report(t)
	require.Equal(t, powerCycled("new"), added.accelerator(t, "card0").PendingImage)
	require.Equal(t, " → new", r.changes(t, cyborg.SubjectAccelerator, cyborg.AxisPendingImage)[4])
}

// TestServerWithoutPendingImages: a server of release 0.1 writes only what is in effect.
// What is in effect is not pending any more.
func TestServerWithoutPendingImages(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	h.waits(t, 0, "factory", "new")
	h.report(t)

	r.exec(t, "UPDATE deployables SET bitstream_id = 'factory' WHERE uuid = $1", a.UUID)
	r.requireImages(t, a.UUID, "factory", "new", "")
	r.exec(t, "UPDATE deployables SET bitstream_id = 'new' WHERE uuid = $1", a.UUID)
	r.requireImages(t, a.UUID, "new", "", "")
	require.Equal(t, []string{" → new", "new → "}, r.changes(t, cyborg.SubjectAccelerator, cyborg.AxisPendingImage))
}

// TestPendingImageOfAProgram: an image that an operation has loaded and that is pending is
// kept over a reboot, is there after a power cycle, and is lost where the power cycle has
// dropped it. Only then it is loaded again.
func TestPendingImageOfAProgram(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		bitstream, pending string
		lost               string
	}{
		"kept over a reboot":           {"factory", "flash", ""},
		"in effect":                    {"flash", "", ""},
		"dropped":                      {"factory", "", "flash"},
		"dropped with the one before":  {"", "", "flash"},
		"replaced by another one":      {"another", "", "flash"},
		"dropped, and something waits": {"", "another", "flash"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addHost(t, "h1", 1)
			a := h.ready(t, "card0")
			h.waits(t, 0, "factory", "")
			h.report(t)

			work := r.begin(t, toLoad(a.UUID, flash()))
			require.Equal(t, "factory", work.Targets[0].BitstreamID)
			r.flashes(t, h, work, flash())
			r.requireImages(t, a.UUID, "factory", "flash", "")
			require.Equal(t, cyborg.StatusReady, r.accelerator(t, a.UUID).Status())

			another := r.begin(t, toProgram(a.UUID))
			require.Equal(t, "flash", another.Targets[0].BitstreamID, "it was loaded last")
			r.end(t, another, cyborg.OperationFailed)

			h.waits(t, 0, test.bitstream, test.pending)
			h.reboot(t, 0)
			r.requireImages(t, a.UUID, test.bitstream, test.pending, test.lost)
			var lost []uuid.UUID
			if test.lost != "" {
				lost = []uuid.UUID{a.UUID}
				require.Equal(t, flash(), r.accelerator(t, a.UUID).LostImage.Image)
			}
			require.Equal(t, lost, r.idle(t))

			h.waits(t, 0, "flash", "")
			h.report(t)
			r.requireImages(t, a.UUID, "flash", "", "")
			h.waits(t, 0, "factory", "")
			h.reboot(t, 0)
			r.requireImages(t, a.UUID, "factory", "", "flash")
		})
	}
}

// TestLostImageIsPending: a lost image that was loaded again is lost until it is in effect,
// because who holds the accelerator does not have it before. It is not loaded once more,
// unless a power cycle has dropped it again.
func TestLostImageIsPending(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	r.profile(t, "one", one())
	r.loads(t, h, 0, a, flash())
	who := uuid.New()
	arqs := r.bound(t, a, who)

	lost := func() int {
		t.Helper()
		found, err := r.LostImagesOf(t.Context(), who, "h1")
		require.NoError(t, err)
		return len(found)
	}
	h.waits(t, 0, "factory", "")
	h.reboot(t, 0)
	require.Equal(t, 1, lost())

	r.flashes(t, h, r.begin(t, toReload(a.UUID, flash())), flash())
	r.requireImages(t, a.UUID, "factory", "flash", "flash")
	require.Equal(t, 1, lost(), "the instance does not have it")
	drift, err := r.Drift(t.Context(), db.DriftFilter{Classes: []cyborg.DriftClass{cyborg.DriftLostImage}}, db.Page{Limit: 10})
	require.NoError(t, err)
	require.Equal(t, "image flash is not loaded any more since its host booted; it has factory; image flash takes effect after a power cycle", drift[0].Detail)

	h.reboot(t, 0)
	r.requireImages(t, a.UUID, "factory", "flash", "flash")
	h.waits(t, 0, "flash", "")
	h.reboot(t, 0)
	r.requireImages(t, a.UUID, "flash", "", "")
	require.Zero(t, lost())

	_, err = r.DeleteARQs(t.Context(), db.ARQDeletion{UUIDs: []uuid.UUID{arqs[0].UUID, arqs[1].UUID}, AllowBound: true}, alice())
	require.NoError(t, err)
	h.waits(t, 0, "factory", "")
	h.reboot(t, 0)
	for range 2 { // each time, it was dropped in another boot
		require.Equal(t, []uuid.UUID{a.UUID}, r.idle(t))
		r.flashes(t, h, r.begin(t, toReload(a.UUID, flash())), flash())
		require.Empty(t, r.idle(t))
		h.waits(t, 0, "factory", "")
		h.reboot(t, 0)
	}

	r.flashes(t, h, r.begin(t, toReload(a.UUID, flash())), flash())
	r.exec(t, "UPDATE operations SET admitted_at = '2000-01-01'")
	require.Empty(t, r.idle(t), "also where that was long ago")
	h.waits(t, 0, "factory", "")
	h.report(t)
	require.NotNil(t, r.accelerator(t, a.UUID).LostImage, "what is dropped in the same boot stays lost, too")
	require.Equal(t, []string{">lost_image", "lost_image>", ">lost_image"}, r.healthEvents(t, cyborg.SubjectAccelerator, a.UUID))
}

// TestPendingImageOfSomebodyElse: who loads another image by hand knows why. So what it
// replaces with a power cycle is not lost.
func TestPendingImageOfSomebodyElse(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 3)
	effective, waiting, later := h.ready(t, "card0"), h.ready(t, "card1"), h.ready(t, "card2")
	r.loads(t, h, 0, effective, flash())
	r.loads(t, h, 1, waiting, flash())
	r.loads(t, h, 2, later, flash())

	h.waits(t, 0, "flash", "theirs")
	h.waits(t, 1, "flash", "theirs")
	h.report(t)
	h.waits(t, 1, "flash", "flash again") // of the same boot
	h.report(t)
	h.waits(t, 0, "theirs", "")
	h.waits(t, 1, "factory", "")
	h.waits(t, 2, "flash", "theirs") // first seen in this boot
	h.reboot(t, 0)
	h.waits(t, 2, "theirs", "")
	h.reboot(t, 0)
	for _, a := range []*cyborg.Accelerator{effective, waiting, later} {
		require.Nil(t, r.accelerator(t, a.UUID).LostImage)
		require.Empty(t, r.healthEvents(t, cyborg.SubjectAccelerator, a.UUID))
	}
}

// TestPendingImageAndALaterReport: where the host has reported once more before the end of
// the operation, the report counts: an image that it still shows as loaded last is
// recorded, and one that it does not show is not.
func TestPendingImageAndALaterReport(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ bitstream, pending, lost string }{
		"pending":          {"factory", "flash", "flash"},
		"in effect":        {"flash", "", "flash"},
		"another one":      {"factory", "another", ""},
		"nothing any more": {"factory", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addHost(t, "h1", 1)
			a := h.ready(t, "card0")
			h.waits(t, 0, "factory", "")
			h.report(t)

			work := r.begin(t, toLoad(a.UUID, flash()))
			h.sequence++
			seen := device("card0")
			seen.Deployables[0].BitstreamID, seen.Deployables[0].PendingImage = "factory", powerCycled("flash")
			observed := cyborg.Observation{Sequence: h.sequence, Backend: "fake", Device: seen}
			h.waits(t, 0, test.bitstream, test.pending)
			h.report(t)
			require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
				Operation: work.Operation, State: cyborg.OperationSucceeded, Images: map[uuid.UUID]cyborg.Image{a.UUID: flash()},
				Observations: []cyborg.Observation{observed},
			}))
			r.requireImages(t, a.UUID, test.bitstream, test.pending, "")

			h.waits(t, 0, "", "")
			h.reboot(t, 0)
			r.requireImages(t, a.UUID, "", "", test.lost)
		})
	}
}

// TestBindWithPendingImage: a bind that asks for an image which is pending, or may ask for
// it, fails before anything is loaded, and says what to do. One that asks for what is in
// effect has it.
func TestBindWithPendingImage(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	effective, pending := uuid.NewString(), uuid.NewString()
	h.waits(t, 0, effective, pending)
	h.report(t)

	for name, want := range map[string][2]string{
		"pending": {"accel:bitstream_id", pending}, "otherwise spelled": {"accel:bitstream_id", strings.ToUpper(pending)},
		"function": {"accel:function_id", "crypto"},
	} {
		r.profile(t, name, map[string]string{"resources:FPGA": "1", want[0]: want[1]})
		arq := r.request(t, name)[0]
		_, err := r.Admit(t.Context(), toBind("h1", vm(), a.ProviderUUID, arq))
		requireKind(t, cyborg.ErrImageRejected, err, "image "+pending+` of accelerator "h1_card0" takes effect only after a power cycle of h1`)
		require.Equal(t, "Do that first, and then create the instance again.", cyborg.AsError(err).Hint)
		require.Equal(t, cyborg.ARQBindFailed, r.arq(t, arq.UUID).State)
	}

	r.profile(t, "effective", map[string]string{"resources:FPGA": "1", "accel:bitstream_id": effective})
	require.Empty(t, r.do(t, toBind("h1", vm(), a.ProviderUUID, r.request(t, "effective")[0]), cyborg.OperationSucceeded).Loads)
	r.requireImages(t, a.UUID, effective, pending, "")
	r.requireAgreed(t)
}
