package db_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// busyHost is a host whose operations and reports overtake each other. It does
// what an agent does: it numbers reports and observations from one counter, and
// tells what differs from the last acknowledged report, or was observed since.
type busyHost struct {
	*host
	ready map[string]uuid.UUID // accelerators, by card

	base     agentapi.Report  // the last acknowledged report, whole
	observed map[string]int64 // the last observation of each card
	flight   []told
	ending   []func()
	busy     map[string]bool // cards with an operation
	wholes   int             // how many whole reports the conductor has wanted
}

// told is a report on its way, and what the agent sends of it.
type told struct{ whole, difference agentapi.Report }

// newBusyHost returns a host with this many cards that are ready.
func newBusyHost(t *testing.T, r *records, name string, cards int) *busyHost {
	t.Helper()
	b := &busyHost{
		host: &host{records: r, name: name, boot: "boot-1", content: content(cards)}, ready: map[string]uuid.UUID{},
		observed: map[string]int64{}, busy: map[string]bool{},
	}
	b.whole(t)
	for i := range cards {
		card := fmt.Sprintf("card%d", i)
		b.ready[card] = b.host.ready(t, card).UUID
	}
	b.wholes = 0
	return b
}

// whole sends a whole report.
func (b *busyHost) whole(t *testing.T) {
	t.Helper()
	b.wholes++
	now := b.next()
	require.True(t, b.tell(t, now).Accepted)
	b.base = now
}

// tellNext makes the next report, which is delivered later.
func (b *busyHost) tellNext() {
	var always []string
	for card, sequence := range b.observed {
		if sequence > b.base.Sequence {
			always = append(always, card)
		}
	}

	now := b.next()
	b.flight = append(b.flight, told{now, since(b.base, now, always...)})
}

// deliver has the conductor take the report that was made first.
func (b *busyHost) deliver(t *testing.T) {
	t.Helper()
	one := b.flight[0]
	b.flight = b.flight[1:]

	if b.tell(t, one.difference).Whole {
		b.whole(t)
		return
	}
	require.True(t, b.reply.Accepted)
	b.base = one.whole
}

// load changes the image of a card by an operation. The operation is recorded
// as ended later.
func (b *busyHost) load(t *testing.T, card, image string) {
	t.Helper()
	work := b.records.begin(t, toProgram(b.ready[card]))
	b.busy[card] = true

	b.sequence++
	sequence := b.sequence
	b.observed[card] = sequence

	var seen cyborg.DeviceReport
	b.edit(card, func(d *cyborg.DeviceReport) {
		d.Deployables = slices.Clone(d.Deployables)
		d.Deployables[0].BitstreamID = image
		seen = *d
	})

	b.ending = append(b.ending, func() {
		b.busy[card] = false
		require.NoError(t, b.records.End(t.Context(), runOf(work.Operation), cyborg.Outcome{
			Operation: work.Operation, State: cyborg.OperationSucceeded, BitstreamID: image,
			Observations: []cyborg.Observation{{Sequence: sequence, Backend: "fake", Device: seen}},
		}))
	})
}

// edit changes what the host shows of a card.
func (b *busyHost) edit(card string, edit func(d *cyborg.DeviceReport)) {
	backend := b.content.Backends[0]
	backend.Devices = slices.Clone(backend.Devices)
	edit(&backend.Devices[slices.IndexFunc(backend.Devices, func(d cyborg.DeviceReport) bool { return d.Identity == card })])
	b.content.Backends = []agentapi.BackendReport{backend}
}

// endOne has the conductor record the end of one operation.
func (b *busyHost) endOne(i int) {
	end := b.ending[i]
	b.ending = slices.Delete(b.ending, i, i+1)
	end()
}

// settle does what follows when nothing happens any more: the agent reports what
// it has not reported, and what the conductor asks for.
func (b *busyHost) settle(t *testing.T) {
	t.Helper()
	for len(b.ending) > 0 {
		b.endOne(0)
	}
	for len(b.flight) > 0 {
		b.deliver(t)
	}

	for range 3 {
		if b.content.Digest() != b.base.Digest {
			b.tellNext()
			b.deliver(t)
		}

		beat := b.beat()
		beat.Digest = b.base.Digest
		replies, err := b.records.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{beat})
		require.NoError(t, err)
		if !replies[0].Report && b.content.Digest() == b.base.Digest {
			return
		}
		if replies[0].Report {
			b.whole(t)
		}
	}
	t.Fatal("the conductor asks for reports again and again")
}

// TestReportsOfABusyHost: while operations work on some cards of a host, its
// reports stay differences, whichever is recorded first.
func TestReportsOfABusyHost(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	b := newBusyHost(t, r, "h1", 3)
	serial := func(card string, n int) {
		b.edit(card, func(d *cyborg.DeviceReport) { d.BoardInfo = cyborg.JSONObject{"serial": float64(n)} })
	}

	for n := range 5 {
		// A report that was made before an operation observed a card, and arrives after
		// it.
		serial("card0", 10*n)
		b.tellNext()
		b.load(t, "card1", fmt.Sprintf("image-%d", n))
		b.endOne(0)
		b.deliver(t)
		require.Zero(t, b.wholes, "of a card that the report does not mention")

		// The same with a card that the report shows as it was before.
		serial("card1", 10*n+1)
		b.tellNext()
		b.load(t, "card1", fmt.Sprintf("image-%d-again", n))
		b.endOne(0)
		b.deliver(t)
		require.Zero(t, b.wholes, "of a card that the report shows")

		// A report that overtakes an operation's end.
		b.load(t, "card2", fmt.Sprintf("image-%d", n))
		b.tellNext()
		b.deliver(t)
		b.endOne(0)
		require.Zero(t, b.wholes)
	}

	b.settle(t)
	require.LessOrEqual(t, b.wholes, 1, "once the host is at rest, at most one report makes sure")
	require.Equal(t, fmt.Sprintf("image-%d-again", 4), b.accelerator(t, "card1").BitstreamID)
	require.Equal(t, fmt.Sprintf("image-%d", 4), b.accelerator(t, "card2").BitstreamID)
}

// TestBusyHostsAreRecordedAsTheyAre: reports, observations, what somebody
// changes by hand, and heartbeats come in any order. When all have come, the
// records say what the host shows.
func TestBusyHostsAreRecordedAsTheyAre(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	differences, wholes := 0, 0

	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 2))
		b := newBusyHost(t, r, fmt.Sprintf("busy%d", seed), 3)

		for range 30 {
			card := fmt.Sprintf("card%d", random.IntN(3))
			switch random.IntN(6) {
			case 0:
				if !b.busy[card] {
					b.load(t, card, fmt.Sprintf("image-%d", random.IntN(3)))
				}
			case 1:
				b.edit(card, func(d *cyborg.DeviceReport) { d.BoardInfo = cyborg.JSONObject{"serial": float64(random.IntN(3))} })
			case 2:
				b.edit(card, func(d *cyborg.DeviceReport) {
					d.Deployables = slices.Clone(d.Deployables)
					d.Deployables[0].BitstreamID = fmt.Sprintf("image-%d", random.IntN(3))
				})
			case 3:
				if len(b.flight) == 0 {
					b.tellNext()
				}
			case 4:
				if len(b.flight) > 0 {
					b.deliver(t)
					differences++
				}
			case 5:
				if len(b.ending) > 0 {
					b.endOne(random.IntN(len(b.ending)))
				}
			}
		}

		b.settle(t)
		wholes += b.wholes

		fresh := &host{records: r, name: fmt.Sprintf("fresh%d", seed), boot: "boot-1", content: b.content}
		fresh.report(t)
		require.Equal(t, strings.ReplaceAll(fresh.inventory(t), fresh.name, b.name), b.inventory(t), "seed %d", seed)
	}

	require.Greater(t, differences, 2*wholes, "most reports were taken as differences")
}

// TestChangeThatIsTakenBackByHand: an operation loads an image after a report
// was made and before it is recorded, and somebody takes the image back. The
// host then shows what it has reported, so the agent sees no reason to report;
// the conductor asks.
func TestChangeThatIsTakenBackByHand(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	b := newBusyHost(t, r, "h1", 2)

	b.edit("card0", func(d *cyborg.DeviceReport) { d.BoardInfo = cyborg.JSONObject{"serial": 1.0} })
	b.tellNext()
	before := b.content
	b.load(t, "card1", "image")
	b.endOne(0)
	b.deliver(t)
	require.Equal(t, "image", b.accelerator(t, "card1").BitstreamID)

	b.content = before
	require.Equal(t, b.base.Digest, b.content.Digest())
	b.settle(t)
	require.Empty(t, b.accelerator(t, "card1").BitstreamID)
}
