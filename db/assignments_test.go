package db_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/transcript"
)

// assignment returns the number of an operation.
func (r *records) assignment(t *testing.T, operation uuid.UUID) (number int64) {
	t.Helper()
	require.NoError(t, r.sql.QueryRow(t.Context(), "SELECT assignment FROM operations WHERE id = $1", operation).Scan(&number))
	return number
}

// merge records a report and returns the reply.
func (r *records) merge(t *testing.T, report agentapi.Report) agentapi.ReportReply {
	t.Helper()
	replies, err := r.MergeReports(t.Context(), []agentapi.Report{report})
	require.NoError(t, err)
	return replies[0]
}

// TestAssignmentsGrow: each operation has a greater number than those before
// it, and so have a decision about the same accelerator and a run that takes
// another's place.
func TestAssignmentsGrow(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")

	attached := r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded)
	require.Positive(t, attached.Assignment)
	require.Equal(t, attached.Assignment, r.assignment(t, attached.Operation))

	h.report(t) // the journal does not know of the attachment
	found := r.disagreements(t)["card0"]
	require.Zero(t, found.Assignment, "what was only found has no number")
	first, err := r.Decide(t.Context(), found)
	require.NoError(t, err)
	require.Greater(t, first.Assignment, attached.Assignment)
	second, err := r.Decide(t.Context(), found)
	require.NoError(t, err)
	require.Greater(t, second.Assignment, first.Assignment)
	second.Assignment = 0
	require.Equal(t, found, second)

	detached := r.begin(t, toDetach(a.UUID, nil))
	require.Greater(t, detached.Assignment, first.Assignment)

	takeover := db.Run{Operation: detached.Operation, ID: "second", Replaces: runOf(detached.Operation).ID}
	work, err := r.Begin(t.Context(), takeover)
	require.NoError(t, err)
	require.Greater(t, work.Assignment, detached.Assignment)
	to, err := r.CheckRun(t.Context(), takeover)
	require.NoError(t, err)
	require.Equal(t, work.Assignment, to.Assignment)
}

// TestDecideLooksAgain: nothing is decided about an attachment that an operation
// works on, or about which the records have changed their mind.
func TestDecideLooksAgain(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	a := h.ready(t, "card0")
	other := h.ready(t, "card1")
	r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded)
	r.do(t, toAttach(other.UUID, onHost("h1")), cyborg.OperationSucceeded)
	h.report(t)
	found := r.disagreements(t)["card0"]

	settled := func() {
		t.Helper()
		_, err := r.Decide(t.Context(), found)
		require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "%v", err)
	}

	work := r.begin(t, toDetach(a.UUID, nil))
	settled()
	r.end(t, work, cyborg.OperationSucceeded)
	settled()

	// Only the journal knows this handle, and an operation works on its accelerator.
	h.content.Attachments = append(h.content.Attachments, agentapi.Attachment{
		Backend: "fake", Deployable: "card1", Handle: "ghost", Operation: uuid.New(), State: cyborg.AttachmentDone,
	})
	h.report(t)
	var ghost db.Disagreement
	all, err := r.Disagreements(t.Context(), db.AttachmentPlace{}, "", 0)
	require.NoError(t, err)
	for _, d := range all {
		if d.Handle.Identity == "ghost" {
			ghost = d
		}
	}
	require.Equal(t, "card1", ghost.Deployable)
	work = r.begin(t, toDetach(other.UUID, nil))
	_, err = r.Decide(t.Context(), ghost)
	require.Equal(t, cyborg.ErrChanged, cyborg.ErrorKindOf(err), "%v", err)
	r.end(t, work, cyborg.OperationFailed)
	_, err = r.Decide(t.Context(), ghost)
	require.NoError(t, err)

	// Its handle is another holder's by now, and the host still shows it attached.
	r.do(t, toAttach(a.UUID, instance("vm")), cyborg.OperationSucceeded)
	settled()
	h.journal("card0", cyborg.AttachmentDone)
	h.report(t)
	decided, err := r.Decide(t.Context(), found)
	require.NoError(t, err)
	require.True(t, decided.Given())
	require.False(t, decided.Attach)
}

// TestDecideWaitsForAdmissions: a decision is made under the lock under which
// operations are admitted, so that their numbers are in the right order.
func TestDecideWaitsForAdmissions(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded)
	h.report(t)
	found := r.disagreements(t)["card0"]

	r.requireWaits(t, "h1", func() error {
		_, err := r.Decide(t.Context(), found)
		return err
	})
}

// TestSettledIsTold: the history of an accelerator says what its host has
// corrected, also where that changes nothing in the records.
func TestSettledIsTold(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded)
	h.journal("never-heard-of", cyborg.AttachmentDone)
	h.report(t)

	found := r.disagreements(t)
	settled := []db.Disagreement{found["card0"], found["never-heard-of"]}
	for i := range settled {
		settled[i].Assignment = int64(100 + i)
	}
	require.NoError(t, r.RecordSettled(t.Context(), settled))
	require.NoError(t, r.RecordSettled(t.Context(), settled)) // repeated, because its answer was lost

	// Here nothing was corrected: journal and records had agreed.
	agreed := found["card0"]
	agreed.Journal, agreed.Assignment = cyborg.AttachmentDone, 102
	require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{agreed}))

	told := map[string]map[string]any{}
	count := 0
	require.Eventually(t, func() bool { // readers see an event when all older transactions of the server have ended
		events, err := r.Events(t.Context(), db.EventFilter{}, cyborg.Cursor{}, 1000)
		require.NoError(t, err)
		count = 0
		for _, event := range events {
			if event.Axis == cyborg.AxisSettled {
				count++
				delete(event.Data, "assignment")
				delete(event.Data, "report")
				told[string(event.Subject.Kind)+" "+event.Subject.ID] = event.Data
			}
		}
		return len(told) == 2
	}, 5*time.Minute, 10*time.Millisecond)
	require.Equal(t, 2, count)
	require.Equal(t, map[string]map[string]any{
		"accelerator " + a.UUID.String(): {"identity": "card0.0", "deployable": "card0", "now": "attached", "journal": "", "recorded": "attached"},
		"host h1":                        {"identity": "never-heard-of.0", "deployable": "never-heard-of", "now": "detached", "journal": "attached", "recorded": ""},
	}, told)
}

// TestSettledIsToldOncePerReport: a round that decides from the report from which
// the round before decided has the host settle the same again. That is no
// second correction; one that a later report asks for is, and so is another
// decision from the same report.
func TestSettledIsToldOncePerReport(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	a := h.ready(t, "card0")
	r.do(t, toAttach(a.UUID, onHost("h1")), cyborg.OperationSucceeded)
	h.journal("card0", cyborg.AttachmentLost)
	h.journal("never-heard-of", cyborg.AttachmentDone)
	h.report(t)

	settle := func() {
		t.Helper()
		for _, found := range r.disagreements(t) {
			decided, err := r.Decide(t.Context(), found)
			require.NoError(t, err)
			require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{decided}))
		}
	}
	told := func() (out map[string]int) {
		t.Helper()
		rows, err := r.sql.Query(t.Context(), "SELECT data->>'identity' || ' ' || (data->>'now') FROM events WHERE axis = 'settled'")
		require.NoError(t, err)
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)

		out = map[string]int{}
		for _, one := range all {
			out[one]++
		}
		return out
	}

	settle()
	settle()
	require.Equal(t, map[string]int{"card0.0 attached": 1, "never-heard-of.0 detached": 1}, told())

	h.report(t)
	settle()
	require.Equal(t, map[string]int{"card0.0 attached": 2, "never-heard-of.0 detached": 2}, told(), "a later report says so again")

	found := r.disagreements(t)["card0"]
	found.Attach, found.Assignment = false, math.MaxInt32
	require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{found}))
	require.Equal(t, 1, told()["card0.0 detached"], "the records decided otherwise")
}

// TestSettledIsToldOnce: a report from before the settlement may be merged after the
// decision, with a greater number and the old entry. It asks for no second
// settlement, and fences nothing again. What the host need not change is not told.
func TestSettledIsToldOnce(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	lost, known := h.ready(t, "card0").UUID, h.ready(t, "card1").UUID
	past := r.do(t, toAttach(known, onHost("h1")), cyborg.OperationSucceeded)
	r.do(t, toDetach(known, nil), cyborg.OperationSucceeded)
	h.journal("card0", cyborg.AttachmentDone)
	h.attached("card1", past.Operation)
	h.report(t)

	told := func() int {
		t.Helper()
		return scalar[int](t, r, "SELECT count(*) FROM events WHERE axis = 'settled'")
	}
	decide := func(local string) db.Disagreement {
		t.Helper()
		decided, err := r.Decide(t.Context(), r.disagreements(t)[local])
		require.NoError(t, err)
		return decided
	}
	decided := []db.Disagreement{decide("card0"), decide("card1")}
	h.report(t)
	h.content.Backends[0].Options = map[string]any{"something": "else"}
	late := h.next() // made before the settlement, too

	for i := range decided {
		h.sequence++
		decided[i].Changed = new(true)
		decided[i].Observations = []cyborg.Observation{{Sequence: h.sequence, Backend: "fake", Device: h.devices()[i]}}
	}
	require.NoError(t, r.RecordSettled(t.Context(), decided))
	require.Equal(t, 2, told())
	require.Empty(t, r.disagreements(t))

	h.tell(t, late)
	require.Empty(t, r.disagreements(t))
	require.Nil(t, r.accelerator(t, lost).Fence)
	r.do(t, toAttach(lost, onHost("h1")), cyborg.OperationSucceeded)

	// A later report that has it still is right, and its host need not change anything.
	h.content.Attachments = h.content.Attachments[1:]
	h.report(t)
	again := decide("card1")
	again.Changed = new(false)
	require.NoError(t, r.RecordSettled(t.Context(), []db.Disagreement{again}))
	require.Equal(t, 2, told())
}

// TestFloorForANewJournal: an agent with a new journal is told which numbers
// count: those to come, and those of operations that are open.
func TestFloorForANewJournal(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 3)
	for _, name := range []string{"card0", "card1", "card2"} {
		h.ready(t, name)
	}
	ended := r.do(t, toAttach(h.accelerator(t, "card0").UUID, onHost("h1")), cyborg.OperationSucceeded)
	running := r.begin(t, toAttach(h.accelerator(t, "card1").UUID, onHost("h1")))
	admitted := r.admit(t, toAttach(h.accelerator(t, "card2").UUID, onHost("h1")))

	require.Nil(t, r.merge(t, h.next()).Floor, "it did not ask")
	asking := h.next()
	asking.AskFloor = true
	floor := r.merge(t, asking).Floor
	require.NotNil(t, floor)
	require.Equal(t, []int64{running.Assignment, r.assignment(t, admitted.ID)}, floor.Open)
	require.Greater(t, floor.Number, ended.Assignment)

	later := r.admit(t, toDetach(h.accelerator(t, "card0").UUID, nil))
	require.Greater(t, r.assignment(t, later.ID), floor.Number)

	asking.Sequence = 1
	require.Nil(t, r.merge(t, asking).Floor, "an old report is not accepted")
}

// TestAssignmentsExceedWhatHostsHaveSeen: after a restore of the database, hosts
// know of greater numbers than the records. A report or a heartbeat makes up
// for that.
func TestAssignmentsExceedWhatHostsHaveSeen(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	last := func() int64 { return scalar[int64](t, r, "SELECT last_assignment()") }
	const above = 1 << 20 // more than others can draw meanwhile

	report := h.next()
	report.Assignment = last() + 1000
	r.merge(t, report)
	require.Equal(t, report.Assignment+above, last())

	beat := h.beat()
	beats := func(number int64) error {
		beat.Assignment = number
		_, err := r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{beat})
		return err
	}
	require.NoError(t, beats(last()+1000))
	require.Equal(t, beat.Assignment+above, last())

	// Lower numbers change nothing, and absurd ones are not believed.
	known := last()
	for _, number := range []int64{-1, 1, known, 1 << 62} {
		require.NoError(t, beats(number))
		require.Equal(t, known, last())
	}

	// Another agent under the host's name is refused, and so is its number.
	beat.Instance = "other"
	require.Error(t, beats(known+1000))
	require.Equal(t, known, last())
}

// TestAbsurdAssignmentsAreNotBelieved: a host that says it has seen a number from
// years ahead does not put those of all others there, and keeps nobody else from
// being believed. That has one line in the log a minute.
func TestAbsurdAssignmentsAreNotBelieved(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	said := &transcript.Text{}
	r.Store = openStoreSaying(t, r.url, defaults(), said)
	liar, honest := r.addHost(t, "h1", 1), r.addHost(t, "h2", 1)
	last := func() int64 { return scalar[int64](t, r, "SELECT last_assignment()") }
	ahead := func(d time.Duration) int64 { return time.Now().Add(d).UnixMilli() << 10 }
	beats := func(of *host, number int64) agentapi.Heartbeat {
		beat := of.beat()
		beat.Assignment = number
		return beat
	}
	const year = 366 * 24 * time.Hour

	known := last()
	for _, number := range []int64{ahead(year + time.Hour), 1<<62 - 1, math.MaxInt64} {
		_, err := r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{beats(liar, number)})
		require.NoError(t, err)
		require.Equal(t, known, last(), number)
	}
	report := liar.next()
	report.Assignment = 1<<62 - 1
	require.True(t, r.merge(t, report).Accepted)
	require.Equal(t, known, last())
	require.Equal(t, 1, strings.Count(said.String(), "which nobody can have drawn"), said)

	lost := ahead(24 * time.Hour)
	_, err := r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{beats(liar, 1<<62-1), beats(honest, lost)})
	require.NoError(t, err)
	require.Greater(t, last(), lost)
	require.Less(t, last(), ahead(48*time.Hour))

	lost = ahead(year - time.Hour)
	_, err = r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{beats(honest, lost)})
	require.NoError(t, err)
	require.Greater(t, last(), lost)
}

// TestRenumber: the run of an open operation gets a greater number where its
// host has refused the one that it had; nobody else does.
func TestRenumber(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	a := r.addHost(t, "h1", 1).ready(t, "card0")
	r.exec(t, "UPDATE hosts SET instance = 'agent-1'")
	work := r.begin(t, toAttach(a.UUID, onHost("h1")))

	to, err := r.Renumber(t.Context(), runOf(work.Operation))
	require.NoError(t, err)
	require.Greater(t, to.Assignment, work.Assignment)
	require.Equal(t, "agent-1", to.Instance)
	again, err := r.CheckRun(t.Context(), runOf(work.Operation))
	require.NoError(t, err)
	require.Equal(t, to, again)

	_, err = r.Renumber(t.Context(), db.Run{Operation: work.Operation, ID: "other"})
	require.Equal(t, cyborg.ErrSuperseded, cyborg.ErrorKindOf(err))
	r.end(t, work, cyborg.OperationSucceeded)
	_, err = r.Renumber(t.Context(), runOf(work.Operation))
	require.Equal(t, cyborg.ErrSuperseded, cyborg.ErrorKindOf(err))
}
