package conformance

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// programChecks lists the checks of drivers with Programmer.
func programChecks() []check {
	return []check{
		{name: "checks an image and changes nothing", run: programChecksImage},
		{name: "loads and reads back", run: programLoads},
		{name: "disturbs its own set only", run: programDisturbsItsSet},
		{name: "can be repeated", run: programCanBeRepeated},
		{name: "refuses what does not fit", run: programRefuses},
		{name: "tells its progress", run: programReportsProgress},
		{name: "does not begin under an ended context", run: programDoesNotBegin},
		{name: "is interrupted and repeated", needs: canBeSlow, run: programIsInterrupted},
		{name: "of what vanished fails", needs: canVanish, run: programOfWhatVanished},
	}
}

// programmer returns the driver under test as a Programmer.
func (b *bench) programmer() drivers.Programmer { return b.Driver.(drivers.Programmer) } //nolint:forcetypeassert // its group runs only where it is one

// request returns the request that the agent would send for the image.
func (b *bench) request(path string, image cyborg.Image, progress func(percent int, note string)) drivers.ProgramRequest {
	return drivers.ProgramRequest{Target: b.target, Path: path, Image: image, Progress: progress}
}

// ignoreProgress is a progress function for checks that are not about progress.
func ignoreProgress(int, string) {}

// load programs a good image. It returns the request, and the id that Discover must report
// of it.
func (b *bench) load(t *testing.T) (request drivers.ProgramRequest, id string) {
	t.Helper()
	path, image := b.GoodImage(t, b.target)
	request = b.request(path, image, ignoreProgress)
	require.NoError(t, b.programmer().Program(t.Context(), request))

	id = cmp.Or(image.ID, image.SHA256)
	require.NotEmpty(t, id, "Rig.GoodImage tells the id or the checksum of its image, as the agent does")

	return request, id
}

// requireLoaded requires that Discover reports this image as the one that was loaded last:
// it is in effect, or it is pending and what was in effect before still is.
func (b *bench) requireLoaded(t *testing.T, id, before string) {
	t.Helper()
	now := b.deployable(t)
	requirePending(t, now)
	require.Equalf(t, id, now.LoadedLast(), "the image of %s that was loaded last", now.Name)
	if now.PendingImage != nil {
		require.Equalf(t, before, now.BitstreamID, "the image of %s that is in effect while another one is pending", now.Name)
	}
}

// requirePending requires a pending image that people can tell from the one in effect, and
// that they know how to bring into effect.
func requirePending(t *testing.T, deployable cyborg.DeployableReport) {
	t.Helper()
	pending := deployable.PendingImage
	if pending == nil {
		return
	}
	require.NotEmptyf(t, pending.BitstreamID, "pending image of %s", deployable.Name)
	require.NotEqualf(t, deployable.BitstreamID, pending.BitstreamID, "pending image of %s, and the one in effect", deployable.Name)
	require.Containsf(t, cyborg.Activations(), pending.Until, "what brings the pending image of %s into effect", deployable.Name)
}

// programChecksImage checks that CheckImage accepts a good image, rejects bad
// ones, and changes nothing.
func programChecksImage(t *testing.T, b *bench) {
	b.install(t)
	before := b.state(t)

	path, image := b.GoodImage(t, b.target)
	require.NoError(t, b.programmer().CheckImage(t.Context(), b.target, path, image))

	path, image = b.BadImage(t, b.target)
	err := b.programmer().CheckImage(t.Context(), b.target, path, image)
	require.Equalf(t, cyborg.ErrImageRejected, cyborg.ErrorKindOf(err), "an image that does not fit answers %v", err)

	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	err = b.programmer().CheckImage(t.Context(), b.target, empty, cyborg.Image{ID: "empty"})
	require.Equalf(t, cyborg.ErrImageRejected, cyborg.ErrorKindOf(err), "an empty image answers %v", err)

	require.Error(t, b.programmer().CheckImage(t.Context(), b.target, empty+".absent", cyborg.Image{ID: "absent"}))
	require.Equal(t, before, b.state(t))
}

// programLoads checks that Discover reports the image that was loaded last,
// also after a restart, and also where it replaces one that is pending.
func programLoads(t *testing.T, b *bench) {
	b.install(t)
	before := b.deployable(t).BitstreamID
	_, first := b.load(t)
	b.requireLoaded(t, first, before)

	b.Driver = b.Restart(t)
	b.requireLoaded(t, first, before)

	before = b.deployable(t).BitstreamID
	_, second := b.load(t)
	require.NotEqual(t, first, second, "Rig.GoodImage makes two different images")
	b.requireLoaded(t, second, before)
}

// programDisturbsItsSet checks that every deployable outside the target's
// program set stays as it is.
func programDisturbsItsSet(t *testing.T, b *bench) {
	b.install(t)

	others := func() (others []cyborg.DeployableReport) {
		for _, device := range b.discover(t) {
			for _, deployable := range device.Deployables {
				if device.Identity != b.target.Device.Identity || deployable.ProgramSet != b.target.Deployable.ProgramSet {
					others = append(others, deployable)
				}
			}
		}
		return others
	}

	before := others()
	b.load(t)
	require.Equal(t, before, others())
}

// programCanBeRepeated checks that loading the same image again changes
// nothing.
func programCanBeRepeated(t *testing.T, b *bench) {
	b.install(t)
	before := b.deployable(t).BitstreamID
	request, id := b.load(t)
	once := b.state(t)

	require.NoError(t, b.programmer().Program(t.Context(), request))
	require.Equal(t, once, b.state(t))

	b.Driver = b.Restart(t)
	require.NoError(t, b.programmer().Program(t.Context(), request))
	require.Equal(t, once, b.state(t))
	b.requireLoaded(t, id, before)
}

// programRefuses checks that Program rejects an image that does not fit, and
// then changes nothing.
func programRefuses(t *testing.T, b *bench) {
	b.install(t)
	b.load(t)
	before := b.state(t)

	path, image := b.BadImage(t, b.target)
	err := b.programmer().Program(t.Context(), b.request(path, image, ignoreProgress))
	require.Equalf(t, cyborg.ErrImageRejected, cyborg.ErrorKindOf(err), "an image that does not fit answers %v", err)
	require.Equal(t, before, b.state(t))
}

// programReportsProgress checks that progress is reported, never goes back, and
// is a percentage.
func programReportsProgress(t *testing.T, b *bench) {
	b.install(t)

	var guard sync.Mutex
	var percents []int

	path, image := b.GoodImage(t, b.target)
	require.NoError(t, b.programmer().Program(t.Context(), b.request(path, image, func(percent int, _ string) {
		guard.Lock()
		defer guard.Unlock()
		percents = append(percents, percent)
	})))

	guard.Lock()
	defer guard.Unlock()

	require.NotEmpty(t, percents, "progress is told at least once")
	require.IsNonDecreasing(t, percents)
	require.GreaterOrEqual(t, percents[0], 0)
	require.LessOrEqual(t, percents[len(percents)-1], 100)
}

// programDoesNotBegin checks that Program changes nothing when its context has
// ended already.
func programDoesNotBegin(t *testing.T, b *bench) {
	b.install(t)
	before := b.state(t)

	path, image := b.GoodImage(t, b.target)
	request := b.request(path, image, ignoreProgress)
	requireStopped(t, promptly(t, "Program", func() error { return b.programmer().Program(ended(t), request) }))
	require.Equal(t, before, b.state(t))
}

// programIsInterrupted ends the context at the first report of progress. What
// is loaded at that point is undefined, but another Program after a restart
// must succeed.
func programIsInterrupted(t *testing.T, b *bench) {
	b.install(t)

	before, quick := b.deployable(t).BitstreamID, b.Slow(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	path, image := b.GoodImage(t, b.target)
	stopping := b.request(path, image, func(int, string) { cancel() })
	requireStopped(t, promptly(t, "an interrupted Program", func() error { return b.programmer().Program(ctx, stopping) }))
	quick()

	b.Driver = b.Restart(t)
	require.NoError(t, b.programmer().Program(t.Context(), b.request(path, image, ignoreProgress)))
	b.requireLoaded(t, cmp.Or(image.ID, image.SHA256), before)
}

// programOfWhatVanished checks that Program fails on a vanished card.
func programOfWhatVanished(t *testing.T, b *bench) {
	b.install(t)
	path, image := b.GoodImage(t, b.target)

	b.Vanish(t, b.target.Device)
	request := b.request(path, image, ignoreProgress)
	require.Error(t, promptly(t, "Program", func() error { return b.programmer().Program(t.Context(), request) }))
}
