package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

func attachChecks() []check {
	return []check{
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
		{name: "is not taken from its user", needs: canBeUsed, run: attachIsNotTaken},
		{name: "of what vanished", needs: canVanish, run: attachOfWhatVanished},
		{name: "is asked about by many", run: attachWhileQueried},
	}
}

func canBeUsed(rig *Rig) bool { return rig.Use != nil }

func (b *bench) attacher() drivers.Attacher { return b.Driver.(drivers.Attacher) } //nolint:forcetypeassert // its group runs only where it is one

// notebook is the agent's part of an attach: it keeps the last note.
type notebook struct {
	last json.RawMessage
}

func (n *notebook) note(note json.RawMessage) error {
	n.last = append(json.RawMessage(nil), note...)
	return nil
}

func (b *bench) attachRequest(book *notebook) drivers.AttachRequest {
	return drivers.AttachRequest{
		Target: b.target, Handle: b.handle, Holder: cyborg.Holder{Kind: cyborg.HolderHost, ID: "conformance"},
		Prior: book.last, Note: book.note,
	}
}

func (b *bench) attach(t *testing.T, book *notebook) {
	t.Helper()
	require.NoError(t, b.attacher().Attach(t.Context(), b.attachRequest(book)))
	require.True(t, b.attached(t), "Attached after Attach")
}

func (b *bench) detach(t *testing.T, book *notebook) {
	t.Helper()
	require.NoError(t, b.attacher().Detach(t.Context(), b.detachRequest(book)))
	require.False(t, b.attached(t), "Attached after Detach")
}

func (b *bench) detachRequest(book *notebook) drivers.DetachRequest {
	return drivers.DetachRequest{Target: b.target, Handle: b.handle, Prior: book.last}
}

func (b *bench) attached(t *testing.T) bool {
	t.Helper()
	attached, err := b.attacher().Attached(t.Context(), b.target, b.handle)
	require.NoError(t, err)
	return attached
}

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

func attachOfNothingIsUndone(t *testing.T, b *bench) {
	b.install(t)
	before := b.state(t)
	b.detach(t, &notebook{})
	require.Equal(t, before, b.state(t))
}

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

func attachNotesFirst(t *testing.T, b *bench) {
	b.install(t)
	before, book, notes := b.state(t), &notebook{}, 0
	request := b.attachRequest(book)
	request.Note = func(note json.RawMessage) error {
		if notes++; notes == 1 {
			require.Equal(t, before, b.state(t), "nothing is touched before the first note is kept")
		}
		return book.note(note)
	}
	require.NoError(t, b.attacher().Attach(t.Context(), request))
	require.Positive(t, notes)
}

func attachNeedsItsNote(t *testing.T, b *bench) {
	b.install(t)
	before := b.state(t)
	full := errors.New("the disk is full")
	request := b.attachRequest(&notebook{})
	request.Note = func(json.RawMessage) error { return full }
	require.ErrorIs(t, b.attacher().Attach(t.Context(), request), full)
	require.Equal(t, before, b.state(t))
}

// stopAfterNote begins an attach that ends, as if the agent did, when its first note was kept. The driver may have
// finished all the same.
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

func attachStoppedIsUndone(t *testing.T, b *bench) {
	b.install(t)
	before, book := b.state(t), &notebook{}
	b.stopAfterNote(t, book)
	request := b.detachRequest(book)
	request.Undo = true
	require.NoError(t, b.attacher().Detach(t.Context(), request))
	require.Equal(t, before, b.state(t))
}

func attachStoppedIsRepeated(t *testing.T, b *bench) {
	b.install(t)
	before, book := b.state(t), &notebook{}
	b.stopAfterNote(t, book)
	b.attach(t, book)
	b.detach(t, book)
	require.Equal(t, before, b.state(t))
}

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

func attachLeavesOthers(t *testing.T, b *bench) {
	b.install(t)
	b.attach(t, &notebook{})
	for identity, attached := range b.state(t).Attached {
		require.Equalf(t, identity == b.handle.Identity, attached, "Attached of %s, where %s was attached", identity, b.handle.Identity)
	}
}

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
