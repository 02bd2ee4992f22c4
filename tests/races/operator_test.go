package races_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	temporal "go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// span is the time between two moments.
type span struct{ began, ended time.Time }

// round makes Reconcile run once, and returns when the round has ended. In this
// system it runs only then, so that the history knows when it may have settled
// something. All races share the rounds.
func (s *system) round(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()

	ctx := context.Background() // the last rounds are those of a cleanup
	schedule := s.temporal.ScheduleClient().GetHandle(ctx, "reconcile")
	taken := func() (int, bool) {
		now, err := schedule.Describe(ctx)
		require.NoError(t, err)
		return now.Info.NumActions + now.Info.NumActionsSkippedOverlap, len(now.Info.RunningWorkflows) > 0
	}

	before, _ := taken()
	began := time.Now()
	require.NoError(t, schedule.Trigger(ctx, temporal.ScheduleTriggerOptions{}))

	harness.Until(t, ctx, "reconciled", func() error {
		if now, running := taken(); now <= before || running {
			return fmt.Errorf("the round has not ended")
		}
		return nil
	})
	s.rounds = append(s.rounds, span{began, time.Now()})
}

// operator is a person with the host of the race: at the machine and with the
// API. Clients keep sending requests meanwhile.
type operator struct {
	*system
	t        *testing.T
	client   *client
	options  cyborg.JSONObject
	identity map[uuid.UUID]string // of the card of each accelerator
	forced   bool                 // a detach by force was admitted
}

// work does everything once, in a random order, and goes on until the clients
// are done. Then nobody competes, and it does what the clients have prevented.
func (o *operator) work(done <-chan struct{}) {
	tasks := []func(){o.pull, o.boot, o.pull, o.ail, o.reinstall, func() { o.update() }}
	o.client.random.Shuffle(len(tasks), func(i, j int) { tasks[i], tasks[j] = tasks[j], tasks[i] })

	racing := true
	for n := 0; n < len(tasks) || racing; n++ {
		tasks[n%len(tasks)]()
		o.round(o.t)
		require.False(o.t, o.t.Failed())

		select {
		case <-done:
			racing = false
		default:
		}
	}

	o.atRest(o.t, o.client.host)
	o.insist(o.update)
	o.insist(o.takeFromNova)
	o.hold(o.client.targets[0])
	o.reinstall()
	for !o.forced {
		o.hold(o.client.targets[0])
		o.pullCard(o.client.targets[0])
		o.round(o.t)
		require.False(o.t, o.t.Failed())
	}

	// A card that was off the bus when it was retired still has what was installed,
	// and a fake card shows that.
	for _, target := range o.client.targets {
		o.client.administer(target, "enable", nil)
		o.ask(o.client.toReady(target))
	}
}

// insist asks until the request is not refused.
func (o *operator) insist(ask func() answer) {
	for ask().status >= http.StatusBadRequest {
		require.False(o.t, o.t.Failed())
	}
}

// hold has somebody hold an accelerator, whatever the clients have left of it.
func (o *operator) hold(target uuid.UUID) {
	for !o.t.Failed() {
		o.client.administer(target, "enable", nil)
		o.takeFromNova()
		o.ask(o.client.toReady(target))
		if a := o.attach(target); a.status < http.StatusBadRequest || a.problem.Kind == cyborg.ErrInUse {
			return
		}
		o.ask(o.client.toProgram(target)) // a fence may have refused it,
		o.round(o.t)                      // or a handle in doubt
	}
}

// takeFromNova empties the whitelist of Nova.
func (o *operator) takeFromNova() answer { return o.ask(o.client.toWhitelist(uuid.Nil)) }

// did notes what happened to accelerators between a moment and now.
func (o *operator) did(name string, call time.Duration, targets ...uuid.UUID) {
	for _, target := range targets {
		o.client.history.add(o.client.number, action{name: name, accelerator: target}, outcome{}, answer{call: call, ret: o.now()})
	}
}

// now is the time since the start of the race.
func (o *operator) now() time.Duration { return time.Since(o.client.history.began) }

// see waits until the accelerators are reported with this presence, and notes
// that.
func (o *operator) see(presence cyborg.Presence, targets ...uuid.UUID) {
	o.t.Helper()
	o.seen(string(presence), func(a *apiclient.Accelerator) bool { return a.Presence == presence }, targets...)
}

// seen waits until the accelerators are reported so, and notes that.
func (o *operator) seen(name string, so func(a *apiclient.Accelerator) bool, targets ...uuid.UUID) {
	o.t.Helper()
	ctx := o.t.Context()

	harness.Until(o.t, ctx, name, func() error {
		if _, err := o.API.Discover(ctx, o.client.host); err != nil {
			return err
		}
		for _, target := range targets {
			a, _, err := o.API.Accelerator(ctx, target)
			if err != nil || !so(&a) {
				return fmt.Errorf("accelerator %s is %s, with %v: %w", target, a.Presence, a.Conditions, err)
			}
		}
		return nil
	})
	o.did(name, o.now(), targets...)
}

// ask requests an operation, and returns the answer once it is known whether it
// was admitted.
func (o *operator) ask(w *submission) answer {
	w.client, w.http.key = o.client.number, uuid.NewString()
	for {
		d := o.client.endpoint()
		a := d.send(o.t, o.client.history.began, w.http)
		o.client.history.answered(w, a)
		if a.unknown() && !o.t.Failed() {
			continue
		}
		if a.ended() && a.problem.Kind != "" {
			o.client.follow(d, a.operation)
		}
		return a
	}
}

// detach asks to detach an accelerator from all holders.
func (o *operator) detach(target uuid.UUID, force bool) answer {
	w := &submission{
		accelerator: target, request: request{kind: cyborg.OperationDetach, force: force},
		http: httpRequest{method: http.MethodDelete, path: path(target)},
	}
	if force {
		w.http.path += "?force=true"
	}
	return o.ask(w)
}

// attach asks to attach an accelerator to its host.
func (o *operator) attach(target uuid.UUID) answer {
	return o.ask(&submission{
		accelerator: target, request: request{kind: cyborg.OperationAttach, holder: "host:" + o.client.host},
		http: httpRequest{method: http.MethodPut, path: path(target), body: map[string]any{"host": o.client.host}},
	})
}

// pull takes a random card off the bus, detaches it by force, and puts it back.
func (o *operator) pull() {
	o.pullCard(o.client.targets[o.client.random.IntN(len(o.client.targets))])
}

// pullCard is pull for one card.
func (o *operator) pullCard(target uuid.UUID) {
	bench, ctx := o.Bench(o.client.host), o.t.Context()
	o.attach(target)

	at := o.now()
	require.NoError(o.t, bench.Vanish(ctx, o.identity[target]))
	o.did("pull", at, target)
	o.see(cyborg.PresenceMissing, target)

	for range 3 { // others compete
		if a := o.detach(target, true); a.status < http.StatusBadRequest {
			o.forced = o.forced || a.operation != uuid.Nil
			break
		}
	}
	o.attach(target)
	o.client.read(target)

	at = o.now()
	require.NoError(o.t, bench.Return(ctx, o.identity[target]))
	o.did("put back", at, target)
	o.see(cyborg.PresencePresent, target)
	o.attach(target)
}

// ail lets a random card say that something is wrong with it, then that nobody can
// use it, and at last nothing any more.
func (o *operator) ail() {
	target, ctx := o.client.targets[o.client.random.IntN(len(o.client.targets))], o.t.Context()
	for _, now := range []struct {
		name string
		says []cyborg.Condition
	}{
		{"ail", []cyborg.Condition{{Code: "hot", Level: cyborg.ConditionDegraded}}},
		{"worsen", []cyborg.Condition{{Code: "hot", Level: cyborg.ConditionDegraded}, {Code: "no_link", Level: cyborg.ConditionUnready}}},
		{"recover", nil},
	} {
		at := o.now()
		require.NoError(o.t, o.Bench(o.client.host).Edit(ctx, o.identity[target], func(card *fake.Card) {
			for _, region := range card.Deployables {
				region.Conditions = now.says
			}
		}))
		o.did(now.name, at, target)

		o.seen("told", func(a *apiclient.Accelerator) bool { return len(a.Conditions) == len(now.says) }, target)
		o.attach(target)
		o.client.read(target)
	}
}

// boot boots the host. Half of the times the agent has no time to end its steps.
func (o *operator) boot() {
	at := o.now()
	if o.client.random.IntN(2) == 0 {
		o.rack.Kill(o.t)
	} else {
		o.rack.Stop(o.t)
	}
	o.did("power off", at, o.client.targets...)

	o.rack.Reboot(o.t)
	o.succeed()
}

// succeed starts the agent of the new boot, which takes the place of the one
// before as soon as that one is silent. Nobody waits so long here: the records
// are told that it was heard long ago, and that no duplicate was.
func (o *operator) succeed() {
	ctx, host, targets := o.t.Context(), o.client.host, o.client.targets
	url, err := o.DatabaseURL()
	require.NoError(o.t, err)
	records, err := pgx.Connect(ctx, url)
	require.NoError(o.t, err)
	defer records.Close(ctx)

	instance := func() (now string) {
		require.NoError(o.t, records.QueryRow(ctx, "SELECT instance FROM hosts WHERE name = $1", host).Scan(&now))
		return now
	}
	before := instance()
	o.did("power on", o.now(), targets...)
	o.rack.Launch(o.t)

	harness.Until(o.t, ctx, "another agent", func() error {
		_, err := records.Exec(ctx, "UPDATE hosts SET last_seen = now() - interval '1 day' WHERE name = $1 AND instance = $2", host, before)
		require.NoError(o.t, err)
		_, err = records.Exec(ctx, "DELETE FROM duplicate_agents WHERE host = $1", host)
		require.NoError(o.t, err)

		if instance() == before {
			return fmt.Errorf("host %s still has the agent from before its boot", host)
		}
		return nil
	})

	o.rack.WaitHeard(o.t)
	o.see(cyborg.PresencePresent, targets...)
	o.did("booted", o.now(), targets...)
}

// driver sends a request about the backend of the host.
func (o *operator) driver(change, method, path string, body any) answer {
	return o.ask(&submission{
		request: request{kind: cyborg.OperationConfigure, change: change},
		http:    httpRequest{method: method, path: "/v1/hosts/" + o.client.host + "/drivers" + path, body: body},
	})
}

// update gives the backend the options that it has.
func (o *operator) update() answer {
	return o.driver("update", http.MethodPut, "/fake", map[string]any{"options": o.options})
}

// reinstall disables the backend, which is refused while somebody holds one of its
// accelerators, and enables it again.
func (o *operator) reinstall() {
	uninstall := func() answer { return o.driver("uninstall", http.MethodDelete, "/fake", nil) }
	a := uninstall()

	for try := 0; a.status >= http.StatusBadRequest; try++ {
		if try == 3 { // others compete
			return
		}

		for _, target := range o.client.targets {
			o.detach(target, false)
		}
		a = uninstall()
	}

	o.see(cyborg.PresenceMissing, o.client.targets...)
	o.attach(o.client.targets[0])

	o.insist(func() answer {
		return o.driver("install", http.MethodPost, "", map[string]any{"name": "fake", "options": o.options})
	})
	o.see(cyborg.PresencePresent, o.client.targets...)
}

// newOperator returns the operator of the host rack.
func (s *system) newOperator(t *testing.T, h *history, found []apiclient.Accelerator, options cyborg.JSONObject) *operator {
	t.Helper()
	o := &operator{
		system: s, t: t, options: options, identity: map[uuid.UUID]string{},
		client: &client{
			t: t, number: *clients + 1, random: rand.New(rand.NewPCG(*seed, uint64(*clients+1))), endpoints: s.endpoints, history: h, host: s.rack.Host,
		},
	}

	for i := range found {
		device, err := s.API.Device(t.Context(), found[i].DeviceUUID)
		require.NoError(t, err)
		o.client.targets = append(o.client.targets, found[i].UUID)
		o.identity[found[i].UUID] = device.Identity
	}
	return o
}
