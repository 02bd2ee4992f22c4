package db_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/transcript"
)

// fakeAgent is an agent that reports for a host of the tests.
type fakeAgent struct {
	*host
	instance, address string
}

// by is an agent of the host, with its own boot, instance and address.
func (h *host) by(boot, instance, address string) *fakeAgent {
	other := *h
	other.boot = boot
	return &fakeAgent{&other, instance, address}
}

// sendReport sends the agent's next report.
func (a *fakeAgent) sendReport(t testing.TB) (agentapi.ReportReply, error) {
	t.Helper()
	report := a.next()
	report.Instance, report.Address = a.instance, a.address
	replies, err := a.records.MergeReports(t.Context(), []agentapi.Report{report})
	a.reply = replies[0]
	return a.reply, err
}

// heartbeat is the heartbeat that the agent would send now.
func (a *fakeAgent) heartbeat() agentapi.Heartbeat {
	beat := a.beat()
	beat.Instance, beat.Address = a.instance, a.address
	return beat
}

// sendHeartbeat sends a heartbeat.
func (a *fakeAgent) sendHeartbeat(t testing.TB) (agentapi.HeartbeatReply, error) {
	t.Helper()
	replies, err := a.records.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{a.heartbeat()})
	return replies[0], err
}

// requireRefused requires the error that a second agent of h1 gets.
func requireRefused(t testing.TB, err error) {
	t.Helper()
	require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err), "%v", err)
	require.ErrorContains(t, err, `host "h1" has another agent, heard from 10.0.0.1`)
}

// ago shifts the recorded times of a host's agents into the past.
func (h *host) ago(t testing.TB, d time.Duration) {
	t.Helper()
	h.records.exec(t, "UPDATE hosts SET last_seen = last_seen - $2::interval WHERE name = $1", h.name, d)
	h.records.exec(t, "UPDATE duplicate_agents SET last_seen = last_seen - $2::interval, since = since - $2::interval WHERE host = $1", h.name, d)
}

// twoAgents returns the agent of a host, which is heard, and a second agent
// under the host's name.
func twoAgents(t testing.TB) (first, second *fakeAgent) {
	t.Helper()
	r := newRecordsWith(t, db.Options{SilentAfter: 25 * time.Minute}) // long, so that it does not matter how slow the machine is
	bare := &host{records: r, name: "h1", content: content(2)}

	first, second = bare.by("boot-1", "one", "10.0.0.1"), bare.by("boot-2", "two", "10.0.0.2")
	_, err := first.sendReport(t)
	require.NoError(t, err)
	_, err = first.sendHeartbeat(t)
	require.NoError(t, err)

	second.content = content(1)
	second.sequence = 1000
	return first, second
}

// TestDuplicateAgentIsRefused: while the first agent is heard, a second one is
// refused and nothing of its messages is recorded. Every list of agents shows
// it as refused.
func TestDuplicateAgentIsRefused(t *testing.T) {
	t.Parallel()
	first, second := twoAgents(t)
	r := first.records
	_, err := second.sendHeartbeat(t)
	requireRefused(t, err)
	_, err = second.sendReport(t)
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

	reply, err := first.sendHeartbeat(t)
	require.NoError(t, err)
	require.Equal(t, []string{"10.0.0.2"}, reply.DuplicateAgents, "the first agent learns of it, too")

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

	health, err := db.CheckHealth(t.Context(), r.url)
	require.NoError(t, err)
	require.Len(t, health.DuplicateAgents, 1)
	require.Equal(t, "h1", health.DuplicateAgents[0].Host)

	// A duplicate that is no longer heard is no longer listed.
	r.exec(t, "UPDATE duplicate_agents SET last_seen = last_seen - interval '1 hour'")
	found, err = r.Host(t.Context(), "h1")
	require.NoError(t, err)
	require.Empty(t, found.DuplicateAgents)
	reply, err = first.sendHeartbeat(t)
	require.NoError(t, err)
	require.Empty(t, reply.DuplicateAgents)
}

// TestNamesThatDifferInCaseOnly: a host whose name differs from a recorded one in
// upper and lower case only is not recorded, alone, in one batch or at the same
// time. The recorded one goes on.
func TestNamesThatDifferInCaseOnly(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	lower := r.addHost(t, "h1", 1)
	upper := unreported(r, "H1")

	_, err := r.MergeReports(t.Context(), []agentapi.Report{upper.next()})
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, `the host "H1" cannot be recorded: there is the host "h1"`)
	_, err = r.MergeReports(t.Context(), []agentapi.Report{lower.next()})
	require.NoError(t, err)

	_, err = r.MergeReports(t.Context(), []agentapi.Report{unreported(r, "Rack").next(), unreported(r, "rack").next()})
	require.ErrorContains(t, err, `the host "rack" cannot be recorded: there is the host "Rack"`)

	errs := make([]error, 8)
	var all sync.WaitGroup
	for n := range errs {
		name := []string{"twin", "Twin", "tWin", "twIn", "twiN", "TWin", "TwIn", "TwiN"}[n]
		report := unreported(r, name).next()
		all.Go(func() { _, errs[n] = r.MergeReports(t.Context(), []agentapi.Report{report}) })
	}
	all.Wait()
	recorded := 0
	for _, err := range errs {
		if err == nil {
			recorded++
			continue
		}
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "%v", err)
	}
	require.Equal(t, 1, recorded)

	hosts, err := r.Hosts(t.Context(), db.Page{Limit: 10})
	require.NoError(t, err)
	require.Len(t, hosts, 3)
}

// unreported is a host that has not reported yet.
func unreported(r *records, name string) *host {
	return &host{records: r, name: name, boot: "boot-1", content: content(1)}
}

// TestDuplicateAgentInTheSameBatch: each of two agents gets its own answer
// where their messages are in one batch.
func TestDuplicateAgentInTheSameBatch(t *testing.T) {
	t.Parallel()
	first, second := twoAgents(t)
	r := first.records
	first.content = content(3)
	one, two := first.next(), second.next()
	one.Instance, one.Address, two.Instance, two.Address = first.instance, first.address, second.instance, second.address

	replies, err := r.MergeReports(t.Context(), []agentapi.Report{two, one, two})
	requireRefused(t, err)
	require.False(t, replies[0].Accepted)
	require.True(t, replies[1].Accepted, "a duplicate with a higher sequence does not hide the report")
	first.reply = replies[1]
	require.Len(t, first.accelerators(t), 3)

	beats, err := r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{first.heartbeat(), second.heartbeat()})
	requireRefused(t, err)
	require.Equal(t, agentapi.HeartbeatReply{DuplicateAgents: []string{"10.0.0.2"}}, beats[0])
}

// TestReturningAgentKeepsItsHost: an agent keeps its instance over a restart,
// and is accepted at once. After it lost its state directory, or its machine
// booted, it has another instance, and is accepted once the one before counts
// as silent.
func TestReturningAgentKeepsItsHost(t *testing.T) {
	t.Parallel()
	for name, boot := range map[string]string{"state lost": "boot-1", "booted": "boot-3"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, _ := twoAgents(t)
			again := first.by("boot-1", "one", "10.0.0.9")
			_, err := again.sendHeartbeat(t)
			require.NoError(t, err)

			again.sequence = first.sequence
			reply, err := again.sendReport(t)
			require.NoError(t, err)
			require.True(t, reply.Accepted)

			back := again.by(boot, "three", "10.0.0.1")
			back.sequence = again.sequence
			first.ago(t, 20*time.Minute)
			_, err = back.sendReport(t)
			require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err), "%v", err)
			for range 2 {
				first.ago(t, 10*time.Minute)
				_, err = back.sendHeartbeat(t)
				require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err), "%v", err)
			}

			first.ago(t, 6*time.Minute)
			reported, err := back.sendHeartbeat(t)
			require.NoError(t, err)
			require.True(t, reported.Report, "it is asked for its report")
			reply, err = back.sendReport(t)
			require.NoError(t, err)
			require.True(t, reply.Accepted)

			found, err := first.records.Host(t.Context(), "h1")
			require.NoError(t, err)
			require.Equal(t, "three", found.Instance)
			require.Empty(t, found.DuplicateAgents)
			_, err = again.sendHeartbeat(t)
			require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err), "the former agent is the duplicate now: %v", err)
		})
	}
}

// TestAgentTakesOverASilentHost: a host that has been silent for long accepts
// another agent at once.
func TestAgentTakesOverASilentHost(t *testing.T) {
	t.Parallel()
	first, second := twoAgents(t)
	first.ago(t, time.Hour)
	reply, err := second.sendHeartbeat(t)
	require.NoError(t, err)
	require.True(t, reply.Report)
	found, err := first.records.Host(t.Context(), "h1")
	require.NoError(t, err)
	require.True(t, found.Silent, "a heartbeat of another agent is no sign of life of the recorded one")

	answer, err := second.sendReport(t)
	require.NoError(t, err)
	require.True(t, answer.Accepted)
}

// TestNoTakeoverAfterAServerOutage: after an outage of all servers the first
// agent keeps its host, although it looks silent. A known duplicate must first
// be heard for as long as an agent may be silent.
func TestNoTakeoverAfterAServerOutage(t *testing.T) {
	t.Parallel()
	first, second := twoAgents(t)
	_, err := second.sendHeartbeat(t)
	requireRefused(t, err)

	first.ago(t, time.Hour)
	_, err = second.sendHeartbeat(t)
	requireRefused(t, err)
	_, err = second.sendReport(t)
	requireRefused(t, err)

	_, err = first.sendHeartbeat(t)
	require.NoError(t, err)
	_, err = second.sendHeartbeat(t)
	requireRefused(t, err)
}

// TestAForgottenHostHasNoDuplicateAgents: the records of duplicates go with
// their host.
func TestAForgottenHostHasNoDuplicateAgents(t *testing.T) {
	t.Parallel()
	first, second := twoAgents(t)
	_, err := second.sendHeartbeat(t)
	requireRefused(t, err)
	first.ago(t, time.Hour)
	require.NoError(t, first.records.ForgetHost(context.Background(), "h1", alice()))
	require.Zero(t, scalar[int](t, first.records, "SELECT count(*) FROM duplicate_agents"))
}

// linesSince returns how many lines in the log a host may have had since then: one
// a minute, however slow the machine is.
func linesSince(began time.Time) int { return 1 + int(time.Since(began)/time.Minute) }

// TestFreshInstancesLeaveNoRows: who speaks for a host as another agent each time
// is refused each time, and is neither recorded nor logged without bound. Whom
// nobody hears any more makes room for the next one.
func TestFreshInstancesLeaveNoRows(t *testing.T) {
	t.Parallel()
	first, second := twoAgents(t)
	r := first.records
	began := time.Now()
	said := &transcript.Text{}
	r.Store = openStoreSaying(t, r.url, db.Options{SilentAfter: 25 * time.Minute}, said)
	rows := func() int { return scalar[int](t, r, "SELECT count(*) FROM duplicate_agents") }
	recorded := func(instance string) bool {
		return scalar[bool](t, r, "SELECT EXISTS (SELECT FROM duplicate_agents WHERE instance = '"+instance+"')")
	}

	_, err := second.sendHeartbeat(t)
	requireRefused(t, err)

	fresh := func(n int) *fakeAgent {
		other := *second
		other.instance, other.address = fmt.Sprint("fresh", n), fmt.Sprintf("10.0.1.%d", n/2)
		return &other
	}

	var beats []agentapi.Heartbeat
	for n := range 15 {
		_, err := fresh(n).sendHeartbeat(t)
		requireRefused(t, err)
		_, err = fresh(n).sendReport(t)
		requireRefused(t, err)
		beats = append(beats, fresh(100+n).heartbeat())
	}
	require.Equal(t, 16, rows())

	_, err = r.RecordHeartbeats(t.Context(), beats)
	require.Equal(t, 15, strings.Count(fmt.Sprint(err), "has another agent"))
	require.Equal(t, 20, rows())
	_, err = fresh(50).sendReport(t)
	requireRefused(t, err)
	require.Equal(t, 20, rows())
	require.False(t, recorded("fresh50"))
	_, err = second.sendHeartbeat(t)
	requireRefused(t, err)
	require.LessOrEqual(t, strings.Count(said.String(), "a second agent speaks for a host"), linesSince(began), said)

	// Each address is told once, and so many of them.
	reply, err := first.sendHeartbeat(t)
	require.NoError(t, err)
	require.True(t, slices.IsSorted(reply.DuplicateAgents))
	require.Len(t, slices.Compact(slices.Clone(reply.DuplicateAgents)), len(reply.DuplicateAgents))
	r.exec(t, `INSERT INTO duplicate_agents (host, instance, boot_id, agent_version, address)
		SELECT 'h1', 'earlier' || n, 'b', '1', '10.0.2.' || n FROM generate_series(1, 1000) AS n`)
	reply, err = first.sendHeartbeat(t)
	require.NoError(t, err)
	require.Len(t, reply.DuplicateAgents, 20)
	found, err := r.Host(t.Context(), "h1")
	require.NoError(t, err)
	require.Len(t, found.DuplicateAgents, 20)

	// Those that are silent make room, but for the last ones.
	// Those of one batch were heard at the same time.
	r.exec(t, "UPDATE duplicate_agents SET last_seen = now() - interval '1 hour', since = since - interval '2 hours'")
	r.exec(t, "UPDATE duplicate_agents SET last_seen = last_seen + interval '2 s' WHERE instance = 'two'")
	_, err = fresh(50).sendHeartbeat(t)
	requireRefused(t, err)
	require.Equal(t, 10, rows())
	require.True(t, recorded("two"), "it was heard last")
	_, err = fresh(50).sendHeartbeat(t)
	requireRefused(t, err)
	require.True(t, recorded("fresh50"))
}
