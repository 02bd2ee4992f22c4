package agent

import (
	"log/slog"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/journal"
)

// fullDisk is a journal that is an old copy and cannot be emptied.
type fullDisk struct{ assignments }

func (fullDisk) Holds(journal.Position) bool { return false }

func (fullDisk) Restart(journal.Position) error {
	return cyborg.Errorf(cyborg.ErrUnavailable, "no space is left")
}

// An agent that cannot empty an old copy of its journal does not say in its next
// report that the journal holds what the conductor knows.
func TestOldCopyThatCannotBeEmptied(t *testing.T) {
	t.Parallel()
	r := &reporter{assignments: fullDisk{}, log: slog.New(slog.DiscardHandler)}
	err := r.follow(t.Context(), journal.Position{Opening: uuid.New(), Writes: 1})
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.Zero(t, r.follows)
}
