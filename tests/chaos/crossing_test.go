package chaos_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/clock"
)

// kindCross is several clients that work on one card at the same time, which is
// not an operation.
const kindCross cyborg.OperationKind = "cross"

// move is what one of these clients does next.
type move string

const (
	moveAttach  move = "attach"
	moveDetach  move = "detach"
	moveForce   move = "force" // a detach by force
	moveProgram move = "program"
	moveCancel  move = "cancel" // the newest operation on the card, whoever requested it
)

// stayer holds and uses a handle of the card all the time, where the work says
// so: nobody asks to take it back.
func stayer() cyborg.Holder { return cyborg.Holder{Kind: cyborg.HolderService, ID: "stayer"} }

const (
	// crossingLatency is how long a step on the card takes, so that the operations
	// meet each other and the faults.
	crossingLatency = fake.Duration(200 * time.Millisecond)
	// crossingTries is how often a client asks again where another operation has
	// the card.
	crossingTries = 5
)

// addCrossing adds clients that work on one card at the same time, and a fault
// that strikes them.
func (p *planner) addCrossing(r *round, used map[string]bool) {
	w := p.work(stage{kind: kindCross}, used)
	if w.kind != kindCross { // no card is left
		return
	}

	w.holder, w.async, w.cancel, w.retry, w.used = 0, false, false, false, p.chance(40)
	for client := range 4 {
		moves := make([]move, 3+p.random.IntN(3))
		for i := range moves {
			switch {
			case client == 3:
				moves[i] = pick(p, []move{moveProgram, moveProgram, moveProgram, moveCancel})
			case i == 0:
				moves[i] = moveAttach
			default:
				moves[i] = pick(p, []move{moveAttach, moveAttach, moveDetach, moveDetach, moveDetach, moveForce, moveCancel})
			}
		}
		w.clients = append(w.clients, moves)
	}
	r.works = append(r.works, w)

	p.addStrike(r, hostName(w.host))
}

// addStrike adds a fault that strikes the host of the last work, while its clients are
// at work.
func (p *planner) addStrike(r *round, host string) {
	var strikes []fault
	for _, f := range []fault{
		{faultKind: kill, target: host},
		{faultKind: reboot, target: host},
		{faultKind: freeze, target: host},
		{faultKind: silence, target: host + ">temporal"},
		{faultKind: cut, target: host + ">temporal"},
		{faultKind: kill, target: pick(p, []string{"conductor1", "conductor2"})},
		{faultKind: kill, target: "temporal"},
		{faultKind: freeze, target: "postgres"},
	} {
		if p.wants(f.faultKind) {
			strikes = append(strikes, f)
		}
	}
	if len(strikes) == 0 {
		return
	}

	chosen := pick(p, strikes)
	f := p.fault(chosen.faultKind, chosen.target, len(r.works)-1)
	f.when, f.after = before, p.between(0, 1500*time.Millisecond)
	r.faults = append(r.faults, f)
}

// possession is what a client knows of its holder.
type possession string

const (
	hasNot  possession = "has not"
	has     possession = "has"
	perhaps possession = "may have"
)

// crossing is what the clients of one card know.
type crossing struct {
	clients []*crosser
	image   string // that the card has; empty where nobody knows
	unsure  bool   // an image may still come, or has, of which nobody was told
	boots   int    // of its host, before
}

// crosser is a client whose holder no other client attaches or detaches, so that
// it knows what its holder has, whatever the others do.
type crosser struct {
	holder cyborg.Holder
	moves  []move
	knows  possession
	handle string // with its tripwire; empty without
	unsure bool   // a try of its own that was given up may still come, or has
}

// prepareCrossing frees the card, except for the one who stays, and makes its
// steps slower.
func (d *driver) prepareCrossing(ctx context.Context, j *job, a apiclient.Accelerator) error {
	if err := d.free(ctx, a); err != nil {
		return err
	}
	if err := d.load(ctx, a); err != nil {
		return err
	}

	if j.used {
		if err := d.mustDo(ctx, d.attach(a.UUID, stayer(), j.api, false)); err != nil {
			return err
		}
		j.request.holder = stayer()
	}

	j.request.what = "work of several clients"
	j.crossing = &crossing{boots: d.ledger.bootsOf(j.host)}
	for i, moves := range j.clients {
		c := &crosser{moves: moves, knows: hasNot}
		if i < 3 {
			c.holder = holderOf(j.host, []int{0, 1, 3}[i])
		}
		j.crossing.clients = append(j.crossing.clients, c)
	}

	return d.slow(ctx, j, crossingLatency)
}

// slow sets how long the steps on the job's card take.
func (d *driver) slow(ctx context.Context, j *job, latency fake.Duration) error {
	return d.c.Bench(j.host).Edit(ctx, j.card, func(card *fake.Card) {
		for _, step := range []fake.Step{fake.StepAttach, fake.StepDetach, fake.StepProgram} {
			if latency == 0 {
				delete(card.Latency, step)
				continue
			}
			if card.Latency == nil {
				card.Latency = map[fake.Step]fake.Duration{}
			}
			card.Latency[step] = latency
		}
	})
}

// runCrossing lets all clients make their moves.
func (d *driver) runCrossing(ctx context.Context, j *job) {
	var all sync.WaitGroup
	for i, c := range j.crossing.clients {
		all.Go(func() {
			for n, m := range c.moves {
				if err := d.cross(ctx, j, c, m, (i+n)%len(d.c.APIs)); err != nil {
					d.t.Errorf("%s: client %d, move %d, %s: %v", j.work, i, n, m, err)
					return
				}
			}
		})
	}
	all.Wait()

	if err := d.slow(ctx, j, 0); err != nil {
		d.t.Errorf("the steps on card %s of %s stay slow: %v", j.card, j.host, err)
	}
}

// cross makes one move of a client. It returns an error where what the client is
// told contradicts what it knows.
func (d *driver) cross(ctx context.Context, j *job, c *crosser, m move, api int) error {
	id := j.request.accelerator
	switch m {
	case moveCancel:
		d.cancelIt(ctx, j)
		return nil
	case moveProgram:
		return d.crossProgram(ctx, j, api)
	case moveAttach:
		a, op, recorded, err := d.askCrossing(ctx, d.attach(id, c.holder, api, false))
		if err != nil {
			return err
		}
		c.unsure = c.unsure || a.hung
		if err := c.learn(m, op, recorded); err != nil {
			return err
		}
		return d.guard(ctx, j, c)
	}

	// Nobody but this client may take it, and only from now on.
	if c.handle != "" {
		if err := possess(ctx, d.c.Bench(j.host), tripwire{j.card, c.handle}, cyborg.Holder{}); err != nil {
			return err
		}
		c.handle = ""
	}

	request := d.detach(id, c.holder, api, false)
	if m == moveForce {
		request.what = "detach by force"
		request.send = func(ctx context.Context, client *apiclient.Client, options ...apiclient.Option) (apiclient.Answer, error) {
			return client.ForceDetach(ctx, id, c.holder, options...)
		}
	}

	a, op, recorded, err := d.askCrossing(ctx, request)
	if err != nil {
		return err
	}
	c.unsure = c.unsure || a.hung

	if err := c.learnDetach(m, a, op, recorded); err != nil {
		return err
	}
	return d.guard(ctx, j, c)
}

// learnDetach takes over the answer to a detach, and how its operation has ended.
func (c *crosser) learnDetach(m move, a answer, op operation, recorded bool) error {
	if recorded || a.err != nil || a.unanswered {
		return c.learn(m, op, recorded)
	}
	if c.knows == has && !c.unsure {
		return fmt.Errorf("%s has a handle, and the answer to its detach is %d, as if there were nothing to do", c.holder.ID, a.status)
	}
	c.knows = hasNot
	return nil
}

// learn takes over how an operation of the client has ended.
func (c *crosser) learn(m move, op operation, recorded bool) error {
	switch {
	case c.unsure:
		c.knows = perhaps
	case !recorded:
	case op.state == cyborg.OperationNeedsOperator:
		c.knows = perhaps
	case op.state != cyborg.OperationSucceeded: // what it had done is undone
	case m == moveAttach && c.knows == has:
		return fmt.Errorf("%s has a handle, and operation %s has attached another one", c.holder.ID, op.id)
	case m == moveAttach:
		c.knows = has
	default:
		c.knows = hasNot
	}
	return nil
}

// guard lays the tripwire of a client that has a handle.
func (d *driver) guard(ctx context.Context, j *job, c *crosser) error {
	if c.knows != has || c.handle != "" {
		return nil
	}

	for {
		a, err := d.accelerator(ctx, j.request.accelerator)
		if err != nil {
			if clock.Sleep(ctx, 50*time.Millisecond) != nil {
				return err
			}
			continue
		}

		for _, h := range a.Handles {
			if h.Holder == nil || *h.Holder != c.holder {
				continue
			}

			c.handle = h.Identity
			d.mu.Lock()
			d.laid[j.host] = append(d.laid[j.host], tripwire{j.card, c.handle})
			d.mu.Unlock()
			return possess(ctx, d.c.Bench(j.host), tripwire{j.card, c.handle}, c.holder)
		}
		return fmt.Errorf("%s was told that it has a handle, and none is its own: %+v", c.holder.ID, a.Handles)
	}
}

// accelerator reads an accelerator, past the links, from the first API that
// answers.
func (d *driver) accelerator(ctx context.Context, id uuid.UUID) (a apiclient.Accelerator, err error) {
	for _, api := range d.c.Directs {
		limited, cancel := context.WithTimeout(ctx, time.Second)
		a, _, err = api.Accelerator(limited, id)
		cancel()
		if err == nil {
			return a, nil
		}
	}
	return a, err
}

// crossProgram loads a new image.
func (d *driver) crossProgram(ctx context.Context, j *job, api int) error {
	request, err := d.program(j.host, j.request.accelerator, api, false)
	if err != nil {
		return err
	}
	a, op, recorded, err := d.askCrossing(ctx, request)
	j.crossing.unsure = j.crossing.unsure || a.hung

	switch {
	case err != nil || !recorded:
		return err
	case op.state == cyborg.OperationNeedsOperator:
		j.crossing.image = ""
	case op.state == cyborg.OperationSucceeded && j.used:
		return fmt.Errorf("operation %s has loaded an image, while %s held and used the card", op.id, stayer().ID)
	case op.state == cyborg.OperationSucceeded:
		j.crossing.image = op.bitstream
	}
	return nil
}

// askCrossing sends a request of a client, again where another operation has the
// card, and waits for the end of its operation. The answer says that a try hung
// only where that try may have come although its request was refused at last.
func (d *driver) askCrossing(ctx context.Context, r request) (a answer, op operation, recorded bool, err error) {
	refusedLate := false
	for range crossingTries {
		a = d.ask(ctx, r)
		if cyborg.ErrorKindOf(a.err) != cyborg.ErrClaimed {
			break
		}
		refusedLate = refusedLate || a.hung
		_ = clock.Sleep(ctx, 150*time.Millisecond) // the next request fails where ctx has ended
	}

	for {
		op, recorded, err = d.recorded(ctx, a.key)
		if err == nil && (!recorded || op.state.Ended()) {
			a.hung = refusedLate || a.hung && !recorded
			return a, op, recorded, nil
		}

		if clock.Sleep(ctx, 50*time.Millisecond) != nil {
			return a, op, recorded, fmt.Errorf("operation %s of request %s is %q: %w", op.id, a.key, op.state, ctx.Err())
		}
	}
}

// recorded returns the operation that is recorded for a request, past the API.
func (d *driver) recorded(ctx context.Context, key string) (op operation, ok bool, err error) {
	address, err := d.c.DatabaseURL()
	if err != nil {
		return op, false, err
	}

	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return op, false, err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	rows, err := conn.Query(ctx, "SELECT id, kind, state, coalesce(result->>'bitstream_id', '') FROM operations WHERE idempotency_key = $1", key)
	if err != nil {
		return op, false, err
	}

	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (op operation, err error) {
		return op, row.Scan(&op.id, (*string)(&op.kind), (*string)(&op.state), &op.bitstream)
	})
	if err != nil || len(found) == 0 {
		return op, false, err
	}
	return found[0], true, nil
}

// checkCrossing compares the card, at rest, with what the clients know.
func (d *driver) checkCrossing(ctx context.Context, j *job) error {
	a, _, err := d.c.API.Accelerator(ctx, j.request.accelerator)
	if err != nil {
		return err
	}
	return j.crossing.compare(&a, j.used, d.ledger.bootsOf(j.host))
}

// compare returns an error where an accelerator is not as the clients know.
// stays says that somebody holds a handle all the time.
func (x *crossing) compare(a *apiclient.Accelerator, stays bool, boots int) error {
	holding := map[cyborg.Holder]int{}
	for _, h := range a.Handles {
		if h.Holder != nil {
			holding[*h.Holder]++
		}
	}

	for _, c := range x.clients {
		n := holding[c.holder]
		delete(holding, c.holder)
		if !c.unsure && (n > 1 || c.knows == has && n != 1 || c.knows == hasNot && n != 0) {
			return fmt.Errorf("holder %s %s a handle of %s, but the records give it %d", c.holder.ID, c.knows, a.Name, n)
		}
	}

	if stays && holding[stayer()] != 1 {
		return fmt.Errorf("holder %s held a handle of %s all the time, but the records give it %d", stayer().ID, a.Name, holding[stayer()])
	}
	delete(holding, stayer())
	if len(holding) > 0 {
		return fmt.Errorf("%v hold handles of %s, and never asked for them", holding, a.Name)
	}

	if x.image != "" && !x.unsure && boots == x.boots && a.BitstreamID != x.image {
		return fmt.Errorf("%s was loaded last into %s, but it has %q", x.image, a.Name, a.BitstreamID)
	}
	return nil
}

// describe lists the moves of each client.
func describe(clients [][]move) string {
	var all []string
	for _, moves := range clients {
		words := make([]string, len(moves))
		for i, m := range moves {
			words[i] = string(m)
		}
		all = append(all, strings.Join(words, " "))
	}
	return strings.Join(all, " | ")
}
