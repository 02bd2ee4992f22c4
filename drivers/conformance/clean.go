package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// cleanChecks lists the checks of drivers with Cleaner. Each is made with all methods of
// the target.
func cleanChecks() []check {
	all := []check{
		{name: "removes what was left", run: cleanRemoves},
		{name: "can be repeated", run: cleanCanBeRepeated},
		{name: "notes before it touches", run: cleanNotesFirst},
		{name: "does nothing without its note", run: cleanNeedsItsNote},
		{name: "stopped at any note goes on", run: cleanStoppedGoesOn},
		{name: "goes on with another method", needs: hasMethods, run: cleanGoesOnWithAnother},
		{name: "does not begin under an ended context", run: cleanDoesNotBegin},
		{name: "is interrupted", needs: canBeSlow, run: cleanIsInterrupted},
		{name: "tells its progress", run: cleanTellsProgress},
		{name: "leaves its user alone", needs: canBeUsed, run: cleanLeavesUser},
		{name: "leaves other handles alone", run: cleanLeavesOthers},
		{name: "fails where something stays", needs: func(b *bench) bool { return b.Stick != nil }, run: cleanFailsWhereItSticks},
		{name: "is followed by an attach", needs: func(b *bench) bool { return offers[drivers.Attacher](b.Driver) }, run: cleanThenAttach},
		{name: "of what vanished fails", needs: canVanish, run: cleanOfWhatVanished},
		{name: "of another card in its place fails", needs: canBeExchanged, run: cleanOfAnotherCard},
	}

	for i, one := range all {
		all[i].needs = func(b *bench) bool { return b.target.Deployable.Cleaning != nil && (one.needs == nil || one.needs(b)) }
	}
	return all
}

// hasMethods says whether the target can be cleaned in several ways.
func hasMethods(b *bench) bool { return len(b.methods()) > 1 }

// methods returns the ways to clean the target.
func (b *bench) methods() []cyborg.CleanMethod { return b.target.Deployable.Cleaning.Methods }

// cleaner returns the driver under test as a Cleaner.
func (b *bench) cleaner() drivers.Cleaner { return b.Driver.(drivers.Cleaner) } //nolint:forcetypeassert // its group runs only where it is one

// requireCleaning requires a cleaning that the records can choose from.
func (b *bench) requireCleaning(t *testing.T, deployable cyborg.DeployableReport) {
	t.Helper()
	cleaning := deployable.Cleaning
	if cleaning == nil {
		return
	}

	require.Truef(t, offers[drivers.Cleaner](b.Driver), "%s has a cleaning, and its driver cleans nothing", deployable.Name)
	require.NotEmptyf(t, cleaning.Methods, "ways to clean %s", deployable.Name)

	each := unique{}
	for i, method := range cleaning.Methods {
		each.add(t, "way to clean "+deployable.Name, string(method))
		require.Containsf(t, cyborg.CleanMethods(), method, "way to clean %s", deployable.Name)
		require.Truef(t, i == 0 || method.Covers(cleaning.Methods[i-1]), "ways to clean %s, the weakest first: %v", deployable.Name, cleaning.Methods)
	}
	require.Truef(t, cleaning.After == "" || each[string(cleaning.After)], "%s demands %s after every holder, and has %v", deployable.Name, cleaning.After, cleaning.Methods)
}

// requireSomeCleaning requires that a driver with Cleaner says of some deployable how to
// clean it.
func (b *bench) requireSomeCleaning(t *testing.T, devices []cyborg.DeviceReport) {
	t.Helper()
	cleaned := func(d cyborg.DeployableReport) bool { return d.Cleaning != nil }
	some := slices.ContainsFunc(devices, func(d cyborg.DeviceReport) bool { return slices.ContainsFunc(d.Deployables, cleaned) })
	require.True(t, some || !offers[drivers.Cleaner](b.Driver), "a driver with Cleaner reports a cleaning")
}

// cleanRequest returns the request that the agent would send with this notebook.
func (b *bench) cleanRequest(book *notebook, method cyborg.CleanMethod) drivers.CleanRequest {
	return drivers.CleanRequest{Target: b.target, Handle: b.handle, Method: method, Prior: book.last, Note: book.note, Progress: ignoreProgress}
}

// clean cleans the target's handle, and requires evidence and that nothing is left of what
// the method removes. The agent then forgets the notes.
func (b *bench) clean(t *testing.T, book *notebook, method cyborg.CleanMethod) {
	t.Helper()
	evidence, err := b.cleaner().Clean(t.Context(), b.cleanRequest(book, method))
	require.NoError(t, err)
	book.last = nil

	require.Truef(t, slices.Contains(b.methods(), evidence.Method) && evidence.Method.Covers(method), "a %s says that it was a %q", method, evidence.Method)
	for name, said := range map[string]string{"tool": evidence.Tool, "what was read back": evidence.ReadBack} {
		require.NotEmptyf(t, said, "evidence of a %s: %s", method, name)
		require.LessOrEqualf(t, utf8.RuneCountInString(said), cyborg.LongestEvidence, "characters in the evidence of a %s: %s", method, name)
	}
	require.Empty(t, b.removedBy(t, evidence.Method), "what is left after a %s", evidence.Method)
}

// leave has somebody leave something on the target's handle, for this method to remove.
func (b *bench) leave(t *testing.T, method cyborg.CleanMethod) {
	t.Helper()
	b.Leave(t, b.target, b.handle)
	require.NotEmpty(t, b.removedBy(t, method), "Rig.Leave leaves something that a %s removes", method)
}

// removedBy returns what of the things that are left on the target's handle the method
// should remove.
func (b *bench) removedBy(t *testing.T, method cyborg.CleanMethod) []cyborg.CleanMethod {
	t.Helper()
	return slices.DeleteFunc(b.Left(t, b.target, b.handle), func(needed cyborg.CleanMethod) bool { return !method.Covers(needed) })
}

// remains is everything that a clean could change.
type remains struct {
	State state
	Left  map[string][]cyborg.CleanMethod
}

// remains reads the state of the hardware and what is left on the handles of the target's
// device.
func (b *bench) remains(t *testing.T) remains {
	t.Helper()
	now := remains{State: b.state(t), Left: map[string][]cyborg.CleanMethod{}}
	b.eachHandle(func(target drivers.Target, handle cyborg.HandleReport) {
		now.Left[handle.Identity] = b.Left(t, target, handle)
	})
	return now
}

// eachHandle calls do with every handle of the target's device.
func (b *bench) eachHandle(do func(target drivers.Target, handle cyborg.HandleReport)) {
	for _, deployable := range b.target.Device.Deployables {
		for _, handle := range deployable.Handles {
			do(drivers.Target{Device: b.target.Device, Deployable: deployable}, handle)
		}
	}
}

// cleanRemoves checks that nothing is left of what a method removes, and that the device
// is still discovered as the same.
func cleanRemoves(t *testing.T, b *bench) {
	before := b.device(t)
	for _, method := range b.methods() {
		b.leave(t, method)
		b.clean(t, &notebook{}, method)
		require.Equal(t, before, b.device(t), "what was cleaned is discovered as before")
	}
}

// cleanCanBeRepeated checks that what is clean can be cleaned again, also by another
// driver and with a note that was kept too long.
func cleanCanBeRepeated(t *testing.T, b *bench) {
	for _, method := range b.methods() {
		b.leave(t, method)
		book := &notebook{}
		_, err := b.cleaner().Clean(t.Context(), b.cleanRequest(book, method))
		require.NoError(t, err)

		b.clean(t, book, method)
		b.Driver = b.Restart(t)
		b.clean(t, book, method)
	}
}

// cleanNotesFirst checks that a note is stored before the hardware is touched.
func cleanNotesFirst(t *testing.T, b *bench) {
	for _, method := range b.methods() {
		b.leave(t, method)
		before, book, notes := b.remains(t), &notebook{}, 0

		request := b.cleanRequest(book, method)
		request.Note = func(note json.RawMessage) error {
			notes++
			require.True(t, json.Valid(note), "a note is JSON")
			if notes == 1 {
				require.Equal(t, before, b.remains(t), "nothing is touched before the first note is kept")
			}
			return book.note(note)
		}

		_, err := b.cleaner().Clean(t.Context(), request)
		require.NoError(t, err)
		require.Positive(t, notes)
	}
}

// errFull is the error of a note that cannot be stored.
var errFull = errors.New("the disk is full")

// cleanNeedsItsNote checks that Clean touches nothing where its note cannot be stored.
func cleanNeedsItsNote(t *testing.T, b *bench) {
	for _, method := range b.methods() {
		b.leave(t, method)
		before := b.remains(t)

		request := b.cleanRequest(&notebook{}, method)
		request.Note = func(json.RawMessage) error { return errFull }

		_, err := b.cleaner().Clean(t.Context(), request)
		require.ErrorIs(t, err, errFull)
		require.Equal(t, before, b.remains(t))
	}
}

// mostNotes is at how many notes of a clean the suite stops it.
const mostNotes = 10

// stopClean begins a clean that ends at its note of this number, as if the agent died
// there: before the note is stored, or after that and before the next one, in the middle
// of the change where the rig can make it slow. The driver may finish the clean all the
// same. A new driver takes over afterwards. It says whether there was such a note.
func (b *bench) stopClean(t *testing.T, book *notebook, method cyborg.CleanMethod, number int, stored bool) bool {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()

	notes, quick := 0, func() {}
	request := b.cleanRequest(book, method)
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

	err := promptly(t, "a stopped Clean", func() error {
		_, err := b.cleaner().Clean(ctx, request)
		return err
	})
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

// cleanStoppedGoesOn stops a clean at each of its notes, and checks that another driver
// can go on.
func cleanStoppedGoesOn(t *testing.T, b *bench) {
	for _, method := range b.methods() {
		for _, stored := range []bool{false, true} {
			for number, more := 1, true; more && number <= mostNotes; number++ {
				b.leave(t, method)
				book := &notebook{}
				more = b.stopClean(t, book, method, number, stored)
				b.clean(t, book, method)
			}
		}
	}
}

// cleanGoesOnWithAnother stops a clean at each of its notes, and checks that another
// driver can clean the handle with each other method.
func cleanGoesOnWithAnother(t *testing.T, b *bench) {
	for _, method := range b.methods() {
		for _, other := range b.methods() {
			if method == other {
				continue
			}
			for number, more := 1, true; more && number <= mostNotes; number++ {
				b.leave(t, other)
				book := &notebook{}
				more = b.stopClean(t, book, method, number, true)
				b.clean(t, book, other)
			}
		}
	}
}

// cleanDoesNotBegin checks that Clean changes nothing when its context has ended already.
func cleanDoesNotBegin(t *testing.T, b *bench) {
	for _, method := range b.methods() {
		b.leave(t, method)
		before := b.remains(t)
		requireStopped(t, promptly(t, "Clean", func() error {
			_, err := b.cleaner().Clean(ended(t), b.cleanRequest(&notebook{}, method))
			return err
		}))
		require.Equal(t, before, b.remains(t))
	}
}

// cleanIsInterrupted ends the context in the middle of a Clean and checks that another
// driver can go on.
func cleanIsInterrupted(t *testing.T, b *bench) {
	for _, method := range b.methods() {
		b.leave(t, method)
		book := &notebook{}

		quick := b.Slow(t)
		ctx, cancel := context.WithCancel(t.Context())
		request := b.cleanRequest(book, method)
		note := request.Note
		request.Note = func(text json.RawMessage) error {
			time.AfterFunc(100*time.Millisecond, cancel) // not before it has begun
			return note(text)
		}
		requireStopped(t, promptly(t, "an interrupted Clean", func() error {
			_, err := b.cleaner().Clean(ctx, request)
			return err
		}))
		cancel()
		quick()

		b.Driver = b.Restart(t)
		b.clean(t, book, method)
	}
}

// cleanTellsProgress checks that progress never goes back, and is a percentage, or -1.
func cleanTellsProgress(t *testing.T, b *bench) {
	for _, method := range b.methods() {
		var guard sync.Mutex
		last := -1
		request := b.cleanRequest(&notebook{}, method)
		request.Progress = func(percent int, _ string) {
			guard.Lock()
			defer guard.Unlock()
			if percent == -1 {
				return
			}
			if percent < last || percent > 100 { // not on the test's goroutine
				t.Errorf("a %s tells %d percent after %d", method, percent, last)
			}
			last = percent
		}

		_, err := b.cleaner().Clean(t.Context(), request)
		require.NoError(t, err)
	}
}

// cleanLeavesUser checks that Clean is rejected, and changes nothing, while somebody uses
// the handle.
func cleanLeavesUser(t *testing.T, b *bench) {
	for _, method := range b.methods() {
		b.leave(t, method)
		release := b.Use(t, b.target, b.handle)
		before := b.remains(t)

		_, err := b.cleaner().Clean(t.Context(), b.cleanRequest(&notebook{}, method))
		require.Equalf(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), "a %s of what is used answers %v", method, err)
		require.Equal(t, before, b.remains(t), "a refused clean changes nothing")

		release()
		b.clean(t, &notebook{}, method)
	}
}

// cleanLeavesOthers checks that other holders of the device keep what they have: what is
// on their handles, and that these are attached.
func cleanLeavesOthers(t *testing.T, b *bench) {
	if handles := b.target.Deployable.Handles; offers[drivers.Attacher](b.Driver) && len(handles) > 1 {
		mine := b.handle
		at := slices.IndexFunc(handles, func(h cyborg.HandleReport) bool { return h.Identity != mine.Identity })
		b.install(t)
		b.handle = handles[at]
		b.attach(t, &notebook{})
		b.handle = mine
	}
	b.eachHandle(func(target drivers.Target, handle cyborg.HandleReport) { b.Leave(t, target, handle) })

	others := func() remains {
		now := b.remains(t)
		now.State.Snapshot = ""
		delete(now.Left, b.handle.Identity)
		return now
	}
	before := others()
	for _, method := range b.methods() {
		b.clean(t, &notebook{}, method)
		require.Equal(t, before, others(), "a %s of %s", method, b.handle.Identity)
	}
}

// cleanFailsWhereItSticks checks that a driver does not take for clean what it has failed
// to remove, however often it tries.
func cleanFailsWhereItSticks(t *testing.T, b *bench) {
	b.Stick(t, b.target, b.handle)
	for _, method := range b.methods() {
		b.leave(t, method)
		book := &notebook{}
		for range 2 {
			_, err := b.cleaner().Clean(t.Context(), b.cleanRequest(book, method))
			require.Error(t, err, "a %s of what sticks", method)
		}
	}
}

// cleanThenAttach checks that a handle can be attached and detached after it was cleaned.
func cleanThenAttach(t *testing.T, b *bench) {
	b.install(t)
	for _, method := range b.methods() {
		book := &notebook{}
		b.attach(t, book)
		b.detach(t, book)
		b.leave(t, method)
		b.clean(t, &notebook{}, method)

		before, book := b.state(t), &notebook{}
		b.attach(t, book)
		b.detach(t, book)
		require.Equal(t, before, b.state(t))
	}
}

// cleanOfWhatVanished checks that Clean fails on a vanished card.
func cleanOfWhatVanished(t *testing.T, b *bench) {
	b.Vanish(t, b.target.Device)
	for _, method := range b.methods() {
		require.Error(t, promptly(t, "Clean", func() error {
			_, err := b.cleaner().Clean(t.Context(), b.cleanRequest(&notebook{}, method))
			return err
		}))
	}
}

// cleanOfAnotherCard checks that a card in the place of the target's is left alone.
func cleanOfAnotherCard(t *testing.T, b *bench) {
	b.exchange(t)
	b.Leave(t, b.target, b.handle)
	before := b.remains(t)
	for _, method := range b.methods() {
		_, err := b.cleaner().Clean(t.Context(), b.cleanRequest(&notebook{}, method))
		require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "a %s of another card answers %v", method, err)
		require.Equal(t, before, b.remains(t))
	}
}
