package db_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// bound binds one request for each handle of an accelerator to an instance.
func (r *records) bound(t testing.TB, a *cyborg.Accelerator, who uuid.UUID) []cyborg.ARQ {
	t.Helper()
	var arqs []cyborg.ARQ
	for range a.Handles {
		arqs = append(arqs, r.request(t, "one")[0])
	}
	r.do(t, toBind(a.Host, instance(who.String()), a.ProviderUUID, arqs...), cyborg.OperationSucceeded)
	return arqs
}

// reboot makes the host report another boot, which began uptime ago. An uptime
// of 0 means that the agent does not know.
func (h *host) reboot(t testing.TB, uptime time.Duration) {
	t.Helper()
	h.fall(t) // it was silent meanwhile
	h.boot = uuid.NewString()
	report := h.next()
	report.Uptime = uptime
	replies, err := h.records.MergeReports(t.Context(), []agentapi.Report{report})
	require.NoError(t, err)
	require.True(t, replies[0].Accepted)
}

// healthEvents returns the health events of one subject, in their order.
func (r *records) healthEvents(t testing.TB, kind cyborg.SubjectKind, id uuid.UUID) []string {
	t.Helper()
	return scalar[[]string](t, r, `
		SELECT array_agg(from_value || '>' || to_value ORDER BY transaction, id) FROM events
		WHERE subject_kind = $1 AND subject_id = $2 AND axis = 'health'`, string(kind), id.String())
}

// TestRequestsLostAtBoot: what an instance got before its host booted may be
// lost, and every way of reading shows that. What a service holds, what is on
// another host and what was bound since the boot are not lost.
func TestRequestsLostAtBoot(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 3)
	other := r.addHost(t, "h2", 1)
	r.profile(t, "one", one())
	who := uuid.New()

	lost := r.bound(t, h.ready(t, "card0"), who)
	service := r.request(t, "one")[0]
	r.do(t, toBind("h1", cyborg.Holder{Kind: cyborg.HolderService, ID: "ovs"}, h.ready(t, "card1").ProviderUUID, service), cyborg.OperationSucceeded)
	elsewhere := r.bound(t, other.ready(t, "card0"), uuid.New())

	h.report(t) // again, from the same boot
	require.Empty(t, r.arq(t, lost[0].UUID).Health)

	h.reboot(t, 0)
	later := r.bound(t, h.ready(t, "card2"), uuid.New())
	h.report(t)

	for _, arq := range lost {
		now := r.arq(t, arq.UUID)
		require.Equal(t, cyborg.HealthLostAtBoot, now.Health)
		require.WithinDuration(t, time.Now(), now.LostAt, time.Minute)
		require.Equal(t, []string{">lost_at_boot"}, r.healthEvents(t, cyborg.SubjectARQ, arq.UUID))
		require.Equal(t, []string{">lost_at_boot"}, r.healthEvents(t, cyborg.SubjectHandle, now.Handle.UUID))

		for _, handle := range h.accelerator(t, "card0").Handles {
			require.Equal(t, cyborg.HealthLostAtBoot, handle.Health)
		}
	}

	require.Empty(t, h.accelerator(t, "card2").Handles[0].Health)
	for _, arq := range append(later, append(elsewhere, service)...) {
		require.Empty(t, r.arq(t, arq.UUID).Health)
	}

	drift, err := r.Drift(t.Context(), db.DriftFilter{Classes: []cyborg.DriftClass{cyborg.DriftLostAtBoot}}, db.Page{Limit: 10})
	require.NoError(t, err)
	require.Len(t, drift, 1)
	require.Equal(t, who, drift[0].Instance)
	require.Contains(t, drift[0].Detail, "2 of them")

	next, err := r.Drift(t.Context(), db.DriftFilter{}, db.Page{Limit: 10, Marker: drift[0].Key()})
	require.NoError(t, err)
	require.Empty(t, next)

	counted, err := r.DriftOfInstances(t.Context())
	require.NoError(t, err)
	require.Equal(t, map[cyborg.DriftClass]int{cyborg.DriftLostAtBoot: 1}, counted)

	// The loss ends with its request and leaves nothing behind.
	_, err = r.DeleteARQs(t.Context(), db.ARQDeletion{Instance: who, AllowBound: true}, alice())
	require.NoError(t, err)
	require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM arqs WHERE lost_at IS NOT NULL"))
	handle := h.accelerator(t, "card0").Handles[0].UUID
	require.Equal(t, []string{">lost_at_boot", "lost_at_boot>"}, r.healthEvents(t, cyborg.SubjectHandle, handle))
}

// TestLossCoversEarlierBindsOnly: an agent that reports a boot late also
// reports when the boot was, so that only what was bound before it is lost.
func TestLossCoversEarlierBindsOnly(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	r.profile(t, "one", one())
	before := r.bound(t, h.ready(t, "card0"), uuid.New())
	since := r.bound(t, h.ready(t, "card1"), uuid.New())

	r.exec(t, "UPDATE attach_handles SET attached_at = now() - interval '2 hours' WHERE uuid IN (SELECT handle_uuid FROM arqs WHERE uuid = $1)", before[0].UUID)
	h.reboot(t, time.Hour)

	require.Equal(t, cyborg.HealthLostAtBoot, r.arq(t, before[0].UUID).Health)
	require.WithinDuration(t, time.Now().Add(-time.Hour), r.arq(t, before[0].UUID).LostAt, time.Minute)
	require.Empty(t, r.arq(t, before[1].UUID).Health)
	require.Empty(t, r.arq(t, since[0].UUID).Health)
}

// TestLossThoughTheClockWasSetBack: what was bound before a boot is lost, also where
// the database's clock was set back since, so that the bind seems to be later. The
// last heartbeat of the boot before tells which came first; where none has come
// since the bind, no time in the future counts as later than the boot.
func TestLossThoughTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 3)
	r.profile(t, "one", one())
	beat := func(uptime time.Duration) {
		t.Helper()
		b := h.beat()
		b.Uptime = uptime
		_, err := r.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{b})
		require.NoError(t, err)
	}

	beat(50 * time.Hour)
	heard := r.bound(t, h.ready(t, "card0"), uuid.New())[0]
	beat(51 * time.Hour)
	future := r.bound(t, h.ready(t, "card1"), uuid.New())[0]
	since := r.bound(t, h.ready(t, "card2"), uuid.New())[0]
	r.exec(t, "UPDATE attach_handles SET attached_at = now() + interval '2 minutes' WHERE uuid = (SELECT handle_uuid FROM arqs WHERE uuid = $1)", future.UUID)

	h.reboot(t, time.Hour)

	require.Equal(t, cyborg.HealthLostAtBoot, r.arq(t, heard.UUID).Health)
	require.Equal(t, cyborg.HealthLostAtBoot, r.arq(t, future.UUID).Health)
	require.Empty(t, r.arq(t, since.UUID).Health)
}

// TestAdoptedHostHasNotBooted: the first boot id of a host that was adopted
// without one is no reboot.
func TestAdoptedHostHasNotBooted(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	r.profile(t, "one", one())
	arqs := r.bound(t, h.ready(t, "card0"), uuid.New())
	r.exec(t, "UPDATE hosts SET boot_id = ''")
	h.reboot(t, 0)
	require.Empty(t, r.arq(t, arqs[0].UUID).Health)
}

// TestUnbindEndsALoss: an unbound request is no longer lost, because its
// instance no longer has the accelerator.
func TestUnbindEndsALoss(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	r.profile(t, "one", one())
	arq := r.bound(t, h.ready(t, "card0"), uuid.New())[0]
	h.reboot(t, 0)
	h.report(t)

	r.do(t, toUnbind(arq), cyborg.OperationSucceeded)
	require.Empty(t, r.arq(t, arq.UUID).Health)
	require.Equal(t, []string{">lost_at_boot", "lost_at_boot>"}, r.healthEvents(t, cyborg.SubjectARQ, arq.UUID))
}

// TestInstanceDrift: what Nova said of an instance is drift until Nova says
// otherwise or the instance's requests are gone. What may be true for a moment
// counts only from the second time on.
func TestInstanceDrift(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	r.profile(t, "one", one())
	who := uuid.New()
	r.bound(t, h.ready(t, "card0"), who)
	h.reboot(t, 0)

	held, err := r.StaleInstances(t.Context(), time.Hour, 10)
	require.NoError(t, err)
	require.Len(t, held, 1, "it is to be asked about at once")
	require.NotNil(t, held[0].Lost)
	require.Equal(t, who, held[0].Lost.Instance)

	saw := func(i db.SeenInstance) {
		i.UUID, i.Host = who, "h1"
		require.NoError(t, r.RecordSeenInstances(t.Context(), []db.SeenInstance{i}, time.Hour))
	}
	open := func() map[cyborg.DriftClass]int {
		counted, err := r.DriftOfInstances(t.Context())
		require.NoError(t, err)
		return counted
	}
	unseen := func() int {
		held, err := r.StaleInstances(t.Context(), time.Hour-time.Minute, 10)
		require.NoError(t, err)
		return len(held)
	}

	elsewhere := []db.InstanceDrift{{Class: cyborg.DriftInstanceElsewhere, Detail: "it is on h9"}, {Class: cyborg.DriftInstanceError, Detail: "it is in ERROR"}}
	saw(db.SeenInstance{Drift: elsewhere, RecheckSoon: true})
	require.Equal(t, 1, unseen(), "it is asked about again before its time")
	require.Equal(t, map[cyborg.DriftClass]int{cyborg.DriftLostAtBoot: 1, cyborg.DriftInstanceError: 1}, open())
	saw(db.SeenInstance{Drift: elsewhere, RecheckSoon: true})
	require.Equal(t, map[cyborg.DriftClass]int{cyborg.DriftLostAtBoot: 1, cyborg.DriftInstanceError: 1, cyborg.DriftInstanceElsewhere: 1}, open())

	saw(db.SeenInstance{Undetermined: true, RecheckSoon: true})
	require.Equal(t, map[cyborg.DriftClass]int{cyborg.DriftLostAtBoot: 1, cyborg.DriftInstanceError: 1, cyborg.DriftInstanceElsewhere: 1}, open())

	saw(db.SeenInstance{Drift: elsewhere[:1], Recovered: held[0].Lost})
	require.Zero(t, unseen())
	require.Equal(t, map[cyborg.DriftClass]int{cyborg.DriftInstanceElsewhere: 1}, open())

	_, err = r.DeleteARQs(t.Context(), db.ARQDeletion{Instance: who, AllowBound: true}, alice())
	require.NoError(t, err)
	require.NoError(t, r.EndInstanceDrift(t.Context()))
	require.Empty(t, open())

	all, err := r.Drift(t.Context(), db.DriftFilter{}, db.Page{Limit: 10})
	require.NoError(t, err)
	require.Len(t, all, 2, "what is over stays to be read")
}

// TestInstanceDriftEvents: beginning and end of an instance's drift are events
// of its accelerators, in the same transaction, even where the instance has no
// accelerator left at the end.
func TestInstanceDriftEvents(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 2)
	r.profile(t, "one", one())
	who, other := uuid.New(), uuid.New()
	card0, card1 := h.ready(t, "card0"), h.ready(t, "card1")
	cards := map[string]string{card0.UUID.String(): "card0", card1.UUID.String(): "card1"}

	r.bound(t, card0, who)
	r.bound(t, card1, other)
	at := r.endOfFeed(t)

	history := func() []string {
		t.Helper()
		r.endOfFeed(t)
		events, err := r.Events(t.Context(), db.EventFilter{}, at, 0)
		require.NoError(t, err)

		out := []string{}
		for _, e := range events {
			at = e.Cursor
			if _, drift := e.Axis.Drift(); !drift {
				continue
			}

			require.Equal(t, "h1", e.Host)
			require.Equal(t, "cyborg", e.Actor)
			require.Equal(t, who.String(), e.Data["instance"])
			out = append(out, fmt.Sprintf("%s %s %s %q %q %v", e.Subject.Kind, cards[e.Subject.ID], e.Axis, e.From, e.To, e.Data["repaired"]))
		}
		return out
	}

	saw := func(drift ...db.InstanceDrift) []string {
		t.Helper()
		require.NoError(t, r.RecordSeenInstances(t.Context(), []db.SeenInstance{
			{UUID: who, Host: "h1", Drift: drift}, {UUID: other, Host: "h1"},
		}, time.Hour))
		return history()
	}

	broken := db.InstanceDrift{Class: cyborg.DriftInstanceError, Detail: "it is in ERROR"}
	moved := db.InstanceDrift{Class: cyborg.DriftInstanceElsewhere, Detail: "it is on h9"}

	require.Empty(t, saw())
	require.Equal(t, []string{`accelerator card0 drift_instance_error "" "it is in ERROR" <nil>`}, saw(broken, moved), "the other does not count yet")
	require.Equal(t, []string{`accelerator card0 drift_instance_elsewhere "" "it is on h9" <nil>`}, saw(broken, moved))
	require.Empty(t, saw(broken, moved))

	moved.Detail = "it is on h8"
	require.Equal(t, []string{
		`accelerator card0 drift_instance_elsewhere "it is on h9" "it is on h8" <nil>`,
		`accelerator card0 drift_instance_error "it is in ERROR" "" false`,
	}, saw(moved))

	_, err := r.DeleteARQs(t.Context(), db.ARQDeletion{Instance: who, AllowBound: true}, cyborg.Actor{Name: "cyborg"})
	require.NoError(t, err)
	require.Empty(t, history())
	require.NoError(t, r.EndInstanceDrift(t.Context()))
	require.Equal(t, []string{`accelerator card0 drift_instance_elsewhere "it is on h8" "" false`}, history())
}

// TestInstanceDriftOnOneAccelerator: two instances that share an accelerator
// differ independently, and their events say which of them begins and ends.
func TestInstanceDriftOnOneAccelerator(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	r.profile(t, "one", one())
	card := h.ready(t, "card0")
	at := r.endOfFeed(t)

	first, second := uuid.New(), uuid.New()
	for _, who := range []uuid.UUID{first, second} {
		r.do(t, toBind(card.Host, instance(who.String()), card.ProviderUUID, r.request(t, "one")[0]), cyborg.OperationSucceeded)
	}

	const inError = "it is in ERROR"
	broken := []db.InstanceDrift{{Class: cyborg.DriftInstanceError, Detail: inError}}
	for _, seen := range []db.SeenInstance{
		{UUID: first, Host: "h1", Drift: broken}, {UUID: second, Host: "h1", Drift: broken}, {UUID: first, Host: "h1"},
	} {
		require.NoError(t, r.RecordSeenInstances(t.Context(), []db.SeenInstance{seen}, time.Hour))
	}

	r.endOfFeed(t)
	events, err := r.Events(t.Context(), db.EventFilter{}, at, 0)
	require.NoError(t, err)

	var changes []string
	for _, e := range events {
		if _, drift := e.Axis.Drift(); drift {
			require.Equal(t, card.UUID.String(), e.Subject.ID)
			changes = append(changes, fmt.Sprintf("%v %q %q", e.Data["instance"], e.From, e.To))
		}
	}

	require.Equal(t, []string{
		fmt.Sprintf("%s %q %q", first, "", inError),
		fmt.Sprintf("%s %q %q", second, "", inError),
		fmt.Sprintf("%s %q %q", first, inError, ""),
	}, changes)
}

// TestSinceBoot: a boot is at least as long ago as the host says that it is up, and at
// most as much longer as it was not heard, which nobody knows where the database's
// clock was set back since. Where it does not say, that clock has to tell.
func TestSinceBoot(t *testing.T) {
	t.Parallel()
	const up = 2 * time.Hour
	for name, test := range map[string]struct {
		uptime        time.Duration
		seen          string // when the host was heard, if not just now
		least, atMost time.Duration
	}{
		"heard":                    {uptime: up, least: up, atMost: up},
		"silent":                   {uptime: up, seen: "clock_timestamp() - interval '1 hour'", least: up, atMost: up + time.Hour},
		"heard before a step back": {uptime: up, seen: "clock_timestamp() + interval '1 hour'", least: up, atMost: up + 100*365*24*time.Hour},
		"unknown":                  {least: 24 * time.Hour, atMost: 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecords(t)
			h := r.addHost(t, "h1", 1)
			h.reboot(t, test.uptime)
			if test.seen != "" {
				r.exec(t, "UPDATE hosts SET last_seen = "+test.seen)
			}

			atLeast, atMost, err := r.SinceBoot(t.Context(), "h1", cyborg.Rescue{Instance: uuid.New(), BootID: h.boot, BootedAt: time.Now().Add(-24 * time.Hour)})
			require.NoError(t, err)
			require.InDelta(t, test.least, atLeast, float64(time.Minute))
			require.InEpsilon(t, test.atMost, atMost, 0.02)
			require.GreaterOrEqual(t, atMost, atLeast)
		})
	}
}

// TestUptimeIsOfThePresentBoot: a server of an earlier release records a boot and not
// how long the host is up. What the host has said in the boot before does not count.
func TestUptimeIsOfThePresentBoot(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	h.reboot(t, 2*time.Hour)
	known := func() bool { return scalar[bool](t, r, "SELECT uptime IS NOT NULL FROM hosts") }

	r.exec(t, "UPDATE hosts SET boot_id = boot_id")
	require.True(t, known())
	r.exec(t, "UPDATE hosts SET boot_id = 'another'")
	require.False(t, known())

	h.reboot(t, time.Minute)
	require.True(t, known())
}
