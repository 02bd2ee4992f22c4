package db_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// turns gives one turn at a time, and counts them.
type turns struct {
	t     *testing.T
	taken int
	held  bool
}

// take gives the turn, which nobody may hold yet.
func (c *turns) take(context.Context) (release func(), err error) {
	require.False(c.t, c.held, "a second turn within the first would wait for ever")
	c.taken, c.held = c.taken+1, true
	return func() {
		require.True(c.t, c.held, "given back twice")
		c.held = false
	}, nil
}

// TestTurns: every call has one turn at a time, and gives it back before it
// returns, with or without an error.
func TestTurns(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	card := h.ready(t, "card0")
	count := &turns{t: t}
	ctx := db.WithTurn(t.Context(), count.take)

	for name, call := range map[string]func() error{
		"rows": func() error {
			_, err := r.Accelerators(ctx, db.AcceleratorFilter{}, db.Page{Marker: card.UUID.String()})
			return err
		},
		"rows that are handed out": func() error {
			return r.EachDevice(ctx, db.DeviceFilter{}, db.Listing{}, func(*db.ListedDevice) { require.True(t, count.held) })
		},
		"several statements": func() error { _, err := r.Device(ctx, card.DeviceUUID); return err },
		"one row":            func() error { _, err := r.Now(ctx); return err },
		"no rows":            func() error { return r.RecordHardReboot(ctx, uuid.New(), card.CreatedAt, "req") },
		"a batch":            func() error { _, err := r.BackendsOf(ctx, []string{"h1"}, db.Page{}); return err },
		"a change": func() error {
			_, err := r.Maintain(ctx, card.UUID, cyborg.Maintenance{Reason: "a new fan"}, alice())
			return err
		},
		"a read and a change": func() error {
			_, err := r.UpdateSpecs(ctx, card.UUID, cyborg.SpecsPatch{}, 0, alice())
			return err
		},
	} {
		before := count.taken
		require.NoError(t, call(), name)
		require.Greater(t, count.taken, before, name)
		require.False(t, count.held, name)
	}

	_, err := r.Accelerator(ctx, uuid.New())
	requireKind(t, cyborg.ErrNotFound, err)
	requireKind(t, cyborg.ErrChanged, r.ForgetHost(ctx, "h1", alice()), "h1")
	require.False(t, count.held)
}

// TestAnAdmissionHasOneTurn: an admission has all its statements in one turn.
// It is admitted, refused or shed, and never shed after its refusal.
func TestAnAdmissionHasOneTurn(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	card := r.addHost(t, "h1", 1).ready(t, "card0")
	count := &turns{t: t}
	ctx := db.WithTurn(t.Context(), count.take)
	request := toAttach(card.UUID, onHost("h1"))
	request.IdempotencyKey, request.Fingerprint = "key", "f"

	_, err := r.Admit(ctx, request)
	require.NoError(t, err)
	again, err := r.Admit(ctx, request)
	require.NoError(t, err)
	require.True(t, again.Repeated)
	_, err = r.Admit(ctx, toAttach(card.UUID, onHost("h1")))
	requireKind(t, cyborg.ErrClaimed, err)
	require.Equal(t, 3, count.taken)
	require.False(t, count.held)
}

// TestNoTurn: the error of a turn comes back unchanged from reads and changes,
// because it is the caller's own.
func TestNoTurn(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	mine := errors.New("not now")
	ctx := db.WithTurn(t.Context(), func(context.Context) (func(), error) { return nil, mine })

	_, err := r.Hosts(ctx, db.Page{})
	require.Equal(t, mine, err)
	_, err = r.Operations(ctx, db.OperationFilter{}, db.Page{Marker: uuid.NewString()})
	require.Equal(t, mine, err)
	_, err = r.BackendsOf(ctx, nil, db.Page{})
	require.Equal(t, mine, err)
	_, err = r.Admit(ctx, toProvision(cyborg.ProvisionRequest{}))
	require.Equal(t, mine, err)
	require.Equal(t, mine, r.ForgetHost(ctx, "h1", alice()))
	require.NoError(t, r.Ping(ctx))
}
