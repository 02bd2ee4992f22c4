package ingest

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/records"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// An agent may have lost its journal, or have an old copy of it: its state
// directory was restored from a backup, or its machine has gone back to a
// snapshot. An old copy lists what was undone since, so nothing of a report that
// was made with it is recorded. Only the agent can tell whether its journal holds
// the position that the records know, so each new process of it is asked once.

// mustProve reports whether a report may have been made with an old journal: the
// agent has still to say that its journal holds the known position.
func mustProve(r *agentapi.Report, known cyborg.JournalPosition) bool {
	switch {
	case r.Journal.Opening == uuid.Nil || known.Opening == uuid.Nil: // a release that had no positions
		return false
	case r.Journal.Opening == known.Opening:
		return r.Journal.Writes < known.Writes
	default:
		return r.Follows != known
	}
}

// tellsJournal is an SQL condition on a heartbeat b of the host h: the position of
// the agent's journal in it is to be recorded. It goes on from the one that is
// recorded: the same process has got further, or another one has written something
// and says that its journal holds that. Whether a journal is an old copy only reports decide, and the first
// position comes with one.
const tellsJournal = `coalesce(h.journal_opening = b.opening AND h.journal_writes < b.writes
	OR h.journal_opening = b.followed AND h.journal_writes = b.followed_writes AND b.writes > 0, false)`

// queueLostJournals writes into the histories of these reports' hosts that the
// agent has emptied its journal, where it has. With these reports the records get
// another position, so each loss is told once. See records.Queue.
func queueLostJournals(tx pgx.Tx, reports []agentapi.Report, which []int, known map[string]hostRow) {
	var lost []string
	for _, i := range which {
		if r := &reports[i]; hasForgotten(r, known[r.Host]) {
			lost = append(lost, r.Host)
		}
	}

	if len(lost) > 0 {
		records.Queue(tx, "SELECT journals_lost($1)", lost)
	}
}

// hasForgotten reports whether the agent has emptied its journal since what is known of
// its host.
func hasForgotten(r *agentapi.Report, host hostRow) bool {
	return r.Forgot && r.Journal.Opening != host.journal().Opening
}

// openingOf returns the process that has opened the journal of a report, or nil
// where the report does not name it.
func openingOf(r *agentapi.Report) *uuid.UUID {
	if r.Journal.Opening == uuid.Nil {
		return nil
	}
	return &r.Journal.Opening
}
