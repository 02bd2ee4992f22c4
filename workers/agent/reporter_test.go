package agent

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
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

// TestGrantsAreWhatTheLastServerSaid: while servers are switched one by one, an
// agent goes by the one that it has heard last. One of a release that had no
// grants takes nothing back.
func TestGrantsAreWhatTheLastServerSaid(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	r := &reporter{log: slog.New(slog.NewTextHandler(&said, nil))}
	required := agentapi.Grants{Required: true, Keys: []cyborg.GrantKey{{ID: "one"}}}

	r.takeGrants(&required)
	r.takeGrants(nil)
	require.Equal(t, required, r.Grants())

	for range 2 {
		r.takeGrants(&agentapi.Grants{})
		require.Equal(t, agentapi.Grants{}, r.Grants())
	}
	require.Equal(t, 1, strings.Count(said.String(), "grants off"), &said)

	// An agent that has never heard of grants that are required says it, too.
	said.Reset()
	fresh := &reporter{log: r.log}
	fresh.takeGrants(nil)
	require.Empty(t, said.String())
	for range 2 {
		fresh.takeGrants(&agentapi.Grants{})
	}
	require.Equal(t, 1, strings.Count(said.String(), "level=WARN msg=\"the conductor has grants off; this agent does whatever Temporal tells it\""), &said)

	r.takeGrants(&required)
	require.Equal(t, required, r.Grants())
	require.Contains(t, said.String(), "only signed steps")
}

// What a conductor knows of the journal is compared with it after each heartbeat.
// An old copy is for a report to tell.
func TestHeartbeatsCompareTheJournal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func() *journal.Journal {
		j, err := journal.Open(dir, journal.Options{BootID: "boot"})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, j.Close()) })
		return j
	}
	before := open()
	require.NoError(t, before.Write(journal.Change{}))
	earlier := before.Position()
	require.NoError(t, before.Close())

	j := open()
	r := &reporter{assignments: j, forced: make(chan struct{}, 1), log: slog.New(slog.DiscardHandler)}
	follows := journal.Position{Opening: uuid.New(), Writes: 9}
	compare := func(known journal.Position) (journal.Position, bool) {
		out := r.compareJournal(t.Context(), known, follows)
		select {
		case <-r.forced:
			return out, true
		default:
			return out, false
		}
	}
	requireCompared := func(known, want journal.Position, report bool) {
		t.Helper()
		out, forced := compare(known)
		require.Equal(t, want, out)
		require.Equal(t, report, forced)
	}

	requireCompared(journal.Position{}, follows, false)
	requireCompared(earlier, earlier, false)
	requireCompared(journal.Position{Opening: earlier.Opening, Writes: earlier.Writes + 1}, follows, true)

	require.NoError(t, j.Write(journal.Change{}))
	own := j.Position()
	requireCompared(own, follows, false)
	require.Equal(t, own.Writes+1, j.Position().Writes, "it notes that it has told its position")
	requireCompared(own, follows, false)
	require.Equal(t, own.Writes+1, j.Position().Writes, "once")
	requireCompared(journal.Position{Opening: own.Opening, Writes: own.Writes + 2}, follows, true)

	lost := journal.Position{Opening: uuid.New(), Writes: 1}
	require.NoError(t, j.Restart(lost))
	requireCompared(lost, follows, true)
}
