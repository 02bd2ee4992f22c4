package stalearqs_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/stalearqs"
)

// store records the last deletion.
type store struct {
	deletion db.ARQDeletion
	deleted  []uuid.UUID
	pending  []cyborg.Operation
	err      error
}

func (s *store) DeleteARQs(_ context.Context, deletion db.ARQDeletion, _ cyborg.Actor) (db.DeletedARQs, error) {
	s.deletion = deletion
	return db.DeletedARQs{Deleted: s.deleted, Pending: s.pending}, s.err
}

// TestWhatIsDeleted: all requests of an instance that is gone are deleted, but
// of one on no host only those that were read before Nova was asked.
func TestWhatIsDeleted(t *testing.T) {
	t.Parallel()
	s, log := &store{pending: []cyborg.Operation{{ID: uuid.New()}}}, slog.New(slog.DiscardHandler)
	instance, arqs := uuid.New(), []uuid.UUID{uuid.New(), uuid.New()}
	require.NoError(t, stalearqs.Gone(t.Context(), s, log, instance))
	require.Equal(t, db.ARQDeletion{Instance: instance, AllowBound: true}, s.deletion)

	pending, err := stalearqs.OnNoHost(t.Context(), s, log, instance, arqs)
	require.NoError(t, err)
	require.Equal(t, s.pending, pending)
	require.Equal(t, db.ARQDeletion{UUIDs: arqs, AllowBound: true}, s.deletion, "no request that Nova may have made since")

	s.err = errors.New("away")
	require.ErrorIs(t, stalearqs.Gone(t.Context(), s, log, instance), s.err)
	_, err = stalearqs.OnNoHost(t.Context(), s, log, instance, arqs)
	require.ErrorIs(t, err, s.err)
}

// TestOnlyWhatIsDeletedIsLogged: the log does not say that requests were
// deleted where there were none.
func TestOnlyWhatIsDeletedIsLogged(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	s, log := &store{}, slog.New(slog.NewTextHandler(&text, nil))
	instance, arqs := uuid.New(), []uuid.UUID{uuid.New()}

	deleteBoth := func() {
		require.NoError(t, stalearqs.Gone(t.Context(), s, log, instance))
		_, err := stalearqs.OnNoHost(t.Context(), s, log, instance, arqs)
		require.NoError(t, err)
	}

	deleteBoth()
	require.Empty(t, text.String())

	s.deleted = arqs
	deleteBoth()
	require.Equal(t, 2, strings.Count(text.String(), "deleted=1"))
}
