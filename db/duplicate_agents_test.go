package db_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// agent is one that speaks for a host of the tests.
type speaking struct {
	*host
	instance, address string
}

func (h *host) by(boot, instance, address string) *speaking {
	other := *h
	other.boot = boot
	return &speaking{&other, instance, address}
}

func (s *speaking) tell(t testing.TB) (cyborg.ReportReply, error) {
	t.Helper()
	report := s.next()
	report.Instance, report.Address = s.instance, s.address
	replies, err := s.records.MergeReports(t.Context(), []cyborg.Report{report})
	s.reply = replies[0]
	return s.reply, err
}

func (s *speaking) sign() cyborg.Heartbeat {
	beat := s.beat()
	beat.Instance, beat.Address = s.instance, s.address
	return beat
}

func (s *speaking) live(t testing.TB) (cyborg.HeartbeatReply, error) {
	t.Helper()
	replies, err := s.records.RecordHeartbeats(t.Context(), []cyborg.Heartbeat{s.sign()})
	return replies[0], err
}

func requireRefused(t testing.TB, err error) {
	t.Helper()
	require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err), "%v", err)
	require.ErrorContains(t, err, `host "h1" has another agent, heard from 10.0.0.1`)
}

// ago shifts what is recorded of an agent's life into the past.
func (h *host) ago(t testing.TB, d time.Duration) {
	t.Helper()
	h.records.exec(t, "UPDATE hosts SET last_seen = last_seen - $2::interval WHERE name = $1", h.name, d)
	h.records.exec(t, "UPDATE rivals SET last_seen = last_seen - $2::interval, since = since - $2::interval WHERE host = $1", h.name, d)
}

// rivalry is a host whose agent is heard, and a second agent under its name.
func rivalry(t testing.TB) (first, second *speaking) {
	t.Helper()
	r := newRecordsWith(t, db.Options{SilentAfter: 25 * time.Minute}) // long, so that it does not matter how slow the machine is
	bare := &host{records: r, name: "h1", content: content(2)}
	first, second = bare.by("boot-1", "one", "10.0.0.1"), bare.by("boot-2", "two", "10.0.0.2")
	_, err := first.tell(t)
	require.NoError(t, err)
	_, err = first.live(t)
	require.NoError(t, err)
	second.content = content(1)
	second.sequence = 1000
	return first, second
}

// A second agent under a name is refused while the first is heard, and nothing that it says is recorded of the host; who
// looks sees it.
func TestASecondAgentIsRefused(t *testing.T) {
	t.Parallel()
	first, second := rivalry(t)
	r := first.records
	_, err := second.live(t)
	requireRefused(t, err)
	_, err = second.tell(t)
	requireRefused(t, err)

	found, err := r.Host(t.Context(), "h1")
	require.NoError(t, err)
	require.Equal(t, "boot-1", found.BootID)
	require.Equal(t, "one", found.Instance)
	require.Equal(t, "10.0.0.1", found.Address)
	require.Equal(t, 2, found.Devices)
	require.False(t, found.Silent)
	require.Len(t, found.DuplicateAgents, 1)
	require.Equal(t, "two", found.DuplicateAgents[0].Instance)
	require.Equal(t, "boot-2", found.DuplicateAgents[0].BootID)
	require.Equal(t, "10.0.0.2", found.DuplicateAgents[0].Address)

	reply, err := first.live(t)
	require.NoError(t, err)
	require.Equal(t, []string{"10.0.0.2"}, reply.DuplicateAgents, "the first is told, too")

	services, err := r.Services(t.Context(), db.Page{})
	require.NoError(t, err)
	require.Len(t, services, 2)
	require.Equal(t, "one", services[0].Instance)
	require.False(t, services[0].Refused)
	require.Equal(t, "two", services[1].Instance)
	require.True(t, services[1].Refused)
	page, err := r.Services(t.Context(), db.Page{Limit: 1, Marker: services[0].Key()})
	require.NoError(t, err)
	require.Equal(t, services[1:], page, "no page leaves one out")

	health, err := db.Examine(t.Context(), r.url)
	require.NoError(t, err)
	require.Len(t, health.DuplicateAgents, 1)
	require.Equal(t, "h1", health.DuplicateAgents[0].Host)

	// It has gone: nobody is told of it any more.
	r.exec(t, "UPDATE rivals SET last_seen = last_seen - interval '1 hour'")
	found, err = r.Host(t.Context(), "h1")
	require.NoError(t, err)
	require.Empty(t, found.DuplicateAgents)
	reply, err = first.live(t)
	require.NoError(t, err)
	require.Empty(t, reply.DuplicateAgents)
}

// Reports and heartbeats of both in one batch.
func TestASecondAgentInTheSameBatch(t *testing.T) {
	t.Parallel()
	first, second := rivalry(t)
	r := first.records
	first.content = content(3)
	one, two := first.next(), second.next()
	one.Instance, one.Address, two.Instance, two.Address = first.instance, first.address, second.instance, second.address
	replies, err := r.MergeReports(t.Context(), []cyborg.Report{two, one, two})
	requireRefused(t, err)
	require.False(t, replies[0].Accepted)
	require.True(t, replies[1].Accepted, "a higher number of a rival keeps nobody from being heard")
	first.reply = replies[1]
	require.Len(t, first.accelerators(t), 3)

	beats, err := r.RecordHeartbeats(t.Context(), []cyborg.Heartbeat{first.sign(), second.sign()})
	requireRefused(t, err)
	require.Equal(t, cyborg.HeartbeatReply{DuplicateAgents: []string{"10.0.0.2"}}, beats[0])
}

// The same agent after a restart has the same instance, and is heard at once. One that lost its state directory, or whose
// machine has booted, has another, and is heard when the one before would be silent.
func TestAnAgentThatComesBack(t *testing.T) {
	t.Parallel()
	for name, boot := range map[string]string{"state lost": "boot-1", "booted": "boot-3"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, _ := rivalry(t)
			again := first.by("boot-1", "one", "10.0.0.9")
			_, err := again.live(t)
			require.NoError(t, err)
			again.sequence = first.sequence
			reply, err := again.tell(t)
			require.NoError(t, err)
			require.True(t, reply.Accepted)

			back := again.by(boot, "three", "10.0.0.1")
			back.sequence = again.sequence
			first.ago(t, 20*time.Minute)
			_, err = back.tell(t)
			require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err), "%v", err)
			for range 2 {
				first.ago(t, 10*time.Minute)
				_, err = back.live(t)
				require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err), "%v", err)
			}
			first.ago(t, 6*time.Minute)
			reported, err := back.live(t)
			require.NoError(t, err)
			require.True(t, reported.Report, "it is asked for its report")
			reply, err = back.tell(t)
			require.NoError(t, err)
			require.True(t, reply.Accepted)
			found, err := first.records.Host(t.Context(), "h1")
			require.NoError(t, err)
			require.Equal(t, "three", found.Instance)
			require.Empty(t, found.DuplicateAgents)
			_, err = again.live(t)
			require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err), "now the other one is late: %v", err)
		})
	}
}

// A host that has been silent for long has its next agent at once.
func TestTheNextAgentOfASilentHost(t *testing.T) {
	t.Parallel()
	first, second := rivalry(t)
	first.ago(t, time.Hour)
	reply, err := second.live(t)
	require.NoError(t, err)
	require.True(t, reply.Report)
	found, err := first.records.Host(t.Context(), "h1")
	require.NoError(t, err)
	require.True(t, found.Silent, "its heartbeat is none of the agent that is recorded")
	answer, err := second.tell(t)
	require.NoError(t, err)
	require.True(t, answer.Accepted)
}

// While no server heard anybody, the first did not fall silent by its own fault: it has as long to come back as others.
func TestNobodySucceedsAfterATimeWithoutServers(t *testing.T) {
	t.Parallel()
	first, second := rivalry(t)
	_, err := second.live(t)
	requireRefused(t, err)
	first.ago(t, time.Hour)
	_, err = second.live(t)
	requireRefused(t, err)
	_, err = second.tell(t)
	requireRefused(t, err)
	_, err = first.live(t)
	require.NoError(t, err)
	_, err = second.live(t)
	requireRefused(t, err)
}

// Agents of an earlier release do not say who they are: one goes on as before, beside one that does it is told apart by its
// boot, and an upgrade or a downgrade is heard at once.
func TestAgentsOfAnEarlierRelease(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	old := r.addHost(t, "h1", 1)
	old.boot = "boot-2"
	require.True(t, old.report(t).Accepted)
	upgraded := old.by("boot-2", "one", "10.0.0.1")
	reply, err := upgraded.tell(t)
	require.NoError(t, err)
	require.True(t, reply.Accepted)
	_, err = old.by("boot-3", "", "").tell(t)
	requireRefused(t, err)
	downgraded := upgraded.by("boot-2", "", "10.0.0.1")
	downgraded.sequence = upgraded.sequence
	reply, err = downgraded.tell(t)
	require.NoError(t, err)
	require.True(t, reply.Accepted)
}

func TestAForgottenHostHasNoRivals(t *testing.T) {
	t.Parallel()
	first, second := rivalry(t)
	_, err := second.live(t)
	requireRefused(t, err)
	first.ago(t, time.Hour)
	require.NoError(t, first.records.ForgetHost(context.Background(), "h1", alice()))
	require.Zero(t, scalar[int](t, first.records, "SELECT count(*) FROM rivals"))
}
