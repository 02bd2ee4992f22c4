package db_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// reportWith reports the host as its agent does whose journal has got there.
func (h *host) reportWith(t *testing.T, journal, follows cyborg.JournalPosition, forgot bool) agentapi.ReportReply {
	t.Helper()
	report := h.next()
	report.Journal, report.Follows, report.Forgot = journal, follows, forgot
	reply := h.records.merge(t, report)
	if reply.Accepted {
		h.reply = reply
	}
	return reply
}

// TestOldJournal: a report of another process of the agent changes nothing before
// this has said that its journal holds what the records know. Steps name that.
// The history of the host tells once that the journal was emptied.
func TestOldJournal(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	a := h.ready(t, "card0").UUID
	at := func(opening uuid.UUID, writes int64) cyborg.JournalPosition {
		return cyborg.JournalPosition{Opening: opening, Writes: writes}
	}
	none, first, second, third := cyborg.JournalPosition{}, uuid.New(), uuid.New(), uuid.New()

	require.True(t, h.reportWith(t, at(first, 40), none, false).Accepted, "release 0.1 has told no position")
	h.content.Attachments = []agentapi.Attachment{}
	require.True(t, h.reportWith(t, at(first, 50), none, false).Accepted)
	require.True(t, h.reportWith(t, at(first, 51), none, false).Accepted, "that says nothing new")

	work := r.begin(t, toAttach(a, onHost("h1")))
	require.Equal(t, at(first, 51), work.Journal)
	for _, check := range []func(db.Run) (db.Addressee, error){
		func(run db.Run) (db.Addressee, error) { return r.CheckRun(t.Context(), run) },
		func(run db.Run) (db.Addressee, error) { return r.Renumber(t.Context(), run) },
	} {
		to, err := check(runOf(work.Operation))
		require.NoError(t, err)
		require.Equal(t, at(first, 51), to.Journal)
	}

	// The old copy lists what was detached since. It may be that of the same process,
	// whose machine has gone back to a snapshot.
	h.journal("card1", cyborg.AttachmentDone)
	for _, old := range []cyborg.JournalPosition{at(second, 99), at(first, 50)} {
		for _, follows := range []cyborg.JournalPosition{none, at(first, 50), at(third, 51)} {
			reply := h.reportWith(t, old, follows, false)
			require.False(t, reply.Accepted)
			require.Equal(t, at(first, 51), reply.Known)
			require.Zero(t, reply.Exceed, "no later report is known")
		}
	}
	require.Empty(t, r.disagreements(t))

	// The agent has forgotten what its journal said. It says so until its next process.
	h.content.Attachments = []agentapi.Attachment{}
	require.True(t, h.reportWith(t, at(second, 100), at(first, 51), true).Accepted)
	require.True(t, h.reportWith(t, at(second, 101), at(first, 51), true).Accepted)

	// A true journal of another process has forgotten nothing.
	require.Equal(t, at(second, 101), h.reportWith(t, at(third, 1), none, false).Known)
	require.True(t, h.reportWith(t, at(third, 1), at(second, 101), false).Accepted)

	r.endOfFeed(t)
	history, err := r.Events(t.Context(), db.EventFilter{Hosts: []string{"h1"}}, cyborg.Cursor{}, 1000)
	require.NoError(t, err)
	told := 0
	for _, event := range history {
		if event.Axis == cyborg.AxisJournal {
			told++
		}
	}
	require.Equal(t, 1, told)
}

// TestHeartbeatsTellTheJournal: what the journal has got since the last report is
// known with the next heartbeat. Another process of the agent is believed when it
// says that its journal holds what the records know.
func TestHeartbeatsTellTheJournal(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	at := func(opening uuid.UUID, writes int64) cyborg.JournalPosition {
		return cyborg.JournalPosition{Opening: opening, Writes: writes}
	}
	none, first, second := cyborg.JournalPosition{}, uuid.New(), uuid.New()
	beat := func(journal, follows cyborg.JournalPosition) cyborg.JournalPosition {
		t.Helper()
		b := h.beat()
		b.Journal, b.Follows = journal, follows
		replies, err := r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{b})
		require.NoError(t, err)
		require.False(t, replies[0].Report)
		return replies[0].Known
	}
	recorded := func() cyborg.JournalPosition {
		return cyborg.JournalPosition{
			Opening: scalar[uuid.UUID](t, r, "SELECT coalesce(journal_opening, $1) FROM hosts", uuid.Nil),
			Writes:  scalar[int64](t, r, "SELECT journal_writes FROM hosts"),
		}
	}

	require.Zero(t, beat(at(first, 40), none), "only a report tells the first one")
	require.Zero(t, recorded())
	require.True(t, h.reportWith(t, at(first, 50), none, false).Accepted)
	require.Zero(t, beat(none, none), "of an earlier release")

	for _, test := range []struct {
		why                       string
		journal, follows, records cyborg.JournalPosition
	}{
		{"it has got further", at(first, 52), none, at(first, 52)},
		{"its machine has gone back to a snapshot, or a report was faster", at(first, 51), none, at(first, 52)},
		{"another process has said nothing of it yet", at(second, 90), none, at(first, 52)},
		{"no journal fails to hold what nobody has written", at(second, 0), at(first, 52), at(first, 52)},
		{"it knows another position", at(second, 90), at(first, 51), at(first, 52)},
		{"its journal holds it", at(second, 91), at(first, 52), at(second, 91)},
		{"it goes on", at(second, 92), at(first, 52), at(second, 92)},
	} {
		require.Equal(t, test.records, beat(test.journal, test.follows), test.why)
		require.Equal(t, test.records, recorded(), test.why)
	}
	require.Equal(t, at(second, 92), h.reportWith(t, at(first, 60), none, false).Known)
}

// TestOldJournalOfADifference: also a difference is refused before the journal is
// known to be true, and a report that comes after a newer one decides nothing.
func TestOldJournalOfADifference(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	late := h.next()
	late.Journal = cyborg.JournalPosition{Opening: uuid.New(), Writes: 49}
	base := h.next()
	base.Journal = cyborg.JournalPosition{Opening: uuid.New(), Writes: 1}
	require.True(t, r.merge(t, base).Accepted)

	reply := r.merge(t, late)
	require.False(t, reply.Accepted)
	require.Zero(t, reply.Known)

	h.journal("card0", cyborg.AttachmentDone)
	difference := since(base, h.next())
	difference.Journal = cyborg.JournalPosition{Opening: uuid.New(), Writes: 50}
	reply = r.merge(t, difference)
	require.False(t, reply.Accepted)
	require.Equal(t, base.Journal, reply.Known)
	require.Empty(t, r.disagreements(t))

	difference.Follows = base.Journal
	require.True(t, r.merge(t, difference).Accepted)
	require.Contains(t, r.disagreements(t), "card0")
}
