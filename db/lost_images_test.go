package db_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// shows makes the driver of the host's card read back an image.
func (h *host) shows(t *testing.T, card int, bitstream string) {
	t.Helper()
	h.content.Backends[0].Devices[card].Deployables[0].BitstreamID = bitstream
}

// loads programs an accelerator, and makes its host report the image.
func (r *records) loads(t *testing.T, h *host, card int, a *cyborg.Accelerator, image cyborg.Image) {
	t.Helper()
	work := r.begin(t, toLoad(a.UUID, image))
	h.shows(t, card, image.ID)
	h.report(t)
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded, BitstreamID: image.ID, Images: map[uuid.UUID]cyborg.Image{a.UUID: image},
	}))
}

// toLoad is the admission of a program with this image.
func toLoad(a uuid.UUID, image cyborg.Image) db.Admission {
	out := admission()
	out.Request = cyborg.ProgramRequest{Accelerator: a, Image: image}
	return out
}

// toReload is the admission of a program that loads a lost image again.
func toReload(a uuid.UUID, image cyborg.Image) db.Admission {
	out := toLoad(a, image)
	edit(&out, func(r *cyborg.ProgramRequest) { r.Reload = true })
	return out
}

// aes is an image for one accelerator.
func aes() cyborg.Image { return cyborg.Image{Source: "aes.img", SHA256: "5f", ID: "aes"} }

// TestLostImage: an image that was loaded and is missing after a boot of the
// host is shown as lost everywhere, and is listed to be loaded again until it
// is there.
func TestLostImage(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	a := h.ready(t, "card0")
	h.ready(t, "card1")
	r.loads(t, h, 0, a, aes())

	lost := func() []cyborg.Accelerator {
		t.Helper()
		found, err := r.LostImages(t.Context(), 10)
		require.NoError(t, err)
		return found
	}

	h.reboot(t, 0)
	require.Empty(t, lost(), "a boot alone costs nothing")
	require.Nil(t, r.accelerator(t, a.UUID).LostImage)

	h.shows(t, 0, "")
	h.reboot(t, 0)
	require.Equal(t, []string{">lost_image"}, r.healthEvents(t, cyborg.SubjectAccelerator, a.UUID))

	found := lost()
	require.Len(t, found, 1)
	require.Equal(t, a.UUID, found[0].UUID)
	require.Equal(t, aes(), found[0].LostImage.Image)
	require.Equal(t, "aes", r.accelerator(t, a.UUID).LostImage.BitstreamID)

	drift, err := r.Drift(t.Context(), db.DriftFilter{Classes: []cyborg.DriftClass{cyborg.DriftLostImage}}, db.Page{Limit: 10})
	require.NoError(t, err)
	require.Len(t, drift, 1)
	require.Equal(t, a.ProviderUUID, drift[0].Provider)
	require.Contains(t, drift[0].Detail, "aes")

	work := r.begin(t, toReload(a.UUID, found[0].LostImage.Image))
	h.report(t)
	require.Empty(t, lost())
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationFailed, Error: cyborg.Errorf(cyborg.ErrTimeout, "too slow"),
	}))
	require.NotNil(t, r.accelerator(t, a.UUID).LostImage, "the image is still lost")
	require.Empty(t, lost(), "it is not reloaded a second time without a request")

	h.shows(t, 0, "aes")
	h.report(t)
	require.Nil(t, r.accelerator(t, a.UUID).LostImage)
	require.Equal(t, []string{">lost_image", "lost_image>"}, r.healthEvents(t, cyborg.SubjectAccelerator, a.UUID))

	_, err = r.Admit(t.Context(), toReload(a.UUID, aes()))
	requireKind(t, cyborg.ErrChanged, err, "has not lost its image")
	r.requireAgreed(t)
}

// TestImageLostUnderForce: the fence that a forced detach has left hides no loss.
// The image is lost as soon as a report of the new boot shows that, and nobody
// waits for what the host has still to settle; and what is replaced under such a
// fence in the same boot was replaced on purpose.
func TestImageLostUnderForce(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	booted, replaced := h.ready(t, "card0"), h.ready(t, "card1")
	for card, a := range []*cyborg.Accelerator{booted, replaced} {
		r.loads(t, h, card, a, aes())
		r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded)
	}

	h.fall(t)
	for _, a := range []*cyborg.Accelerator{booted, replaced} {
		forced := r.do(t, toForce(a.UUID, nil), cyborg.OperationSucceeded)
		r.requireUnsettled(t, a.UUID, forced.Operation)
	}

	h.shows(t, 1, "theirs")
	h.report(t)
	h.shows(t, 0, "")
	h.shows(t, 1, "")
	h.reboot(t, 0)

	unsettled := r.accelerator(t, booted.UUID)
	require.NotNil(t, unsettled.Fence)
	require.NotNil(t, unsettled.LostImage)
	require.Equal(t, "aes", unsettled.LostImage.BitstreamID)
	require.Nil(t, r.accelerator(t, replaced.UUID).LostImage)
	r.requireAgreed(t)
}

// TestImageChangedByHandIsNotLost: an image that is replaced during the boot in
// which it was loaded was replaced on purpose, and no later boot makes it lost.
func TestImageChangedByHandIsNotLost(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	r.loads(t, h, 0, a, aes())

	h.shows(t, 0, "theirs")
	h.report(t)
	h.shows(t, 0, "")
	h.reboot(t, 0)

	require.Nil(t, r.accelerator(t, a.UUID).LostImage)
	require.Empty(t, r.healthEvents(t, cyborg.SubjectAccelerator, a.UUID))
}

// TestReloadForAnInstance: while an accelerator that an instance holds has lost
// its image, that image or another one can be loaded. This is refused once it
// is loaded, and where the host's own software holds the accelerator.
func TestReloadForAnInstance(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	held, own := h.ready(t, "card0"), h.ready(t, "card1")

	r.loads(t, h, 0, held, aes())
	r.loads(t, h, 1, own, aes())
	r.profile(t, "one", one())
	who := uuid.New()
	r.bound(t, held, who)
	r.do(t, toAttach(own.UUID, cyborg.Holder{Kind: cyborg.HolderHost, ID: "h1"}), cyborg.OperationSucceeded)

	h.shows(t, 0, "")
	h.shows(t, 1, "factory")
	h.reboot(t, 0)

	idle, err := r.LostImages(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, idle)

	mine, err := r.LostImagesOf(t.Context(), who, "h1")
	require.NoError(t, err)
	require.Len(t, mine, 1)
	require.Equal(t, held.UUID, mine[0].UUID)
	require.Equal(t, "aes", r.accelerator(t, own.UUID).LostImage.BitstreamID)

	another := r.begin(t, toLoad(held.UUID, cyborg.Image{Source: "another.img"}))
	require.NoError(t, r.End(t.Context(), runOf(another.Operation), cyborg.Outcome{
		Operation: another.Operation, State: cyborg.OperationFailed, Error: cyborg.Errorf(cyborg.ErrInUse, "qemu uses it"),
	}))

	_, err = r.Admit(t.Context(), toReload(own.UUID, aes()))
	requireKind(t, cyborg.ErrInUse, err, "host h1")

	work := r.begin(t, toReload(held.UUID, aes()))
	require.Len(t, work.Handles, 2, "Placement may have it allocated to its holder")
	require.Equal(t, who.String(), work.Handles[0].Holder.ID)

	h.shows(t, 0, "aes")
	h.report(t)
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded, BitstreamID: "aes", Images: map[uuid.UUID]cyborg.Image{held.UUID: aes()},
	}))

	mine, err = r.LostImagesOf(t.Context(), who, "h1")
	require.NoError(t, err)
	require.Empty(t, mine)
	require.Nil(t, r.accelerator(t, held.UUID).Fence)
	require.Len(t, r.accelerator(t, held.UUID).Holders(), 1)

	_, err = r.Admit(t.Context(), toLoad(held.UUID, aes()))
	requireKind(t, cyborg.ErrInUse, err, who.String())
}

// regions gives the host's first card two regions.
func (h *host) regions(t *testing.T) (east, west *cyborg.Accelerator) {
	t.Helper()
	parts := []cyborg.DeployableReport{deployable("east", 1), deployable("west", 1)}
	parts[0].ProgramSet, parts[1].ProgramSet = "east", "west"
	h.content.Backends[0].Devices[0].Deployables = parts
	h.report(t)
	return h.ready(t, "east"), h.ready(t, "west")
}

// have makes the driver read back these images of the regions.
func (h *host) have(t *testing.T, east, west string) {
	t.Helper()
	parts := h.content.Backends[0].Devices[0].Deployables
	parts[0].BitstreamID, parts[1].BitstreamID = east, west
}

// loaded ends the operation that loaded an image.
func (r *records) loaded(t *testing.T, work cyborg.Work, a *cyborg.Accelerator, image cyborg.Image) {
	t.Helper()
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded, BitstreamID: image.ID, Images: map[uuid.UUID]cyborg.Image{a.UUID: image},
	}))
}

// shell is an image for a whole device.
func shell() cyborg.Image {
	return cyborg.Image{Source: "shell.img", SHA256: "6e", ID: "shell", WholeDevice: true}
}

// loseRegions loads an image for the whole device into the west and then one
// into the east, and loses both at a boot. After the boot, the east shows left.
func (r *records) loseRegions(t *testing.T, h *host, left string) (east, west *cyborg.Accelerator) {
	t.Helper()
	east, west = h.regions(t)

	work := r.begin(t, toLoad(west.UUID, shell()))
	h.have(t, "empty", "shell")
	h.report(t)
	r.loaded(t, work, west, shell())

	work = r.begin(t, toLoad(east.UUID, aes()))
	h.have(t, "aes", "shell")
	h.report(t)
	r.loaded(t, work, east, aes())

	h.have(t, left, "")
	h.reboot(t, 0)
	return east, west
}

// TestReloadOfTheWholeDevice: loading the image of the whole device again does
// not hide that another region has lost its own.
func TestReloadOfTheWholeDevice(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	east, west := r.loseRegions(t, h, "")

	lost := func() (names []uuid.UUID) {
		t.Helper()
		found, err := r.LostImages(t.Context(), 10)
		require.NoError(t, err)
		for _, a := range found {
			names = append(names, a.UUID)
		}
		return names
	}

	require.Equal(t, []uuid.UUID{west.UUID, east.UUID}, lost())
	work := r.begin(t, toReload(west.UUID, shell()))
	h.have(t, "empty", "shell")
	h.report(t)
	r.loaded(t, work, west, shell())

	require.Nil(t, r.accelerator(t, west.UUID).LostImage)
	require.Equal(t, aes(), r.accelerator(t, east.UUID).LostImage.Image)
	require.Equal(t, []uuid.UUID{east.UUID}, lost())

	work = r.begin(t, toReload(east.UUID, aes()))
	h.have(t, "aes", "shell")
	h.report(t)
	r.loaded(t, work, east, aes())
	require.Empty(t, lost())
	require.Nil(t, r.accelerator(t, east.UUID).LostImage)
}

// TestReloadKeepsLoadedImages: an image of the whole device is not loaded again
// while an instance uses an image of the card that is still loaded.
func TestReloadKeepsLoadedImages(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	east, west := r.loseRegions(t, h, "aes")
	who := uuid.New()

	found, err := r.LostImages(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, found, 1)

	r.do(t, toAttach(east.UUID, cyborg.Holder{Kind: cyborg.HolderInstance, ID: who.String()}), cyborg.OperationSucceeded)
	found, err = r.LostImages(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, found)

	_, err = r.Admit(t.Context(), toReload(west.UUID, shell()))
	requireKind(t, cyborg.ErrInUse, err, who.String())
}

// TestImageThatSurvivesABoot: an image that was still there after a boot and is
// replaced later is not lost.
func TestImageThatSurvivesABoot(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	r.loads(t, h, 0, a, aes())
	h.reboot(t, 0)

	h.shows(t, 0, "theirs")
	h.report(t)
	require.Nil(t, r.accelerator(t, a.UUID).LostImage)
	require.Empty(t, r.healthEvents(t, cyborg.SubjectAccelerator, a.UUID))
}

// TestImageLostBeforeItsDeviceIsReported: changing the record of an accelerator
// does not count as looking at its device.
func TestImageLostBeforeItsDeviceIsReported(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	r.loads(t, h, 0, a, aes())

	b := &h.content.Backends[0]
	seen := b.Devices
	b.State, b.Error, b.Devices = cyborg.BackendFailed, "it cannot be read", nil
	h.reboot(t, 0)
	_, err := r.Maintain(t.Context(), a.UUID, cyborg.Maintenance{Reason: "cleaning", By: "bob"}, alice())
	require.NoError(t, err)

	b.State, b.Error, b.Devices = cyborg.BackendOK, "", seen
	h.shows(t, 0, "")
	h.report(t)
	require.NotNil(t, r.accelerator(t, a.UUID).LostImage)

	found, err := r.LostImages(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, found, "somebody works on it")

	_, err = r.Enable(t.Context(), a.UUID, alice())
	require.NoError(t, err)
	found, err = r.LostImages(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, found, 1)
}

// TestImageReplacedDuringAnOperationIsNotRecorded: where a report shows another
// image before the operation ends, the image of the operation is not recorded,
// so that it cannot be lost.
func TestImageReplacedDuringAnOperationIsNotRecorded(t *testing.T) {
	t.Parallel()
	for shown, lost := range map[string]bool{"theirs": false, "aes": true} {
		r := newRecords(t)
		h := r.addHost(t, "h1", 1)
		a := h.ready(t, "card0")

		work := r.begin(t, toLoad(a.UUID, aes()))
		h.shows(t, 0, "aes")
		saw := cyborg.Observation{Sequence: h.next().Sequence, Backend: "fake", Device: h.content.Backends[0].Devices[0]}
		saw.Device.Deployables = []cyborg.DeployableReport{saw.Device.Deployables[0]}

		h.shows(t, 0, shown)
		h.report(t)
		require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
			Operation: work.Operation, State: cyborg.OperationSucceeded, BitstreamID: "aes", Images: map[uuid.UUID]cyborg.Image{a.UUID: aes()},
			Observations: []cyborg.Observation{saw},
		}))

		h.shows(t, 0, "")
		h.reboot(t, 0)
		require.Equal(t, lost, r.accelerator(t, a.UUID).LostImage != nil, shown)
	}
}
