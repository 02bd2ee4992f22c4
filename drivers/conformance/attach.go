package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// attachChecks lists the checks of drivers with Attacher. Where the target has a
// preparation, all of them are made for an instance, too.
func attachChecks() []check {
	all := []check{
		{name: "and detach", run: attachAndDetach},
		{name: "can be repeated", run: attachCanBeRepeated},
		{name: "is undone", run: attachIsUndone},
		{name: "of nothing is undone", run: attachOfNothingIsUndone},
		{name: "survives a restart", run: attachSurvivesRestart},
		{name: "notes before it touches", run: attachNotesFirst},
		{name: "does nothing without its note", run: attachNeedsItsNote},
		{name: "stopped after its note is undone", run: attachStoppedIsUndone},
		{name: "stopped after its note is repeated", run: attachStoppedIsRepeated},
		{name: "does not begin under an ended context", run: attachDoesNotBegin},
		{name: "leaves other handles alone", run: attachLeavesOthers},
		{name: "leaves the fingerprint alone", run: attachLeavesFingerprint},
		{name: "is not taken from its user", needs: canBeUsed, run: attachIsNotTaken},
		{name: "of what vanished", needs: canVanish, run: attachOfWhatVanished},
		{name: "of another card in its place", needs: canBeExchanged, run: attachOfAnotherCard},
		{name: "is asked about by many", run: attachWhileQueried},
		{name: "is of one UUID", needs: isMediated, run: attachIsOfOneUUID},
		{name: "for another UUID", needs: isMediated, run: attachForAnotherUUID},
	}

	for _, one := range slices.Clone(all) {
		all = append(all, one.forInstance())
	}
	return append(all, prepareChecks()...)
}

// canBeUsed says whether the rig can make somebody use a handle.
func canBeUsed(b *bench) bool { return b.Use != nil }

// attacher returns the driver under test as an Attacher.
func (b *bench) attacher() drivers.Attacher { return b.Driver.(drivers.Attacher) } //nolint:forcetypeassert // its group runs only where it is one

// notebook stores the notes of an attach, as the agent's journal does.
type notebook struct {
	last json.RawMessage // nil before the first note
}

// note replaces the stored note with a copy: the driver may reuse its buffer.
func (n *notebook) note(note json.RawMessage) error {
	n.last = append(json.RawMessage(nil), note...)
	return nil
}

// attachRequest returns the request that the agent would send with this
// notebook.
func (b *bench) attachRequest(book *notebook) drivers.AttachRequest {
	return drivers.AttachRequest{
		Target: b.target, Handle: b.handle, Holder: b.holder, HandleUUID: b.uuidOf(b.handle), Parameters: maps.Clone(b.parameters),
		Prior: book.last, Note: book.note,
	}
}

// attach attaches the target's handle and requires it to be attached.
func (b *bench) attach(t *testing.T, book *notebook) {
	t.Helper()
	require.NoError(t, b.attacher().Attach(t.Context(), b.attachRequest(book)))
	require.True(t, b.attached(t), "Attached after Attach")
}

// detach detaches the target's handle and requires it not to be attached.
func (b *bench) detach(t *testing.T, book *notebook) {
	t.Helper()
	require.NoError(t, b.attacher().Detach(t.Context(), b.detachRequest(book)))
	require.False(t, b.attached(t), "Attached after Detach")
}

// detachRequest returns the request that the agent would send with this
// notebook.
func (b *bench) detachRequest(book *notebook) drivers.DetachRequest {
	return drivers.DetachRequest{Target: b.target, Handle: b.handle, Holder: b.holder, HandleUUID: b.uuidOf(b.handle), Prior: book.last}
}

// asks returns the question of the agent whether this handle is attached.
func (b *bench) asks(handle cyborg.HandleReport) drivers.AttachedRequest {
	return drivers.AttachedRequest{Target: b.target, Handle: handle, Holder: b.holder.Kind, HandleUUID: b.uuidOf(handle)}
}

// uuidOf returns the UUID that the records have for a handle.
func (b *bench) uuidOf(handle cyborg.HandleReport) uuid.UUID {
	return uuid.NewSHA1(b.records, []byte(handle.Identity))
}

// attached asks the driver whether the target's handle is attached.
func (b *bench) attached(t *testing.T) bool {
	t.Helper()
	attached, err := b.attacher().Attached(t.Context(), b.asks(b.handle))
	require.NoError(t, err)
	return attached
}

// attachAndDetach checks that Attach stores a note and keeps the device
// visible, and that Detach restores the state.
func attachAndDetach(t *testing.T, b *bench) {
	b.install(t)
	before, book := b.state(t), &notebook{}
	require.False(t, b.attached(t), "Attached before Attach")

	b.attach(t, book)
	require.NotNil(t, book.last, "an attach keeps a note")
	require.True(t, json.Valid(book.last), "a note is JSON")
	require.Equal(t, outline(before.Devices), outline(b.discover(t)), "what is attached is still discovered")

	b.detach(t, book)
	require.Equal(t, before, b.state(t), "a detach brings back the state before the attach")
}

// attachCanBeRepeated checks that a second Attach or Detach changes nothing.
func attachCanBeRepeated(t *testing.T, b *bench) {
	b.install(t)
	before, book := b.state(t), &notebook{}

	b.attach(t, book)
	once := b.state(t)
	b.attach(t, book)
	require.Equal(t, once, b.state(t))

	for range 2 {
		b.detach(t, book)
		require.Equal(t, before, b.state(t))
	}
}

// attachIsUndone checks a Detach that undoes an Attach, also when it is
// repeated.
func attachIsUndone(t *testing.T, b *bench) {
	b.install(t)
	before, book := b.state(t), &notebook{}
	b.attach(t, book)

	request := b.detachRequest(book)
	request.Undo = true
	for range 2 {
		require.NoError(t, b.attacher().Detach(t.Context(), request))
		require.Equal(t, before, b.state(t))
	}
}

// attachOfNothingIsUndone checks a Detach without any Attach before.
func attachOfNothingIsUndone(t *testing.T, b *bench) {
	b.install(t)
	before := b.state(t)
	b.detach(t, &notebook{})
	require.Equal(t, before, b.state(t))
}

// attachSurvivesRestart attaches and detaches across restarts of the agent.
func attachSurvivesRestart(t *testing.T, b *bench) {
	b.install(t)
	before, book := b.state(t), &notebook{}

	b.attach(t, book)
	held := b.state(t)

	b.Driver = b.Restart(t)
	require.Equal(t, held, b.state(t))
	b.attach(t, book)
	require.Equal(t, held, b.state(t))

	b.Driver = b.Restart(t)
	b.detach(t, book)
	require.Equal(t, before, b.state(t))
}

// attachNotesFirst checks that a note is stored before the hardware is touched.
func attachNotesFirst(t *testing.T, b *bench) {
	b.install(t)
	before, book, notes := b.state(t), &notebook{}, 0

	request := b.attachRequest(book)
	request.Note = func(note json.RawMessage) error {
		notes++
		if notes == 1 {
			require.Equal(t, before, b.state(t), "nothing is touched before the first note is kept")
		}
		return book.note(note)
	}

	require.NoError(t, b.attacher().Attach(t.Context(), request))
	require.Positive(t, notes)
}

// attachNeedsItsNote checks that Attach touches nothing where its note cannot
// be stored.
func attachNeedsItsNote(t *testing.T, b *bench) {
	b.install(t)
	before := b.state(t)

	full := errors.New("the disk is full")
	request := b.attachRequest(&notebook{})
	request.Note = func(json.RawMessage) error { return full }

	require.ErrorIs(t, b.attacher().Attach(t.Context(), request), full)
	require.Equal(t, before, b.state(t))
}

// stopAfterNote begins an attach and ends its context as soon as the first note
// is stored, as if the agent died there. The driver may have finished the
// attach all the same. A new driver takes over afterwards.
func (b *bench) stopAfterNote(t *testing.T, book *notebook) {
	t.Helper()
	if b.Slow != nil {
		defer b.Slow(t)()
	}

	ctx, stop := context.WithCancel(t.Context())
	request := b.attachRequest(book)
	request.Note = func(note json.RawMessage) error {
		defer stop()
		return book.note(note)
	}

	err := promptly(t, "an interrupted Attach", func() error { return b.attacher().Attach(ctx, request) })
	if err != nil || b.Slow != nil {
		requireStopped(t, err)
	}

	b.Driver = b.Restart(t)
}

// attachStoppedIsUndone checks that an interrupted Attach can be undone.
func attachStoppedIsUndone(t *testing.T, b *bench) {
	b.install(t)
	before, book := b.state(t), &notebook{}
	b.stopAfterNote(t, book)

	request := b.detachRequest(book)
	request.Undo = true
	require.NoError(t, b.attacher().Detach(t.Context(), request))
	require.Equal(t, before, b.state(t))
}

// attachStoppedIsRepeated checks that an interrupted Attach can be completed by
// another one.
func attachStoppedIsRepeated(t *testing.T, b *bench) {
	b.install(t)
	before, book := b.state(t), &notebook{}
	b.stopAfterNote(t, book)

	b.attach(t, book)
	b.detach(t, book)
	require.Equal(t, before, b.state(t))
}

// attachDoesNotBegin checks that Attach and Detach change nothing when their
// context has ended already.
func attachDoesNotBegin(t *testing.T, b *bench) {
	b.install(t)
	before, book := b.state(t), &notebook{}
	requireStopped(t, promptly(t, "Attach", func() error { return b.attacher().Attach(ended(t), b.attachRequest(book)) }))
	require.Equal(t, before, b.state(t))

	b.attach(t, book)
	held := b.state(t)
	requireStopped(t, promptly(t, "Detach", func() error { return b.attacher().Detach(ended(t), b.detachRequest(book)) }))
	require.Equal(t, held, b.state(t))
}

// attachLeavesOthers checks that only the one handle is attached.
func attachLeavesOthers(t *testing.T, b *bench) {
	b.install(t)
	b.attach(t, &notebook{})

	for identity, attached := range b.state(t).Attached {
		require.Equalf(t, identity == b.handle.Identity, attached, "Attached of %s, where %s was attached", identity, b.handle.Identity)
	}
}

// attachLeavesFingerprint checks that a card does not look like another one while
// it is attached.
func attachLeavesFingerprint(t *testing.T, b *bench) {
	b.install(t)
	before, book := b.device(t).Fingerprint, &notebook{}
	b.attach(t, book)
	require.Equal(t, before, b.device(t).Fingerprint)

	b.detach(t, book)
	require.Equal(t, before, b.device(t).Fingerprint)
}

// attachIsNotTaken checks that Detach is rejected, and changes nothing, while
// somebody uses the handle.
func attachIsNotTaken(t *testing.T, b *bench) {
	b.install(t)
	before, book := b.state(t), &notebook{}
	b.attach(t, book)

	release := b.Use(t, b.target, b.handle)
	held := b.state(t)

	for _, undo := range []bool{false, true} {
		request := b.detachRequest(book)
		request.Undo = undo
		err := b.attacher().Detach(t.Context(), request)
		require.Equalf(t, cyborg.ErrInUse, cyborg.ErrorKindOf(err), "a detach from under a user (undo: %v) answers %v", undo, err)
		require.Equal(t, held, b.state(t), "a refused detach changes nothing")
	}

	release()
	b.detach(t, book)
	require.Equal(t, before, b.state(t))
}

// attachOfWhatVanished checks that a handle of a vanished card counts as
// detached and cannot be attached.
func attachOfWhatVanished(t *testing.T, b *bench) {
	b.install(t)
	book := &notebook{}
	b.attach(t, book)

	b.Vanish(t, b.target.Device)
	require.False(t, b.attached(t), "Attached of what is gone")
	require.NoError(t, promptly(t, "Detach", func() error { return b.attacher().Detach(t.Context(), b.detachRequest(book)) }),
		"of what is gone there is nothing left to detach")
	require.Error(t, promptly(t, "Attach", func() error { return b.attacher().Attach(t.Context(), b.attachRequest(book)) }))
}

// attachOfAnotherCard checks that nothing is done to a card in the place of the one
// that was attached: it is not attached, nothing is left to detach, and it is not
// given to who asks for the other one.
func attachOfAnotherCard(t *testing.T, b *bench) {
	b.install(t)
	book := &notebook{}
	b.attach(t, book)

	b.exchange(t)
	before := b.state(t)
	require.False(t, b.attached(t), "Attached of another card")
	for _, undo := range []bool{false, true} {
		request := b.detachRequest(book)
		request.Undo = undo
		require.NoError(t, b.attacher().Detach(t.Context(), request), "of what is gone there is nothing left to detach")
	}

	err := b.attacher().Attach(t.Context(), b.attachRequest(book))
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "an attach of another card answers %v", err)
	require.Equal(t, before, b.state(t))
}

// isMediated says whether the target's handle is a mediated device, which the driver makes
// with the UUID of the handle.
func isMediated(b *bench) bool { return b.handle.Kind == cyborg.HandleMDEV }

// attachIsOfOneUUID checks that what is attached under the handle's UUID is not attached
// under another one, and that there is nothing to detach of that one. Where nobody says the
// UUID, it is that of the handle.
func attachIsOfOneUUID(t *testing.T, b *bench) {
	b.install(t)
	before, book := b.state(t), &notebook{}
	b.attach(t, book)
	held := b.state(t)

	question := b.asks(b.handle)
	for id, want := range map[uuid.UUID]bool{uuid.New(): false, uuid.Nil: true} {
		question.HandleUUID = id
		attached, err := b.attacher().Attached(t.Context(), question)
		require.NoError(t, err)
		require.Equalf(t, want, attached, "Attached under the UUID %s, where %s was attached", id, b.uuidOf(b.handle))
	}

	for _, undo := range []bool{false, true} {
		request := b.detachRequest(&notebook{})
		request.HandleUUID, request.Undo = uuid.New(), undo
		require.NoError(t, b.attacher().Detach(t.Context(), request), "of another UUID there is nothing to detach")
		require.Equal(t, held, b.state(t))
	}

	request := b.detachRequest(book)
	request.HandleUUID = uuid.Nil
	require.NoError(t, b.attacher().Detach(t.Context(), request))
	require.Equal(t, before, b.state(t), "a detach for which nobody says the UUID")
}

// attachForAnotherUUID checks that what is attached can be attached under another UUID,
// which the records give to a handle that they have forgotten, and is then as if it had been
// attached under that one at once. It is not taken from who uses it.
func attachForAnotherUUID(t *testing.T, b *bench) {
	b.install(t)
	before, records, book := b.state(t), b.records, &notebook{}
	b.records = uuid.New()
	b.attach(t, book)
	want := b.state(t)
	b.detach(t, book)

	others := b.records
	b.records, book = records, &notebook{}
	b.attach(t, book)
	b.records = others
	b.requireNotTaken(t, book)
	b.attach(t, book)
	require.Equal(t, want, b.state(t))
	b.records = records
	require.False(t, b.attached(t), "Attached under the former UUID")
	b.records = others
	b.detach(t, book)
	require.Equal(t, before, b.state(t))
}

// canBeExchanged says whether the rig can put another card into a card's place.
func canBeExchanged(b *bench) bool { return b.Exchange != nil }

// exchange puts another card into the target's place, and requires that it has the
// same identity and another fingerprint.
func (b *bench) exchange(t *testing.T) {
	t.Helper()
	was := b.device(t).Fingerprint
	b.Exchange(t, b.target.Device)
	now := b.device(t).Fingerprint
	require.True(t, now.Other(was), "%s in the place of %s", now, was)
}
