package db_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// evil is an image that nobody has asked for.
func evil() cyborg.Image {
	return cyborg.Image{Source: "https://images.example/evil", SHA256: "ee", ID: "evil", WholeDevice: true}
}

// lostImage is the image that an accelerator has lost after it was ended with an
// outcome of Temporal's: its host boots, and shows no image.
func (r *records) lostImage(t *testing.T, h *host, id uuid.UUID) *cyborg.LostImage {
	t.Helper()
	h.shows(t, 0, "")
	h.reboot(t, 0)
	return r.accelerator(t, id).LostImage
}

// TestOnlyImagesThatWereAskedForAreRecorded: the outcome of an operation comes by
// way of Temporal. It says that an image was loaded; which one, the records know.
func TestOnlyImagesThatWereAskedForAreRecorded(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	a, other := h.ready(t, "card0"), h.ready(t, "card1")

	work := r.begin(t, toLoad(a.UUID, aes()))
	h.shows(t, 0, "aes")
	h.report(t)
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded, BitstreamID: "aes",
		Images:     map[uuid.UUID]cyborg.Image{a.UUID: evil(), other.UUID: evil()},
		Bitstreams: map[uuid.UUID]string{other.UUID: "evil"},
	}))
	require.Empty(t, r.accelerator(t, other.UUID).BitstreamID)
	require.Equal(t, aes(), r.lostImage(t, h, a.UUID).Image)

	// The checksum of an image that was asked for without one is what its host has
	// said.
	unsummed := cyborg.Image{Source: "aes.img", ID: "aes"}
	work = r.begin(t, toLoad(a.UUID, unsummed))
	h.shows(t, 0, "aes")
	h.report(t)
	r.loaded(t, work, a, evil())
	unsummed.SHA256 = "ee"
	require.Equal(t, unsummed, r.lostImage(t, h, a.UUID).Image)
}

// TestBindRecordsItsOwnAcceleratorsOnly: neither does a bind say what others have
// loaded.
func TestBindRecordsItsOwnAcceleratorsOnly(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	a, other := h.ready(t, "card0"), h.ready(t, "card1")
	wanted := uuid.New()
	r.profile(t, "image", map[string]string{"resources:FPGA": "1", "accel:bitstream_id": wanted.String()})

	work := r.begin(t, toBind("h1", vm(), a.ProviderUUID, r.request(t, "image")...))
	h.shows(t, 0, wanted.String())
	h.report(t)
	require.NoError(t, r.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
		Operation: work.Operation, State: cyborg.OperationSucceeded,
		Images:     map[uuid.UUID]cyborg.Image{a.UUID: evil(), other.UUID: evil()},
		Bitstreams: map[uuid.UUID]string{a.UUID: wanted.String(), other.UUID: "evil"},
	}))
	require.Equal(t, wanted.String(), r.accelerator(t, a.UUID).BitstreamID)
	require.Empty(t, r.accelerator(t, other.UUID).BitstreamID)

	want := cyborg.GlanceImage(wanted)
	want.ID, want.SHA256 = wanted.String(), "ee"
	require.Equal(t, want, r.lostImage(t, h, a.UUID).Image)
}

// TestRescueRecordsItsOwnInstancesOnly: an instance that the operation was not
// about is not well because Temporal says so.
func TestRescueRecordsItsOwnInstancesOnly(t *testing.T) {
	t.Parallel()
	r, _, _ := rescuable(t)
	work := r.begin(t, toRescue("h1", true))
	r.end(t, work, cyborg.OperationFailed)

	h2 := r.addHost(t, "h2", 1)
	r.bound(t, h2.ready(t, "card0"), uuid.New())
	h2.reboot(t, 0)
	second := r.begin(t, toRescue("h2", true))
	require.Len(t, second.Rescues, 1)
	require.NoError(t, r.End(t.Context(), runOf(second.Operation), cyborg.Outcome{
		Operation: second.Operation, State: cyborg.OperationSucceeded, Rescued: []cyborg.RescuedInstance{
			{Rescue: second.Rescues[0], Outcome: cyborg.RescueRebooted}, {Rescue: work.Rescues[0], Outcome: cyborg.RescueRebooted},
		},
	}))

	require.Equal(t, "h1 2", scalar[string](t, r,
		"SELECT string_agg(DISTINCT host, ',') || ' ' || count(DISTINCT instance_uuid) FROM arqs WHERE lost_at IS NOT NULL"))
}

// foundFor is an image in Glance, as a search for what the operation asks for has
// found it.
func foundFor(work cyborg.Work, at uuid.UUID, asked cyborg.Image) (db.ImageURL, string) {
	found := asked
	found.ID, found.Checksum = uuid.NewString(), "sha512:00"
	found.Source = cyborg.GlanceImage(uuid.MustParse(found.ID)).Source
	return db.ImageURL{
		Operation: work.Operation, Accelerator: at, Host: work.Host, Asked: asked, Image: found, Size: 7, Valid: time.Minute,
	}, "name-of-" + at.String()
}

// TestFoundImage: the image that was found for a function is kept while its
// operation runs, also when its host has it, and a later search does not replace
// it. It is what the operation may load, and what is recorded.
func TestFoundImage(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	asked := cyborg.GlanceFunction("aes")
	work := r.begin(t, toLoad(a.UUID, asked))
	require.Empty(t, work.Found)

	url, name := foundFor(work, a.UUID, asked)
	got, err := r.GrantImage(t.Context(), runOf(work.Operation), url, name)
	require.NoError(t, err)
	require.Equal(t, url, got)

	require.NoError(t, r.RevokeImage(t.Context(), work.Operation, name))
	_, err = r.UseImage(t.Context(), work.Operation, name)
	requireKind(t, cyborg.ErrChanged, err)
	_, err = r.Prune(t.Context(), db.Retention{})
	require.NoError(t, err)

	again, err := r.Begin(t.Context(), runOf(work.Operation))
	require.NoError(t, err)
	require.Equal(t, map[uuid.UUID]cyborg.Image{a.UUID: url.Image}, again.Found)

	later, _ := foundFor(work, a.UUID, asked)
	later.Size = 8
	got, err = r.GrantImage(t.Context(), runOf(work.Operation), later, name)
	require.NoError(t, err)
	require.Equal(t, url, got, "the first one counts")
	used, err := r.UseImage(t.Context(), work.Operation, name)
	require.NoError(t, err)
	require.Equal(t, url.Image, used.Image)

	h.shows(t, 0, url.Image.ID)
	h.report(t)
	r.loaded(t, work, a, evil())
	_, err = r.Prune(t.Context(), db.Retention{})
	require.NoError(t, err)
	require.Equal(t, 1, scalar[int](t, r, "SELECT count(*) FROM image_urls"), "its time is not over")
	r.exec(t, "UPDATE image_urls SET expires_at = expires_at - interval '1 hour'")
	_, err = r.Prune(t.Context(), db.Retention{})
	require.NoError(t, err)
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM image_urls"))

	want := cyborg.Image{Source: url.Image.Source, ID: url.Image.ID, SHA256: "ee"}
	require.Equal(t, want, r.lostImage(t, h, a.UUID).Image)

	// An image that nobody has found is not recorded.
	work = r.begin(t, toLoad(a.UUID, asked))
	h.shows(t, 0, "evil")
	h.report(t)
	r.loaded(t, work, a, evil())
	require.Nil(t, r.lostImage(t, h, a.UUID))
}

// TestImagesOfOthersAreNotGranted: only the run that has an operation may find an
// image for it, and only one that the operation asks for.
func TestImagesOfOthersAreNotGranted(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	a, other := h.ready(t, "card0"), h.ready(t, "card1")
	asked := cyborg.GlanceFunction("aes")
	work := r.begin(t, toLoad(a.UUID, asked))
	attach := r.begin(t, toAttach(other.UUID, vm()))
	good, name := foundFor(work, a.UUID, asked)

	for want, change := range map[cyborg.ErrorKind]func(run *db.Run, url *db.ImageURL){
		cyborg.ErrForbidden:  func(_ *db.Run, url *db.ImageURL) { url.Asked = cyborg.GlanceFunction("evil") },
		cyborg.ErrChanged:    func(_ *db.Run, url *db.ImageURL) { url.Host = "h2" },
		cyborg.ErrSuperseded: func(run *db.Run, _ *db.ImageURL) { run.ID = "another" },
	} {
		run, url := runOf(work.Operation), good
		change(&run, &url)
		_, err := r.GrantImage(t.Context(), run, url, name)
		requireKind(t, want, err)
	}
	for _, change := range []func(url *db.ImageURL){
		func(url *db.ImageURL) { url.Accelerator = other.UUID },
		func(url *db.ImageURL) { url.Asked.WholeDevice = true },
		func(url *db.ImageURL) { url.Operation = attach.Operation },
	} {
		url := good
		change(&url)
		_, err := r.GrantImage(t.Context(), runOf(url.Operation), url, name)
		requireKind(t, cyborg.ErrForbidden, err)
	}
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM image_urls"))

	r.end(t, work, cyborg.OperationFailed)
	_, err := r.GrantImage(t.Context(), runOf(work.Operation), good, name)
	requireKind(t, cyborg.ErrChanged, err)
}

// TestWorkStaysTheSame: what an operation has to do is what it was when the
// operation began, also where its host has reported something else since: it was
// signed then.
func TestWorkStaysTheSame(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	h.shows(t, 0, "before")
	h.report(t)

	work := r.begin(t, toLoad(a.UUID, aes()))
	require.Equal(t, "before", work.Targets[0].BitstreamID)
	h.shows(t, 0, "aes")
	h.report(t)
	require.Equal(t, "aes", r.accelerator(t, a.UUID).BitstreamID)

	again, err := r.Begin(t.Context(), runOf(work.Operation))
	require.NoError(t, err)
	require.Equal(t, work.Targets, again.Targets)

	// One that an earlier release began has what is reported now.
	r.exec(t, "UPDATE operations SET before = before - 'bitstreams'")
	again, err = r.Begin(t.Context(), runOf(work.Operation))
	require.NoError(t, err)
	require.Equal(t, "aes", again.Targets[0].BitstreamID)
}
