package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/clock"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// kindShare is several clients that want the parts of one card, which go to one
// holder, while a person at the machine makes the parts unready and well again, and
// at last may put another card into its place. It is not an operation.
const kindShare cyborg.OperationKind = "share"

// sharedBackend is the backend of that card, and sharedParts how many parts it has.
const (
	sharedBackend = "shared"
	sharedParts   = 2
)

// What the person does, beside the attaches and detaches of the clients. These name
// their part, as in "attach 1", and so do the first two of these.
const (
	moveAil      move = "ail"
	moveRecover  move = "recover"
	moveExchange move = "exchange"
)

// personPause is how long the person waits before each move.
const personPause = 400 * time.Millisecond

// unready is what the person lets a part say.
func unready() cyborg.Condition {
	return cyborg.Condition{Code: "no_link", Level: cyborg.ConditionUnready, Message: "plug the cable in"}
}

// addSharing adds clients that want the parts of the shared card of a host, and a
// fault that strikes them.
func (p *planner) addSharing(r *round, used map[string]bool) {
	w := p.work(stage{kind: kindShare}, used)
	if w.kind != kindShare { // each host has only one shared card
		return
	}

	w.holder, w.async, w.cancel, w.retry, w.used = 0, false, false, false, false
	onPart := func(m move) move { return move(fmt.Sprintf("%s %d", m, p.random.IntN(sharedParts))) }
	for range 3 {
		moves := []move{onPart(moveAttach)}
		for range 2 + p.random.IntN(2) {
			moves = append(moves, onPart(pick(p, []move{moveAttach, moveAttach, moveDetach})))
		}
		w.clients = append(w.clients, moves)
	}

	var person []move
	for range 1 + p.random.IntN(3) {
		person = append(person, onPart(pick(p, []move{moveAil, moveAil, moveRecover})))
	}
	if p.chance(60) {
		person = append(person, moveExchange)
	}
	w.clients = append(w.clients, person)

	r.works = append(r.works, w)
	p.addStrike(r, hostName(w.host))
}

// sharing is what is known of the shared card of a host.
type sharing struct {
	parts   []uuid.UUID // its accelerators, as the round began
	serial  string      // of the card, as the round began
	clients []*sharer

	mu        sync.Mutex // guards exchanged
	exchanged time.Time  // when another card was in its place; zero while none is
}

// sharer is a client that knows what its holder has of each part, because no other
// client attaches or detaches that holder.
type sharer struct {
	moves []move
	of    []*crosser // by part
}

// parts returns the accelerators of the shared card of a host, in the order of the
// parts.
func (d *driver) parts(ctx context.Context, host string) ([]apiclient.Accelerator, error) {
	all, err := apiclient.Collect(d.c.API.Accelerators(ctx, apiclient.AcceleratorFilter{Hosts: []string{host}, Backends: []string{sharedBackend}}, apiclient.Page{}))
	slices.SortFunc(all, func(a, b apiclient.Accelerator) int { return strings.Compare(a.ProviderName, b.ProviderName) })
	return all, err
}

// prepareSharing makes both parts well, ready and free, and their steps slower.
func (d *driver) prepareSharing(ctx context.Context, j *job) error {
	j.card = harness.SharedCard
	bench := d.c.Bench(j.host)
	err := bench.Edit(ctx, j.card, func(card *fake.Card) {
		for _, region := range card.Deployables {
			region.Conditions = nil
		}
	})
	if err != nil {
		return err
	}

	all, err := d.partsUntil(ctx, j.host, func(a *apiclient.Accelerator) bool { return len(a.Conditions) == 0 })
	if err != nil {
		return err
	}
	card, err := bench.Card(ctx, j.card)
	if err != nil {
		return err
	}

	j.request = request{what: "work of several clients on parts of one card", kind: kindShare, api: j.api}
	j.sharing = &sharing{serial: card.Serial}
	for _, a := range all {
		if a, err = d.makeReady(ctx, a); err != nil {
			return err
		}
		if err := d.free(ctx, a); err != nil {
			return err
		}
		j.sharing.parts = append(j.sharing.parts, a.UUID)
	}

	for i, moves := range j.clients {
		c := &sharer{moves: moves}
		for range sharedParts {
			c.of = append(c.of, &crosser{holder: holderOf(j.host, []int{0, 1, 3, 2}[i]), knows: hasNot})
		}
		j.sharing.clients = append(j.sharing.clients, c)
	}
	return d.slow(ctx, j, crossingLatency)
}

// partsUntil waits until all parts are on the card in the slot, and are so.
func (d *driver) partsUntil(ctx context.Context, host string, so func(a *apiclient.Accelerator) bool) ([]apiclient.Accelerator, error) {
	ctx, cancel := context.WithTimeout(ctx, restLimit)
	defer cancel()
	for {
		all, err := d.parts(ctx, host)
		if err == nil && len(all) == sharedParts && !slices.ContainsFunc(all, func(a apiclient.Accelerator) bool { return a.ReplacedBy != "" || !so(&a) }) {
			return all, nil
		}
		if clock.Sleep(ctx, 100*time.Millisecond) != nil {
			return nil, fmt.Errorf("the parts of the shared card of %s are not as they should be: %+v (%w)", host, all, errors.Join(err, ctx.Err()))
		}
	}
}

// runSharing lets all clients and the person make their moves.
func (d *driver) runSharing(ctx context.Context, j *job) {
	var all sync.WaitGroup
	for i, c := range j.sharing.clients {
		all.Go(func() {
			for n, m := range c.moves {
				if err := d.share(ctx, j, c, m, (i+n)%len(d.c.APIs)); err != nil {
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

// share makes one move. It returns an error where what somebody is told, or what the
// card has, contradicts what is known.
func (d *driver) share(ctx context.Context, j *job, c *sharer, m move, api int) error {
	word, number, _ := strings.Cut(string(m), " ")
	part, err := strconv.Atoi(number)
	if err != nil && move(word) != moveExchange {
		return err
	}

	switch move(word) {
	case moveAttach:
		return d.shareAttach(ctx, j, c.of[part], part, api)
	case moveDetach:
		return d.shareDetach(ctx, j, c.of[part], part, api)
	}

	_ = clock.Sleep(ctx, personPause) // the edit fails where ctx has ended
	if move(word) == moveExchange {
		return d.exchange(ctx, j)
	}
	return d.c.Bench(j.host).Edit(ctx, j.card, func(card *fake.Card) {
		region := card.Deployables[fmt.Sprintf("r%d", part)]
		region.Conditions = nil
		if move(word) == moveAil {
			region.Conditions = []cyborg.Condition{unready()}
		}
	})
}

// newCard says on the card that is put into the place of another one that somebody
// else has it, so that its tripwire notes whatever is done to it.
const newCard = "nobody"

// exchange puts another card into the place of the shared one, and lays the tripwire
// on it in the same moment.
func (d *driver) exchange(ctx context.Context, j *job) error {
	serial := fmt.Sprintf("S%d", d.serial())
	err := d.c.Bench(j.host).Edit(ctx, j.card, func(card *fake.Card) {
		fresh := fake.Card{BootID: card.BootID, Serial: serial, Script: card.Script, Latency: card.Latency, Deployables: map[string]*fake.Region{}}
		for key, was := range card.Deployables {
			fresh.Deployables[key] = &fake.Region{Handles: map[string]*fake.Handle{}}
			for address := range was.Handles {
				fresh.Deployables[key].Handles[address] = &fake.Handle{HeldBy: newCard, Guest: true}
			}
		}
		*card = fresh
	})

	j.sharing.mu.Lock()
	defer j.sharing.mu.Unlock()
	j.sharing.exchanged = time.Now()
	return err
}

// isExchanged reports whether another card was in the place of the shared one before
// that moment.
func (x *sharing) isExchanged(before time.Time) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !x.exchanged.IsZero() && x.exchanged.Before(before)
}

// shareAttach has a client attach a part.
func (d *driver) shareAttach(ctx context.Context, j *job, c *crosser, part, api int) error {
	asked := time.Now()
	a, op, recorded, err := d.askCrossing(ctx, d.attach(j.sharing.parts[part], c.holder, api, false))
	if err != nil {
		return err
	}
	if recorded && op.state == cyborg.OperationSucceeded && j.sharing.isExchanged(asked) {
		return fmt.Errorf("operation %s has given %s part %d, and another card was in its place before anybody asked", op.id, c.holder.ID, part)
	}

	c.unsure = c.unsure || a.hung
	if err := c.learn(moveAttach, op, recorded); err != nil {
		return err
	}
	if c.knows != has || c.handle != "" {
		return nil
	}

	now, err := d.held(ctx, j.sharing.parts[part])
	if err != nil {
		return err
	}
	at := slices.IndexFunc(now.Handles, func(h cyborg.AttachHandle) bool { return h.Holder != nil && *h.Holder == c.holder })
	if at < 0 {
		return fmt.Errorf("%s was told that it has a handle, and none is its own: %+v", c.holder.ID, now.Handles)
	}

	var wrong error
	err = d.c.Bench(j.host).Edit(ctx, j.card, func(card *fake.Card) {
		if card.Serial != j.sharing.serial {
			return // it has a part of a card that is gone
		}
		c.handle = now.Handles[at].Identity
		wrong = layBeside(card, c.handle, c.holder)
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.laid[j.host] = append(d.laid[j.host], tripwire{j.card, now.Handles[at].Identity})
	return errors.Join(err, wrong)
}

// held reads an accelerator that somebody holds, and so is in the records.
func (d *driver) held(ctx context.Context, id uuid.UUID) (apiclient.Accelerator, error) {
	for {
		a, err := d.accelerator(ctx, id)
		if err == nil || cyborg.ErrorKindOf(err) == cyborg.ErrNotFound || clock.Sleep(ctx, 50*time.Millisecond) != nil {
			return a, err
		}
	}
}

// layBeside says on a card whose parts go to one holder who has a handle of it. It
// returns an error where somebody else has another one, as the card says: a host of
// which a handle is attached, or who was told that it has one and has not asked to
// give it back.
func layBeside(card *fake.Card, handle string, holder cyborg.Holder) (wrong error) {
	by := fmt.Sprintf("%s:%s", holder.Kind, holder.ID)
	for _, region := range card.Deployables {
		for address, h := range region.Handles {
			switch {
			case h.HeldBy != "" && h.HeldBy != by:
				wrong = fmt.Errorf("%s has handle %s of a card that goes to one holder, and %s has %s", by, handle, h.HeldBy, address)
			case h.Attached && holder.Kind != cyborg.HolderHost:
				wrong = fmt.Errorf("%s has handle %s of a card that goes to one holder, and %s is attached to the host", by, handle, address)
			}
			if address == handle {
				h.HeldBy, h.InUseBy, h.Guest = by, by, holder.Kind != cyborg.HolderHost
			}
		}
	}
	return wrong
}

// shareDetach has a client give a part back.
func (d *driver) shareDetach(ctx context.Context, j *job, c *crosser, part, api int) error {
	if c.handle != "" { // only this client may take it, and only from now on
		err := d.c.Bench(j.host).Edit(ctx, j.card, func(card *fake.Card) {
			if card.Serial != j.sharing.serial {
				return
			}
			for _, region := range card.Deployables {
				if h := region.Handles[c.handle]; h != nil {
					h.HeldBy, h.InUseBy, h.Guest = "", "", false
				}
			}
		})
		if err != nil {
			return err
		}
		c.handle = ""
	}

	a, op, recorded, err := d.askCrossing(ctx, d.detach(j.sharing.parts[part], c.holder, api, false))
	if err != nil {
		return err
	}
	if c.knows == has && !c.unsure && !recorded && cyborg.ErrorKindOf(a.err) == cyborg.ErrNotFound {
		return fmt.Errorf("%s has part %d, and it has left the records: %w", c.holder.ID, part, a.err)
	}
	c.unsure = c.unsure || a.hung
	return c.learnDetach(moveDetach, a, op, recorded)
}

// settleExchange gives back what somebody has of a card that is gone, as its holder
// or an operator does, and waits for the other card to come as new hardware, to which
// nothing was done. Then it takes the tripwire off.
func (d *driver) settleExchange(ctx context.Context, j *job) error {
	if !j.sharing.isExchanged(time.Now()) {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, restLimit)
	defer cancel()
	for _, id := range j.sharing.parts {
		for {
			a, err := d.accelerator(ctx, id)
			if cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {
				break
			}
			if err == nil && len(a.Holders) > 0 && a.ReplacedBy != "" && a.Claim == nil {
				err = d.doOnce(ctx, d.detach(id, cyborg.Holder{}, 0, false))
			}
			if clock.Sleep(ctx, 100*time.Millisecond) != nil {
				return fmt.Errorf("accelerator %s of a card that is gone stays in the records (%s, %s, replaced by %q): %w", id, a.Presence, a.Status, a.ReplacedBy, err)
			}
		}
	}

	all, err := d.partsUntil(ctx, j.host, func(a *apiclient.Accelerator) bool {
		return a.Lifecycle == cyborg.LifecycleInactive && !slices.Contains(j.sharing.parts, a.UUID)
	})
	if err != nil {
		return err
	}
	var wrong error
	err = d.c.Bench(j.host).Edit(ctx, j.card, func(card *fake.Card) {
		wrong = touched(card, all)
		for _, region := range card.Deployables {
			for _, h := range region.Handles {
				h.HeldBy, h.Guest = "", false
			}
		}
	})
	return errors.Join(err, wrong)
}

// touched returns an error where something was done to a card that nobody has asked
// for, or where somebody has it.
func touched(card *fake.Card, parts []apiclient.Accelerator) error {
	for key, region := range card.Deployables {
		if region.Installed || region.BitstreamID != "" {
			return fmt.Errorf("%s of the new card %s is installed (%v) or has an image (%q), and nobody has asked for that", key, card.Serial, region.Installed, region.BitstreamID)
		}
		for address, h := range region.Handles {
			if h.Attached {
				return fmt.Errorf("handle %s of the new card %s is attached, and nobody has asked for that", address, card.Serial)
			}
		}
	}
	for i := range parts {
		if len(parts[i].Holders) > 0 {
			return fmt.Errorf("the records give %s, of the new card %s, to %v, and nobody has asked for that", parts[i].Name, card.Serial, parts[i].Holders)
		}
	}
	return nil
}

// checkSharing compares the shared card, at rest, with what the clients know.
func (d *driver) checkSharing(ctx context.Context, j *job) error {
	all, err := d.parts(ctx, j.host)
	if err != nil {
		return err
	}
	return j.sharing.compare(all, j.sharing.isExchanged(time.Now()))
}

// compare returns an error where the accelerators of the shared card are not as the
// clients know. Nobody has anything of a card that was exchanged and of its successor.
func (x *sharing) compare(all []apiclient.Accelerator, exchanged bool) error {
	if len(all) != len(x.parts) {
		return fmt.Errorf("the shared card has %d accelerators", len(all))
	}

	for part := range all {
		a := &all[part]
		if (a.UUID != x.parts[part]) != exchanged {
			return fmt.Errorf("part %d of the shared card is accelerator %s, and was %s; another card is there: %v", part, a.UUID, x.parts[part], exchanged)
		}

		holding := map[cyborg.Holder]int{}
		for _, h := range a.Handles {
			if h.Holder != nil {
				holding[*h.Holder]++
			}
		}
		for _, client := range x.clients {
			c := client.of[part]
			n := holding[c.holder]
			delete(holding, c.holder)
			switch {
			case exchanged && n != 0:
				return fmt.Errorf("holder %s has a handle of %s, which came in the place of the one that it had", c.holder.ID, a.Name)
			case !exchanged && !c.unsure && (n > 1 || c.knows == has && n != 1 || c.knows == hasNot && n != 0):
				return fmt.Errorf("holder %s %s a handle of %s, but the records give it %d", c.holder.ID, c.knows, a.Name, n)
			}
		}
		if len(holding) > 0 {
			return fmt.Errorf("%v hold handles of %s, and never asked for them", holding, a.Name)
		}
	}
	return nil
}
