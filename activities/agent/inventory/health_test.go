package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/inventory"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
)

// patient is a gadget that says how its devices are.
type patient struct {
	gadget
	said map[string][]cyborg.Condition
	ill  error         // why it cannot say
	gate chan struct{} // if set, a check waits for it, whatever becomes of its context
	dir  string        // of the agent's state
	mute bool          // nobody can ask it
}

func (p *patient) Health(context.Context) (map[string][]cyborg.Condition, error) {
	p.mu.Lock()
	said, ill, gate := p.said, p.ill, p.gate
	p.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return said, ill
}

// newPatient returns a patient with the device a, of which a discovery has something to
// say, too, and the inventory of its host, which asks every half minute.
func newPatient(t *testing.T) (*patient, *inventory.Inventory) {
	t.Helper()
	one := device("a", "")
	one.Deployables[0].Conditions = []cyborg.Condition{{Code: "b", Level: cyborg.ConditionNotice}}
	p := &patient{gadget: gadget{devices: []cyborg.DeviceReport{one}}, dir: t.TempDir()}
	return p, p.inventory(t)
}

// inventory opens the inventory of the patient's host.
func (p *patient) inventory(t *testing.T) *inventory.Inventory {
	t.Helper()
	j, err := journal.Open(t.TempDir(), journal.Options{BootID: "boot"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, j.Close()) })

	registry := drivers.NewRegistry()
	require.NoError(t, registry.Register("patient", func(drivers.Environment, map[string]any) (drivers.Driver, error) {
		if p.mute {
			return &p.gadget, nil
		}
		return p, nil
	}))
	known, err := inventory.Open(inventory.Config{
		Host: "node", Version: "1", Root: "/", StateDir: p.dir, ScanTimeout: 10 * time.Second, FullScanInterval: 5 * time.Hour,
		HealthInterval: 30 * time.Second,
		Backends:       []inventory.Setting{{Name: "patient", Driver: "patient", Enabled: true}},
	}, registry, j, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return known
}

// run runs the inventory until the end of the test, and returns after its first look.
func run(t *testing.T, known *inventory.Inventory) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		known.Run(ctx, inventory.Restore{})
	}()
	<-known.Ready()
	return func() { cancel(); <-ended }
}

// codes lists the codes of what is reported of the device.
func codes(known *inventory.Inventory) []string {
	var out []string
	for _, c := range known.Content().Backends[0].Devices[0].Deployables[0].Conditions {
		out = append(out, string(c.Level)+" "+c.Code)
	}
	return out
}

// change changes the patient and lets the next check, and the look that follows it, pass.
func (p *patient) change(change func(p *patient)) {
	p.mu.Lock()
	change(p)
	p.mu.Unlock()
	time.Sleep(40 * time.Second) //nolint:forbidigo // in the bubble's time
	synctest.Wait()
}

// dead is what keeps everybody from the device a.
func dead() map[string][]cyborg.Condition {
	return map[string][]cyborg.Condition{"part_a": {{Code: "dead", Level: cyborg.ConditionUnready}}}
}

// TestHealthIsReported: what a driver says about its devices is in the first report, with
// what a discovery says, and in one soon after it has changed. Where it cannot say, that
// is reported, too, and what it has said before holds.
func TestHealthIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, known := newPatient(t)
		p.said = map[string][]cyborg.Condition{"part_a": {{Code: "ecc", Level: cyborg.ConditionDegraded}}, "part_z": {{Code: "gone"}}}
		end := run(t, known)
		defer end()
		require.Equal(t, []string{"degraded ecc", "notice b"}, codes(known))

		for _, test := range []struct {
			change func(p *patient)
			want   []string
		}{
			{func(p *patient) { p.said = dead() }, []string{"unready dead", "notice b"}},
			{func(p *patient) { p.said, p.ill = nil, errors.New("no sensor") }, []string{"unready dead", "degraded health_unknown", "notice b"}},
			{func(p *patient) { p.ill = nil }, []string{"notice b"}},
		} {
			looks := p.count()
			for len(known.Changes()) > 0 { // of before
				<-known.Changes()
			}
			p.change(test.change)
			require.Equal(t, test.want, codes(known))
			require.Equal(t, looks+1, p.count())
			require.Len(t, known.Changes(), 1)
		}

		// While nothing changes but a text, a check makes no look. The driver may change
		// what it has returned.
		p.change(func(p *patient) { p.said = map[string][]cyborg.Condition{} })
		looks := p.count()
		p.change(func(p *patient) { p.ill = errors.New("port 1") })
		for port := range 10 {
			p.change(func(p *patient) { p.ill = fmt.Errorf("port %d", port) })
		}
		require.Equal(t, looks+1, p.count())
		p.change(func(p *patient) { p.ill, p.said["part_a"] = nil, dead()["part_a"] })
		require.Equal(t, []string{"unready dead", "notice b"}, codes(known))
		p.change(func(p *patient) { clear(p.said) })
		require.Equal(t, []string{"notice b"}, codes(known))
	})
}

// TestHealthOfBefore: what was unready for the agent before is so until the driver says
// how it is now.
func TestHealthOfBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, known := newPatient(t)
		p.said = dead()
		end := run(t, known)
		require.NoError(t, known.Save())
		end()

		p.ill = errors.New("no sensor")
		known = p.inventory(t)
		end = run(t, known)
		defer end()
		require.Equal(t, []string{"unready dead", "degraded health_unknown", "notice b"}, codes(known))
		p.change(func(p *patient) { p.ill, p.said = nil, nil })
		require.Equal(t, []string{"notice b"}, codes(known))
	})
}

// TestConditionsOfADiscoveryEnd: what only a discovery says is over once it no longer
// says so, also after a restart.
func TestConditionsOfADiscoveryEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, _ := newPatient(t)
		p.mute = true
		p.devices[0].Deployables[0].Conditions = dead()["part_a"]
		known := p.inventory(t)
		end := run(t, known)
		require.Equal(t, []string{"unready dead"}, codes(known))
		require.NoError(t, known.Save())
		end()

		p.devices[0].Deployables[0].Conditions = nil
		known = p.inventory(t)
		end = run(t, known)
		defer end()
		require.Empty(t, codes(known))
	})
}

// TestHealthAfterAChange: what an operation has done to a device that is unwell may have
// cured it, so the driver is asked at once.
func TestHealthAfterAChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, known := newPatient(t)
		p.said = dead()
		end := run(t, known)
		defer end()

		p.set(func(*gadget) { p.said = nil })
		_, err := known.Observe(t.Context(), "patient", "a", nil)
		require.NoError(t, err)
		time.Sleep(5 * time.Second) //nolint:forbidigo // in the bubble's time
		synctest.Wait()
		require.Equal(t, []string{"notice b"}, codes(known))
	})
}

// TestHealthThatHangs: a check that never ends holds up the first look for its time, and
// nothing else. Somebody who looks for a shorter time does not end it for others.
func TestHealthThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, known := newPatient(t)
		gate := make(chan struct{})
		p.said, p.gate = dead(), gate
		open := sync.OnceFunc(func() { close(gate) })
		defer open()

		began := time.Now()
		lookShortly(t, known)
		require.Equal(t, time.Second, time.Since(began))
		end := run(t, known)
		defer end()
		require.Equal(t, 12*time.Second, time.Since(began), "the first check has its time, whoever waits for it")
		require.Equal(t, []string{"degraded health_unknown", "notice b"}, codes(known))

		began = time.Now()
		_, err := known.Observe(t.Context(), "patient", "a", nil)
		require.NoError(t, err)
		require.Zero(t, time.Since(began))

		open()
		p.change(func(*patient) {})
		require.Equal(t, []string{"unready dead", "notice b"}, codes(known))
	})
}

// lookShortly looks at the device for a second, which ends before the look.
func lookShortly(t *testing.T, known *inventory.Inventory) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.ErrorIs(t, known.LookAt(ctx, "patient", "a"), context.DeadlineExceeded)
}

// TestFirstHealthIsForAll: the answer to the first check is in the first report, also
// where somebody did not wait for it.
func TestFirstHealthIsForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, known := newPatient(t)
		gate := make(chan struct{})
		p.said, p.gate = dead(), gate
		open := sync.OnceFunc(func() { close(gate) })
		defer open()
		lookShortly(t, known)

		time.AfterFunc(5*time.Second, open)
		end := run(t, known)
		defer end()
		require.Equal(t, []string{"unready dead", "notice b"}, codes(known))
	})
}

// TestConditionsThatAreReported: what the records cannot keep is in no report.
func TestConditionsThatAreReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, known := newPatient(t)
		p.said = map[string][]cyborg.Condition{"part_a": {
			{Code: "doubled", Level: cyborg.ConditionNotice},
			{Code: "doubled", Level: "of a newer release"},
			{Code: "long", Level: cyborg.ConditionDegraded, Since: time.Now(), Message: strings.Repeat("x\n", 500)},
		}}
		for n := range cyborg.MaxConditions {
			p.said["part_a"] = append(p.said["part_a"], cyborg.Condition{Code: fmt.Sprintf("n%d", n), Level: cyborg.ConditionNotice})
		}
		end := run(t, known)
		defer end()
		all := known.Content().Backends[0].Devices[0].Deployables[0].Conditions
		require.Len(t, all, cyborg.MaxConditions)
		require.Equal(t, cyborg.ConditionLevel("of a newer release"), all[0].Level, "it is the most severe one")
		require.Zero(t, all[1].Since)
		require.Less(t, len(all[1].Message), 300)
		require.NotContains(t, all[1].Message, "\n")
	})
}
