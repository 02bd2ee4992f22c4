package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// partitionChecks lists the checks of drivers with Partitioner. Each begins with a whole
// device, and makes it whole again.
func partitionChecks() []check {
	all := []check{
		{name: "divides and makes whole", run: partitionDivides},
		{name: "agrees with what was checked", run: partitionAgreesWithCheck},
		{name: "can be repeated", run: partitionCanBeRepeated},
		{name: "survives a restart", run: partitionSurvivesRestart},
		{name: "keeps names and handles", run: partitionKeepsNames},
		{name: "offers the whole or its parts", run: partitionOffersOne},
		{name: "notes before it touches", run: partitionNotesFirst},
		{name: "does nothing without its note", run: partitionNeedsItsNote},
		{name: "stopped at any note is repeated", run: partitionStoppedIsRepeated},
		{name: "does not begin under an ended context", run: partitionDoesNotBegin},
		{name: "is interrupted", needs: canBeSlow, run: partitionIsInterrupted},
		{name: "tells its progress", run: partitionTellsProgress},
		{name: "leaves its user alone", needs: canBeUsed, run: partitionLeavesUser},
		{name: "makes parts that can be attached", needs: func(b *bench) bool { return offers[drivers.Attacher](b.Driver) }, run: partitionThenAttach},
		{name: "fails where parts are missing", needs: func(b *bench) bool { return b.Fewer != nil }, run: partitionFailsWithFewer},
		{name: "is asked about by many", run: partitionWhileQueried},
		{name: "of what vanished fails", needs: canVanish, run: partitionOfWhatVanished},
		{name: "of another card in its place fails", needs: canBeExchanged, run: partitionOfAnotherCard},
	}

	for i, one := range all {
		all[i].needs = func(b *bench) bool {
			return b.divisible != nil && b.divisible.Partitioning.Layout.Equal(nil) && (one.needs == nil || one.needs(b))
		}
		all[i].run = func(t *testing.T, b *bench) {
			t.Cleanup(func() { b.makeWhole(t) })
			one.run(t, b)
		}
	}
	return all
}

// divisible picks the device that the checks divide, that of the target if it can be
// divided; nil where none can.
func divisible(devices []cyborg.DeviceReport, target drivers.Target) *cyborg.DeviceReport {
	var picked *cyborg.DeviceReport
	for i, device := range devices {
		protected := slices.ContainsFunc(device.Deployables, func(d cyborg.DeployableReport) bool { return d.Protected != "" })
		mine := device.Identity == target.Device.Identity
		if device.Partitioning != nil && !protected && (picked == nil || mine) {
			picked = &devices[i]
		}
	}
	return picked
}

// partitioner returns the driver under test as a Partitioner.
func (b *bench) partitioner() drivers.Partitioner { return b.Driver.(drivers.Partitioner) } //nolint:forcetypeassert // its group runs only where it is one

// requirePartitioning requires a partitioning that the records can check layouts with.
func (b *bench) requirePartitioning(t *testing.T, device cyborg.DeviceReport) {
	t.Helper()
	if device.Partitioning == nil {
		return
	}

	parts := device.Partitioning.Parts
	require.Truef(t, offers[drivers.Partitioner](b.Driver), "%s has a partitioning, and its driver divides nothing", device.Identity)
	require.NotEmptyf(t, parts, "kinds of parts of %s", device.Identity)
	require.LessOrEqualf(t, len(parts), cyborg.MaxPartKinds, "kinds of parts of %s", device.Identity)

	each := unique{}
	for _, kind := range parts {
		each.add(t, "kind of parts of "+device.Identity, kind.Name)
		require.Truef(t, cyborg.IsPartKind(kind.Name), "%q of %s is no name of a kind of parts", kind.Name, device.Identity)
		require.Positivef(t, kind.Most, "how many %s %s can have", kind.Name, device.Identity)
		require.LessOrEqualf(t, kind.Most, cyborg.MaxParts, "how many %s %s can have", kind.Name, device.Identity)
		require.NotContainsf(t, kind.Description, "\n", "description of %s of %s", kind.Name, device.Identity)
	}

	layout := device.Partitioning.Layout
	require.NotNilf(t, layout, "layout of %s", device.Identity)
	require.Equalf(t, layout.Normal(), layout, "layout of %s", device.Identity)
	require.NoErrorf(t, device.Partitioning.Check(layout), "layout of %s", device.Identity)
}

// mostParts is how many parts of one kind the suite makes at once.
const mostParts = 4

// layouts lists layouts that the device can have, with one kind of parts first, and then
// with several. The driver must accept as many parts of a kind as it says.
func (b *bench) layouts(t *testing.T) []cyborg.Layout {
	t.Helper()
	var layouts []cyborg.Layout
	add := func(layout cyborg.Layout) {
		known := slices.ContainsFunc(layouts, func(one cyborg.Layout) bool { return one.Equal(layout) })
		if !known && b.partitioner().CheckLayout(t.Context(), *b.divisible, layout) == nil {
			layouts = append(layouts, layout)
		}
	}

	kinds := b.divisible.Partitioning.Parts
	for _, kind := range kinds {
		most := cyborg.Layout{kind.Name: kind.Most}
		require.NoErrorf(t, b.partitioner().CheckLayout(t.Context(), *b.divisible, most), "the device can have %s", most)
		add(cyborg.Layout{kind.Name: 1})
		add(cyborg.Layout{kind.Name: min(kind.Most, mostParts)})
	}
	for i := 1; i < len(kinds); i++ {
		add(cyborg.Layout{kinds[i-1].Name: 1, kinds[i].Name: 1})
	}
	require.NotEmpty(t, layouts, "layouts that the device can have")
	return layouts
}

// move is a partition of a device that has one layout into another.
type move struct{ from, to cyborg.Layout }

// moves lists partitions that begin and end with the whole device, each where the one
// before it has ended.
func (b *bench) moves(t *testing.T) []move {
	t.Helper()
	layouts, whole := b.layouts(t), cyborg.Layout{}
	first, last := layouts[0], layouts[len(layouts)-1]
	if len(layouts) == 1 {
		return []move{{whole, first}, {first, whole}}
	}
	return []move{{whole, first}, {first, last}, {last, whole}}
}

// partitionRequest returns the request that the agent would send with this notebook.
func (b *bench) partitionRequest(book *notebook, layout cyborg.Layout) drivers.PartitionRequest {
	return drivers.PartitionRequest{Device: *b.divisible, Layout: layout, Prior: book.last, Note: book.note, Progress: ignoreProgress}
}

// divided returns what Discover reports now of the device that the checks divide.
func (b *bench) divided(t *testing.T) cyborg.DeviceReport {
	t.Helper()
	devices := b.discover(t)
	at := slices.IndexFunc(devices, func(d cyborg.DeviceReport) bool { return d.Identity == b.divisible.Identity })
	require.GreaterOrEqualf(t, at, 0, "Discover no longer shows %s", b.divisible.Identity)
	return devices[at]
}

// divide divides the device, and requires that it is divided like that.
func (b *bench) divide(t *testing.T, book *notebook, layout cyborg.Layout) {
	t.Helper()
	require.NoErrorf(t, b.partitioner().Partition(t.Context(), b.partitionRequest(book, layout)), "a partition: %s", layout)
	b.requireDivided(t, layout)
}

// makeWhole makes the device whole at the end of a check, also of one that has failed and
// of another card in its place.
func (b *bench) makeWhole(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	devices, err := b.Driver.Discover(ctx)
	require.NoError(t, err)
	for _, device := range devices {
		if device.Identity == b.divisible.Identity {
			request := b.partitionRequest(&notebook{}, cyborg.Layout{})
			request.Device = device
			require.NoError(t, b.partitioner().Partition(ctx, request))
		}
	}
}

// parts lists the deployables that the device does not have while it is whole.
func (b *bench) parts(device cyborg.DeviceReport) []cyborg.DeployableReport {
	return slices.DeleteFunc(slices.Clone(device.Deployables), func(d cyborg.DeployableReport) bool { return b.ofWhole(d.Name) })
}

// ofWhole says whether the device has that deployable while it is whole.
func (b *bench) ofWhole(name string) bool {
	return slices.ContainsFunc(b.divisible.Deployables, func(d cyborg.DeployableReport) bool { return d.Name == name })
}

// requireDivided requires that the device has that layout, is otherwise as before, and
// offers what it should.
func (b *bench) requireDivided(t *testing.T, layout cyborg.Layout) {
	t.Helper()
	now := b.divided(t)
	require.NotNil(t, now.Partitioning)
	require.Truef(t, layout.Equal(now.Partitioning.Layout), "it is divided: %s, and reports %s", layout, now.Partitioning.Layout)
	require.Equal(t, b.divisible.Partitioning.Parts, now.Partitioning.Parts, "what a device can have stays the same")
	b.requirePartitioning(t, now)
	require.Equal(t, b.divisible.Fingerprint, now.Fingerprint, "a divided card is the same card")

	count := 0
	for _, number := range layout {
		count += number
	}
	require.Lenf(t, b.parts(now), count, "parts of a device that is divided: %s", layout)
	if count == 0 {
		require.Equal(t, *b.divisible, now, "what is whole again is discovered as before")
	}
	require.NoError(t, b.offersOne(now))
}

// offersOne returns an error where somebody could have the whole device while somebody
// else has a part of it.
func (b *bench) offersOne(device cyborg.DeviceReport) error {
	unready := func(d cyborg.DeployableReport) bool {
		return slices.ContainsFunc(d.Conditions, func(c cyborg.Condition) bool { return c.Level == cyborg.ConditionUnready })
	}
	for _, whole := range device.Deployables {
		for _, part := range b.parts(device) {
			excluded := slices.Contains(whole.Excludes, part.Name) || slices.Contains(part.Excludes, whole.Name)
			if b.ofWhole(whole.Name) && !excluded && !unready(whole) && !unready(part) {
				return fmt.Errorf("%s is offered beside %s, a part of the same device", whole.Name, part.Name)
			}
		}
	}
	return nil
}

// partitionDivides checks that a device is divided and made whole, and that other devices
// stay as they are.
func partitionDivides(t *testing.T, b *bench) {
	others := func() []cyborg.DeviceReport {
		return slices.DeleteFunc(b.discover(t), func(d cyborg.DeviceReport) bool { return d.Identity == b.divisible.Identity })
	}
	before, book := others(), &notebook{}
	for _, layout := range b.layouts(t) {
		b.divide(t, book, layout)
		require.NotNil(t, book.last, "a partition keeps a note")
		require.Equal(t, before, others(), "a partition of %s", b.divisible.Identity)
	}
	b.divide(t, book, cyborg.Layout{})
	require.Equal(t, before, others())
}

// partitionAgreesWithCheck checks that CheckLayout changes nothing, and that Partition
// refuses what it refuses, and then changes nothing.
func partitionAgreesWithCheck(t *testing.T, b *bench) {
	kinds := b.divisible.Partitioning.Parts
	wrong, all := []cyborg.Layout{{"no-such-part": 1}}, cyborg.Layout{}
	for _, kind := range kinds {
		wrong = append(wrong, cyborg.Layout{kind.Name: kind.Most + 1}, cyborg.Layout{kind.Name: -1})
		all[kind.Name] = kind.Most
	}
	if b.partitioner().CheckLayout(t.Context(), *b.divisible, all) != nil {
		wrong = append(wrong, all) // what fits together only the driver knows
	}

	for _, divided := range []cyborg.Layout{{}, b.layouts(t)[0]} {
		b.divide(t, &notebook{}, divided)
		before := b.state(t)
		for _, layout := range wrong {
			err := b.partitioner().CheckLayout(t.Context(), *b.divisible, layout)
			require.Equal(t, before, b.state(t), "CheckLayout of %s", layout)
			require.Equalf(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "CheckLayout of %s answers %v", layout, err)

			err = b.partitioner().Partition(t.Context(), b.partitionRequest(&notebook{}, layout))
			require.Equalf(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "a partition into %s, which is refused, answers %v", layout, err)
			require.Equal(t, before, b.state(t), "a partition that is refused: %s", layout)
		}
	}
	require.NoError(t, b.partitioner().CheckLayout(t.Context(), *b.divisible, cyborg.Layout{}), "a device can be whole")
	require.NoError(t, b.partitioner().CheckLayout(t.Context(), *b.divisible, cyborg.Layout{kinds[0].Name: 0}), "a zero says nothing")
}

// partitionCanBeRepeated checks that a partition of what is divided like that changes
// nothing, also by another driver, and with and without its note.
func partitionCanBeRepeated(t *testing.T, b *bench) {
	book := &notebook{}
	for _, layout := range append([]cyborg.Layout{{}}, append(b.layouts(t), cyborg.Layout{})...) {
		b.divide(t, book, layout)
		once := b.state(t)
		for range 2 {
			b.divide(t, book, layout)
			require.Equal(t, once, b.state(t), "a partition again: %s", layout)
			b.divide(t, &notebook{}, layout)
			require.Equal(t, once, b.state(t), "a partition again without its note: %s", layout)
			b.Driver = b.Restart(t)
		}
	}
}

// partitionSurvivesRestart checks that a restarted driver finds what the former one has
// made.
func partitionSurvivesRestart(t *testing.T, b *bench) {
	book := &notebook{}
	for _, layout := range b.layouts(t) {
		b.divide(t, book, layout)
		before := b.state(t)
		b.Driver = b.Restart(t)
		require.Equal(t, before, b.state(t))
	}
}

// partitionKeepsNames checks that a part has its name and its handles over all layouts,
// and that no name stands for parts of two kinds.
func partitionKeepsNames(t *testing.T, b *bench) {
	kinds, handles, book := map[string]string{}, map[string][]cyborg.HandleReport{}, &notebook{}
	first := map[string][]string{} // the names of the parts, by layout
	layouts := b.layouts(t)
	for round := range 2 {
		for _, layout := range layouts {
			b.divide(t, book, layout)
			names, count := []string{}, map[string]int{}
			for _, part := range b.parts(b.divided(t)) {
				names = append(names, part.Name)
				if len(layout) == 1 {
					kind := slices.Collect(maps.Keys(layout))[0]
					require.Containsf(t, []string{"", kind}, kinds[part.Name], "%s was of another kind before", part.Name)
					kinds[part.Name] = kind
				}
				count[kinds[part.Name]]++
				if known, ok := handles[part.Name]; ok {
					require.Equalf(t, known, part.Handles, "handles of %s", part.Name)
				}
				handles[part.Name] = part.Handles
			}

			for kind, number := range count {
				require.LessOrEqualf(t, number, layout[kind]+count[""], "parts that have names of %s parts, with %s", kind, layout)
			}
			slices.Sort(names)
			if round > 0 {
				require.Equalf(t, first[layout.String()], names, "names of parts that are made again: %s", layout)
			}
			first[layout.String()] = names
		}
	}
}

// partitionOffersOne checks at each note that the device is not offered whole and in
// parts.
func partitionOffersOne(t *testing.T, b *bench) {
	book := &notebook{}
	for _, layout := range append(b.layouts(t), cyborg.Layout{}) {
		request := b.partitionRequest(book, layout)
		request.Note = func(note json.RawMessage) error {
			require.NoError(t, b.offersOne(b.divided(t)))
			return book.note(note)
		}
		require.NoError(t, b.partitioner().Partition(t.Context(), request))
		b.requireDivided(t, layout)
	}
}

// partitionNotesFirst checks that a note is stored before the hardware is touched.
func partitionNotesFirst(t *testing.T, b *bench) {
	book := &notebook{}
	for _, move := range b.moves(t) {
		before, notes := b.state(t), 0
		request := b.partitionRequest(book, move.to)
		request.Note = func(note json.RawMessage) error {
			notes++
			require.True(t, json.Valid(note), "a note is JSON")
			if notes == 1 {
				require.Equal(t, before, b.state(t), "nothing is touched before the first note is kept")
			}
			return book.note(note)
		}

		require.NoError(t, b.partitioner().Partition(t.Context(), request))
		require.Positive(t, notes)
	}
}

// partitionNeedsItsNote checks that Partition touches nothing where its note cannot be
// stored.
func partitionNeedsItsNote(t *testing.T, b *bench) {
	book := &notebook{}
	for _, move := range b.moves(t) {
		before := b.state(t)
		request := b.partitionRequest(book, move.to)
		request.Note = func(json.RawMessage) error { return errFull }
		require.ErrorIs(t, b.partitioner().Partition(t.Context(), request), errFull)
		require.Equal(t, before, b.state(t))
		b.divide(t, book, move.to)
	}
}

// stopPartition begins a partition that ends at its note of this number, as if the agent
// died there: before the note is stored, or after that, in the middle of the change where
// the rig can make it slow. The driver may finish it all the same. A new driver takes over
// afterwards. It says whether there was such a note.
func (b *bench) stopPartition(t *testing.T, book *notebook, layout cyborg.Layout, number int, stored bool) bool {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()

	notes, quick := 0, func() {}
	request := b.partitionRequest(book, layout)
	request.Note = func(note json.RawMessage) error {
		notes++
		switch {
		case notes != number:
			return book.note(note)
		case !stored:
			return errFull
		}

		if b.Slow != nil {
			quick = b.Slow(t)
		}
		defer stop()
		return book.note(note)
	}

	err := promptly(t, "a stopped Partition", func() error { return b.partitioner().Partition(ctx, request) })
	quick()

	switch {
	case notes < number:
		require.NoError(t, err)
	case !stored:
		require.ErrorIs(t, err, errFull)
	case err != nil || b.Slow != nil:
		requireStopped(t, err)
	}
	b.Driver = b.Restart(t)
	return notes >= number
}

// partitionStoppedIsRepeated stops a partition at each of its notes, and checks that
// another driver can end it, divide the device as it was before, or make it whole, with
// the note of the stopped one and without.
func partitionStoppedIsRepeated(t *testing.T, b *bench) {
	for _, move := range b.moves(t) {
		for _, next := range []cyborg.Layout{move.to, move.from, {}} {
			for _, stored := range []bool{false, true} {
				for number, more := 1, true; more && number <= mostNotes; number++ {
					book := &notebook{}
					b.divide(t, book, move.from)
					more = b.stopPartition(t, book, move.to, number, stored)
					require.NoError(t, b.offersOne(b.divided(t)))
					if number == 2 {
						book = &notebook{} // the journal is lost
					}
					b.divide(t, book, next)
				}
			}
		}
	}
}

// partitionDoesNotBegin checks that Partition changes nothing when its context has ended
// already.
func partitionDoesNotBegin(t *testing.T, b *bench) {
	book := &notebook{}
	for _, move := range b.moves(t) {
		before := b.state(t)
		requireStopped(t, promptly(t, "Partition", func() error {
			return b.partitioner().Partition(ended(t), b.partitionRequest(book, move.to))
		}))
		require.Equal(t, before, b.state(t))
		b.divide(t, book, move.to)
	}
}

// partitionIsInterrupted ends the context in the middle of a Partition and checks that
// another driver can go on.
func partitionIsInterrupted(t *testing.T, b *bench) {
	book := &notebook{}
	for _, move := range b.moves(t) {
		quick := b.Slow(t)
		ctx, cancel := context.WithCancel(t.Context())
		request := b.partitionRequest(book, move.to)
		request.Note = func(note json.RawMessage) error {
			time.AfterFunc(100*time.Millisecond, cancel) // not before it has begun
			return book.note(note)
		}
		requireStopped(t, promptly(t, "an interrupted Partition", func() error { return b.partitioner().Partition(ctx, request) }))
		cancel()
		quick()

		b.Driver = b.Restart(t)
		b.divide(t, book, move.to)
	}
}

// partitionTellsProgress checks that progress never goes back, and is a percentage, or -1.
func partitionTellsProgress(t *testing.T, b *bench) {
	book := &notebook{}
	for _, move := range b.moves(t) {
		var guard sync.Mutex
		last := -1
		request := b.partitionRequest(book, move.to)
		request.Progress = func(percent int, _ string) {
			guard.Lock()
			defer guard.Unlock()
			if percent == -1 {
				return
			}
			if percent < last || percent > 100 { // not on the test's goroutine
				t.Errorf("a partition tells %d percent after %d", percent, last)
			}
			last = percent
		}
		require.NoError(t, b.partitioner().Partition(t.Context(), request))
	}
}

// partitionLeavesUser checks that Partition is rejected, and changes nothing, while
// somebody uses a handle of the whole device or of one of its parts.
func partitionLeavesUser(t *testing.T, b *bench) {
	book := &notebook{}
	for _, move := range b.moves(t) {
		device := b.divided(t)
		at := slices.IndexFunc(device.Deployables, func(d cyborg.DeployableReport) bool { return len(d.Handles) > 0 })
		require.GreaterOrEqual(t, at, 0, "deployables with handles")
		target := drivers.Target{Device: device, Deployable: device.Deployables[at]}
		release := b.Use(t, target, target.Deployable.Handles[0])
		before := b.state(t)

		err := b.partitioner().Partition(t.Context(), b.partitionRequest(book, move.to))
		require.Equalf(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), "a partition of what is used answers %v", err)
		require.Equal(t, before, b.state(t), "a refused partition changes nothing")

		release()
		b.divide(t, book, move.to)
	}
}

// partitionThenAttach checks that each part can be attached and detached, and that what
// the whole device has can be attached when it is whole again.
func partitionThenAttach(t *testing.T, b *bench) {
	book := &notebook{}
	for _, move := range b.moves(t) {
		b.divide(t, book, move.to)
		device := b.divided(t)
		for _, deployable := range device.Deployables {
			if len(deployable.Handles) == 0 {
				continue
			}
			b.target, b.handle = drivers.Target{Device: device, Deployable: deployable}, deployable.Handles[0]
			b.install(t)
			notes := &notebook{}
			b.attach(t, notes)
			b.detach(t, notes)
		}
	}
}

// partitionFailsWithFewer checks that a driver does not take for divided what has fewer
// parts than wanted, however often it tries.
func partitionFailsWithFewer(t *testing.T, b *bench) {
	b.Fewer(t, *b.divisible)
	book := &notebook{}
	for _, layout := range b.layouts(t) {
		for range 2 {
			require.Error(t, b.partitioner().Partition(t.Context(), b.partitionRequest(book, layout)), "a partition with fewer parts: %s", layout)
			require.Falsef(t, layout.Equal(b.divided(t).Partitioning.Layout), "it reports %s, and has fewer parts", layout)
		}
	}
}

// partitionWhileQueried discovers from several goroutines while a device is divided, and at
// each note. No discovery fails, or shows the whole device and parts that could both be
// given.
func partitionWhileQueried(t *testing.T, b *bench) {
	const askers = 4
	stop, problems := make(chan struct{}), make(chan error, askers)
	ask := func() error {
		devices, err := b.Driver.Discover(t.Context())
		for _, device := range devices {
			if device.Identity == b.divisible.Identity {
				err = errors.Join(err, b.offersOne(device))
			}
		}
		return err
	}
	for range askers {
		go func() {
			var err error
			for done := false; !done && err == nil; err = ask() {
				select {
				case <-stop:
					done = true
				default:
				}
			}
			problems <- err
		}()
	}

	book := &notebook{}
	for range 3 {
		for _, move := range b.moves(t) {
			request := b.partitionRequest(book, move.to)
			request.Note = func(note json.RawMessage) error { return errors.Join(ask(), book.note(note)) }
			require.NoError(t, b.partitioner().Partition(t.Context(), request))
		}
	}

	// Each goroutine sends one result, so all of them have ended after the loop.
	close(stop)
	for range askers {
		require.NoError(t, <-problems)
	}
}

// partitionOfWhatVanished checks that Partition fails on a vanished card.
func partitionOfWhatVanished(t *testing.T, b *bench) {
	restore := b.Vanish(t, *b.divisible)
	for _, layout := range append(b.layouts(t), cyborg.Layout{}) {
		require.Error(t, promptly(t, "Partition", func() error {
			return b.partitioner().Partition(t.Context(), b.partitionRequest(&notebook{}, layout))
		}))
	}
	restore()
}

// partitionOfAnotherCard checks that a card in the place of the target's is left alone.
func partitionOfAnotherCard(t *testing.T, b *bench) {
	layouts := b.layouts(t)
	b.Exchange(t, *b.divisible)
	before := b.state(t)
	for _, layout := range layouts {
		err := b.partitioner().Partition(t.Context(), b.partitionRequest(&notebook{}, layout))
		require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "a partition of another card answers %v", err)
		require.Equal(t, before, b.state(t))
	}
}
