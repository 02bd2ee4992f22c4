package db_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// These tests are about hosts that were not heard since the database began an
// epoch: it may have lost to whom their handles were given.

const unheard = "has not said what it has since the database was started, restored or failed over"

// restart begins an epoch, as far as the records see it: PostgreSQL was started at
// another time.
func (r *records) restart(t testing.TB) {
	t.Helper()
	r.exec(t, "UPDATE feed_epochs SET server_started = server_started - interval '1 day'")
}

// bind admits a bind of a new accelerator request for a new instance.
func (r *records) bind(t *testing.T, a *cyborg.Accelerator) error {
	t.Helper()
	_, err := r.Admit(t.Context(), toBind(a.Host, instance(uuid.NewString()), a.ProviderUUID, r.request(t, "one")...))
	return err
}

// requireWaiting: an operation does not begin before its host was heard.
func (r *records) requireWaiting(t *testing.T, id uuid.UUID) {
	t.Helper()
	_, err := r.Begin(t.Context(), runOf(id))
	requireKind(t, cyborg.ErrUnavailable, err, unheard, "h1")
	require.Contains(t, cyborg.AsError(err).Hint, "next heartbeat")
}

// TestNobodyGetsWhatAFailoverHasLost: a failover loses that a handle was given to
// its host. From the start of the new primary on nobody gets it, and what was not
// lost is given again as soon as the host was heard.
func TestNobodyGetsWhatAFailoverHasLost(t *testing.T) {
	t.Parallel()
	pair := startPair(t, "")
	h := pair.old.addHost(t, "h1", 2)
	lost, free := h.ready(t, "card0"), h.ready(t, "card1")
	h.report(t)
	pair.old.profile(t, "one", one())
	pair.waitForStandby(t)

	stopServer(t, pair.standby)
	work := pair.old.do(t, toAttach(lost.UUID, onHost("h1")), cyborg.OperationSucceeded)
	h.attached("card0", work.Operation)
	h.report(t)
	pair.standby = startServer(t, pair.standbyDir, pair.standbyConfig("unreachable"))

	r := pair.failOver(t)
	h.records = r
	requireKind(t, cyborg.ErrUnavailable, r.bind(t, lost), unheard)
	requireKind(t, cyborg.ErrUnavailable, r.bind(t, free), unheard)
	attach, other := r.admit(t, toAttach(lost.UUID, instance("vm1"))).ID, r.admit(t, toAttach(free.UUID, instance("vm1"))).ID
	r.requireWaiting(t, attach)
	r.requireWaiting(t, other)

	require.True(t, h.asked(t), "the records do not have what the host has")
	r.requireWaiting(t, attach)
	h.report(t)
	_, err := r.Begin(t.Context(), runOf(attach))
	requireKind(t, cyborg.ErrChanged, err, unsettled)
	require.NoError(t, r.End(t.Context(), runOf(attach), cyborg.Outcome{Operation: attach, State: cyborg.OperationFailed, Error: cyborg.AsError(err)}))
	r.requireUnsettled(t, lost.UUID, uuid.Nil)
	requireKind(t, cyborg.ErrChanged, r.bind(t, lost), unsettled)

	_, err = r.Begin(t.Context(), runOf(other))
	require.NoError(t, err)
}

// TestAHeartbeatIsEnough: a host that has exactly what is recorded of it says so
// with its first heartbeat of an epoch, and sends no report.
func TestAHeartbeatIsEnough(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addPCIHost(t, "h1", 5)
	cards := []*cyborg.Accelerator{h.ready(t, "card0"), h.ready(t, "card1"), h.ready(t, "card2"), h.ready(t, "card4")}
	h.report(t)
	r.profile(t, "one", one())
	require.NoError(t, r.bind(t, cards[3]))

	r.restart(t)
	requireKind(t, cyborg.ErrUnavailable, r.bind(t, cards[3]), unheard)
	waiting := []uuid.UUID{
		r.admit(t, toAttach(cards[0].UUID, instance("vm1"))).ID,
		r.admit(t, toProgram(cards[1].UUID)).ID,
		r.admit(t, toWhitelist("h1", h.accelerator(t, "card3"))).ID,
	}
	retire := r.admit(t, toRetire(cards[2])).ID
	for _, id := range waiting {
		r.requireWaiting(t, id)
	}
	_, err := r.Begin(t.Context(), runOf(retire))
	require.NoError(t, err, "it gives nothing to anybody")

	require.False(t, h.asked(t))
	require.NoError(t, r.bind(t, cards[3]))
	for _, id := range waiting {
		_, err := r.Begin(t.Context(), runOf(id))
		require.NoError(t, err)
	}
}

// TestTheFirstHeartbeatBeginsTheEpoch: nobody has written an event since the start
// of PostgreSQL. What the first heartbeat says counts for the epoch of that start.
func TestTheFirstHeartbeatBeginsTheEpoch(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	card := h.ready(t, "card0")
	h.report(t)
	r.profile(t, "one", one())

	r.restart(t)
	require.False(t, h.asked(t))
	require.Equal(t, 2, scalar[int](t, r, "SELECT count(*) FROM feed_epochs"))
	require.NoError(t, r.bind(t, card))

	h.hear(t)
	require.Equal(t, 2, scalar[int](t, r, "SELECT count(*) FROM feed_epochs"))
}

// TestHeartbeatsThatDoNotSayWhatTheHostHas: the host is asked for a report, and is
// heard with it, whether that says something new or not.
func TestHeartbeatsThatDoNotSayWhatTheHostHas(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	card := h.ready(t, "card0")
	h.report(t)
	attach := r.admit(t, toAttach(card.UUID, instance("vm1"))).ID

	for name, change := range map[string]func(b *agentapi.Heartbeat){
		"an earlier release":   func(b *agentapi.Heartbeat) { b.Present = "" },
		"a report is to come":  func(b *agentapi.Heartbeat) { b.Present = "of a report that was not sent yet" },
		"another boot":         func(b *agentapi.Heartbeat) { b.BootID = "boot-2" },
		"what cannot be meant": func(b *agentapi.Heartbeat) { b.Present = "\x00" },
	} {
		r.restart(t)
		r.exec(t, "UPDATE hosts SET digest = CASE WHEN $1 THEN '' ELSE digest END", name == "an earlier release")
		b := h.beat()
		change(&b)
		replies, err := r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{b})
		require.NoError(t, err)
		require.True(t, replies[0].Report, name)
		r.requireWaiting(t, attach)

		h.report(t)
		require.False(t, h.asked(t), name)
	}

	// Neither report needs a heartbeat after it.
	r.restart(t)
	r.requireWaiting(t, attach)
	h.report(t)
	_, err := r.Begin(t.Context(), runOf(attach))
	require.NoError(t, err)

	another := r.admit(t, toAttach(h.ready(t, "card1").UUID, instance("vm1"))).ID
	r.restart(t)
	r.requireWaiting(t, another)
	h.content.Backends[0].Options = map[string]any{"something": "else"}
	h.report(t)
	_, err = r.Begin(t.Context(), runOf(another))
	require.NoError(t, err)
}

// TestASilentHostIsNotWaitedFor: a host that has said nothing for so long that it
// is silent keeps nothing waiting. After a restore every host was last heard long
// ago, so the time counts from the beginning of the epoch.
func TestASilentHostIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	card := h.ready(t, "card0")
	h.report(t)
	r.profile(t, "one", one())

	r.restart(t)
	h.fall(t)
	attach := r.admit(t, toAttach(card.UUID, instance("vm1"))).ID // this begins the epoch
	r.requireWaiting(t, attach)

	r.exec(t, "UPDATE feed_epochs SET began_at = began_at - interval '1 hour'")
	_, err := r.Begin(t.Context(), runOf(attach))
	require.NoError(t, err)
	r.end(t, cyborg.Work{Operation: attach}, cyborg.OperationFailed)
	require.NoError(t, r.bind(t, card))

	// One that is heard, and does not say what it has, is not silent.
	b := h.beat()
	b.Present = "something else"
	_, err = r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{b})
	require.NoError(t, err)
	requireKind(t, cyborg.ErrUnavailable, r.bind(t, card), unheard)
}

// TestABindThatHasWaitedForItsHost fails, and says why.
func TestABindThatHasWaitedForItsHost(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	card := h.ready(t, "card0")
	r.profile(t, "one", one())
	arqs := r.request(t, "one")
	r.restart(t)

	late := toBind("h1", instance(uuid.NewString()), card.ProviderUUID, arqs...)
	edit(&late, func(b *cyborg.BindRequest) { b.Within = 0 })
	_, err := r.Admit(t.Context(), late)
	requireKind(t, cyborg.ErrTimeout, err, unheard, "as long as it may")
	got := r.arq(t, arqs[0].UUID)
	require.Equal(t, cyborg.ARQBindFailed, got.State)
	require.Contains(t, got.Reason, unheard)
}

// TestABindThatLoadsWaitsForItsHost: it was admitted before PostgreSQL was started
// again, and its image would overwrite what somebody may have got since.
func TestABindThatLoadsWaitsForItsHost(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	card := h.ready(t, "card0")
	h.report(t)
	r.profile(t, "loaded", map[string]string{"resources:FPGA": "1", "accel:bitstream_id": uuid.NewString()})
	arqs := r.request(t, "loaded")
	work := r.admit(t, toBind("h1", instance(uuid.NewString()), card.ProviderUUID, arqs...))

	r.restart(t)
	r.requireWaiting(t, work.ID)
	r.exec(t, "UPDATE operations SET admitted_at = admitted_at - interval '1 hour' WHERE id = $1", work.ID)
	_, err := r.Begin(t.Context(), db.Run{Operation: work.ID, ID: runOf(work.ID).ID})
	requireKind(t, cyborg.ErrCancelled, err, "were not bound within")

	r.exec(t, "UPDATE operations SET admitted_at = $2 WHERE id = $1", work.ID, time.Now())
	h.hear(t)
	_, err = r.Begin(t.Context(), runOf(work.ID))
	require.NoError(t, err)
}
