package db_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// together has the cards of a host report that they go to one holder, each group
// by its name.
func (h *host) together(t testing.TB, groups map[string]string) {
	t.Helper()
	for i := range h.devices() {
		d := &h.content.Backends[0].Devices[i]
		d.Deployables[0].SameHolder = groups[d.Identity]
	}
	h.report(t)
}

// addTogether adds a host with a number of cards in service that go to one holder,
// and a further one that does not. Each has one handle.
func (r *records) addTogether(t testing.TB, name string, cards int) (*host, []*cyborg.Accelerator) {
	t.Helper()
	h := &host{records: r, name: name, boot: "boot-1", content: content(cards + 1)}
	groups := map[string]string{}
	for i := range h.content.Backends[0].Devices {
		d := &h.content.Backends[0].Devices[i]
		d.Deployables[0] = deployable(d.Identity, 1)
		if i < cards {
			groups[d.Identity] = "iommu/17"
		}
	}
	h.together(t, groups)

	var out []*cyborg.Accelerator
	for i := range cards + 1 {
		out = append(out, h.ready(t, fmt.Sprintf("card%d", i)))
	}
	return h, out
}

// TestTogetherToOneHolder: of accelerators that go to one holder, nobody else gets
// one while somebody has another. The same holder gets all of them, and afterwards
// anybody does.
func TestTogetherToOneHolder(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	_, cards := r.addTogether(t, "h1", 2)
	first, second, alone := cards[0], cards[1], cards[2]
	require.Equal(t, "iommu/17", first.SameHolder)
	require.Empty(t, first.HeldTogether)

	given := r.do(t, toAttach(first.UUID, onHost("h1")), cyborg.OperationSucceeded)
	require.Equal(t, []cyborg.OtherHeld{{
		Accelerator: first.UUID, Name: first.Name, Holder: new(onHost("h1")), Operation: given.Operation,
	}}, r.accelerator(t, second.UUID).HeldTogether)
	require.Empty(t, r.accelerator(t, first.UUID).HeldTogether)
	require.Empty(t, r.accelerator(t, alone.UUID).HeldTogether)

	_, err := r.Admit(t.Context(), toAttach(second.UUID, instance("vm1")))
	requireKind(t, cyborg.ErrInUse, err, `accelerator "h1_card1" shares iommu/17 with "h1_card0", which host h1 has: they go to one holder`)
	require.Equal(t, given.Operation, cyborg.AsError(err).Operation)
	require.Equal(t, "Give both to the same holder, or detach that one first.", cyborg.AsError(err).Hint)

	r.do(t, toAttach(alone.UUID, instance("vm1")), cyborg.OperationSucceeded)
	r.do(t, toAttach(second.UUID, onHost("h1")), cyborg.OperationSucceeded)
	r.do(t, toDetach(first.UUID, nil), cyborg.OperationSucceeded)
	_, err = r.Admit(t.Context(), toAttach(first.UUID, instance("vm1")))
	requireKind(t, cyborg.ErrInUse, err, "h1_card1")
	r.do(t, toDetach(second.UUID, nil), cyborg.OperationSucceeded)
	r.do(t, toAttach(first.UUID, instance("vm1")), cyborg.OperationSucceeded)
}

// TestTogetherWhenItBegins: what was admitted while nobody had the others is refused
// when it begins, where somebody has one by then.
func TestTogetherWhenItBegins(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	_, cards := r.addTogether(t, "h1", 2)

	late := r.admit(t, toAttach(cards[1].UUID, instance("vm2")))
	work := r.begin(t, toAttach(cards[0].UUID, instance("vm1"))) // no longer than since this moment somebody has it
	_, err := r.Begin(t.Context(), runOf(late.ID))
	requireKind(t, cyborg.ErrInUse, err, "instance vm1 has")
	require.NoError(t, r.End(t.Context(), runOf(late.ID), cyborg.Outcome{Operation: late.ID, State: cyborg.OperationFailed, Error: cyborg.AsError(err)}))

	r.end(t, work, cyborg.OperationFailed)
	r.do(t, toAttach(cards[1].UUID, instance("vm2")), cyborg.OperationSucceeded)
}

// TestTogetherPartsOfOne: all handles of an accelerator that goes to one holder with
// others go to one holder, too.
func TestTogetherPartsOfOne(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	h.together(t, map[string]string{"card0": "iommu/17"})
	a := h.ready(t, "card0")
	r.do(t, toAttach(a.UUID, instance("vm1")), cyborg.OperationSucceeded)

	_, err := r.Admit(t.Context(), toAttach(a.UUID, instance("vm2")))
	requireKind(t, cyborg.ErrInUse, err, "is attached to instance vm1", "iommu/17")
}

// TestTogetherWithTheMissing: what is missing counts as long as somebody has it. After
// a boot its group is unknown, because the kernel has numbered the groups anew.
func TestTogetherWithTheMissing(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, cards := r.addTogether(t, "h1", 2)
	r.do(t, toAttach(cards[0].UUID, instance("vm1")), cyborg.OperationSucceeded)
	all := h.content.Backends[0].Devices
	h.content.Backends[0].Devices = all[1:]
	h.report(t)
	require.Equal(t, cyborg.PresenceMissing, r.accelerator(t, cards[0].UUID).Presence)
	_, err := r.Admit(t.Context(), toAttach(cards[1].UUID, instance("vm2")))
	requireKind(t, cyborg.ErrInUse, err, "instance vm1 has")

	h.boot = "boot-2"
	h.report(t)
	require.Empty(t, r.accelerator(t, cards[0].UUID).SameHolder)
	require.Equal(t, "iommu/17", r.accelerator(t, cards[1].UUID).SameHolder)
	r.do(t, toAttach(cards[1].UUID, instance("vm2")), cyborg.OperationSucceeded)

	h.content.Backends[0].Devices = all
	h.report(t)
	require.Equal(t, "iommu/17", r.accelerator(t, cards[0].UUID).SameHolder)
}

// TestTogetherOfAFailedBackend: a backend that fails after a boot has shown nothing,
// so what it has may well be there, and in the same group.
func TestTogetherOfAFailedBackend(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, cards := r.addTogether(t, "h1", 2)
	r.do(t, toAttach(cards[0].UUID, instance("vm1")), cyborg.OperationSucceeded)
	h.boot = "boot-2"
	h.content.Backends[0].State, h.content.Backends[0].Devices = cyborg.BackendFailed, nil
	h.report(t)
	_, err := r.Admit(t.Context(), toAttach(cards[1].UUID, instance("vm2")))
	requireKind(t, cyborg.ErrInUse, err, "instance vm1 has")
}

// TestTogetherIsToldLast: that an accelerator has appeared is told before what goes to
// one holder with it.
func TestTogetherIsToldLast(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	_, cards := r.addTogether(t, "h1", 1)
	require.Equal(t, []string{"presence", "name", "lifecycle", "administration", "same_holder"}, scalar[[]string](t, r, `
		SELECT (array_agg(axis ORDER BY id))[1:5] FROM events WHERE subject_kind = 'accelerator' AND subject_id = $1`, cards[0].UUID.String()))
}

// TestTogetherUnconfirmed: who may still have one on the host counts as its holder.
func TestTogetherUnconfirmed(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, cards := r.addTogether(t, "h1", 2)
	r.do(t, toAttach(cards[0].UUID, onHost("h1")), cyborg.OperationSucceeded)
	h.fall(t)
	r.do(t, toForce(cards[0].UUID, nil), cyborg.OperationSucceeded)
	h.hear(t)

	_, err := r.Admit(t.Context(), toAttach(cards[1].UUID, instance("vm1")))
	requireKind(t, cyborg.ErrInUse, err, "which host h1 may still have")
	require.Contains(t, cyborg.AsError(err).Hint, "Reconcile asks host h1")

	r.exec(t, "UPDATE attach_handles SET unconfirmed_kind = NULL, unconfirmed_id = NULL, unconfirmed_operation = NULL")
	r.do(t, toAttach(cards[1].UUID, instance("vm1")), cyborg.OperationSucceeded)
}

// TestTogetherBind: a bind fails where somebody else has what goes to one holder with
// an accelerator that it asks for, and says so in its requests. An instance may bind
// several of them at once.
func TestTogetherBind(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	_, cards := r.addTogether(t, "h1", 2)
	r.profile(t, "one", one())
	r.profile(t, "two", one(), one())

	both := r.request(t, "two")
	who := vm()
	bind := toBind("h1", who, cards[0].ProviderUUID, both...)
	edit(&bind, func(b *cyborg.BindRequest) { b.ARQs[1].Provider = cards[1].ProviderUUID })
	r.do(t, bind, cyborg.OperationSucceeded)
	_, err := r.DeleteARQs(t.Context(), db.ARQDeletion{UUIDs: []uuid.UUID{both[0].UUID}, AllowBound: true}, alice())
	require.NoError(t, err)

	asked := r.request(t, "one")[0]
	out, err := r.Admit(t.Context(), toBind("h1", vm(), cards[0].ProviderUUID, asked))
	requireKind(t, cyborg.ErrInUse, err, `shares iommu/17 with "h1_card1", which `+who.String()+" has")
	require.Equal(t, cyborg.OperationFailed, scalar[cyborg.OperationState](t, r, "SELECT state FROM operations WHERE id = $1", out.Operation.ID))
	found, err := r.ARQs(t.Context(), db.ARQFilter{UUIDs: []uuid.UUID{asked.UUID}}, db.Listing{})
	require.NoError(t, err)
	require.Equal(t, cyborg.ARQBindFailed, found[0].State)
	require.Contains(t, found[0].Reason, "they go to one holder")

	_, err = r.Admit(t.Context(), toAttach(cards[0].UUID, onHost("h1")))
	requireKind(t, cyborg.ErrInUse, err, who.String())
	r.do(t, toAttach(cards[0].UUID, who), cyborg.OperationSucceeded)
}

// TestTogetherBindLooksAtHolders: a caller that wants to check the holders first is
// refused, and nothing is recorded.
func TestTogetherBindLooksAtHolders(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	_, cards := r.addTogether(t, "h1", 2)
	r.profile(t, "one", one())
	r.do(t, toBind("h1", vm(), cards[0].ProviderUUID, r.request(t, "one")[0]), cyborg.OperationSucceeded)

	for _, card := range cards[:2] {
		asked := r.request(t, "one")[0]
		looks := toBind("h1", vm(), card.ProviderUUID, asked)
		edit(&looks, func(b *cyborg.BindRequest) { b.RefuseIfHeld = true })
		_, err := r.Admit(t.Context(), looks)
		requireKind(t, cyborg.ErrNoFit, err)
		require.Equal(t, cyborg.ARQInitial, r.arq(t, asked.UUID).State)

		found, err := r.RelatedProviders(t.Context(), []uuid.UUID{card.ProviderUUID})
		require.NoError(t, err)
		require.ElementsMatch(t, []uuid.UUID{cards[0].ProviderUUID, cards[1].ProviderUUID}, found)
	}
	found, err := r.RelatedProviders(t.Context(), []uuid.UUID{cards[2].ProviderUUID})
	require.NoError(t, err)
	require.Equal(t, []uuid.UUID{cards[2].ProviderUUID}, found)
}

// TestTogetherBindWaits: a bind waits for the operation that takes back what somebody
// else has of the others, however it came to have it.
func TestTogetherBindWaits(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addPCIHost(t, "h1", 2)
	h.together(t, map[string]string{"card0": "iommu/17", "card1": "iommu/17"})
	first, second := h.ready(t, "card0"), h.ready(t, "card1")
	r.profile(t, "one", one())
	waits := func(work cyborg.Work) {
		t.Helper()
		asked := r.request(t, "one")[0]
		_, err := r.Admit(t.Context(), toBind("h1", vm(), first.ProviderUUID, asked))
		requireKind(t, cyborg.ErrClaimed, err, work.Operation.String()+" takes one back")
		require.Equal(t, work.Operation, cyborg.AsError(err).Operation)
		require.Equal(t, cyborg.ARQInitial, r.arq(t, asked.UUID).State)
		r.end(t, work, cyborg.OperationSucceeded)
	}

	r.do(t, toAttach(second.UUID, instance("vm1")), cyborg.OperationSucceeded)
	waits(r.begin(t, toDetach(second.UUID, nil)))

	held := r.request(t, "one")[0]
	r.do(t, toBind("h1", vm(), second.ProviderUUID, held), cyborg.OperationSucceeded)
	waits(r.begin(t, toUnbind(held)))

	r.do(t, toBind("h1", vm(), first.ProviderUUID, r.request(t, "one")[0]), cyborg.OperationSucceeded)
}

// TestTogetherOfMany: there is one entry for each holder of the others, whatever it has
// of them, and none of what one has itself.
func TestTogetherOfMany(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, cards := r.addTogether(t, "h1", 4)
	for _, card := range cards[:3] {
		r.do(t, toAttach(card.UUID, instance("vm1")), cyborg.OperationSucceeded)
	}
	r.do(t, toAttach(cards[4].UUID, instance("vm2")), cyborg.OperationSucceeded)
	h.together(t, map[string]string{"card0": "iommu/17", "card1": "iommu/17", "card2": "iommu/17", "card3": "iommu/17", "card4": "iommu/17"})

	for i, want := range [][]string{
		{"h1_card1 vm1", "h1_card4 vm2"}, {"h1_card0 vm1", "h1_card4 vm2"}, {"h1_card0 vm1", "h1_card4 vm2"}, {"h1_card0 vm1", "h1_card4 vm2"}, {"h1_card0 vm1"},
	} {
		var got []string
		for _, other := range r.accelerator(t, cards[i].UUID).HeldTogether {
			got = append(got, other.Name+" "+other.Holder.ID)
		}
		require.Equal(t, want, got, cards[i].Name)
	}
}

// TestTogetherConcurrentBinds: of many binds of different accelerators that go to one
// holder, through several processes, those of one instance win. No other one does,
// and none fails for another reason.
func TestTogetherConcurrentBinds(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	_, cards := r.addTogether(t, "h1", 8)
	r.profile(t, "one", one())
	other := openStore(t, r.url, defaults())

	for range 5 {
		var (
			wg  sync.WaitGroup
			won atomic.Int32
		)
		for i, card := range cards[:8] {
			arq, store := r.request(t, "one")[0], r.Store
			if i%2 == 1 {
				store = other
			}

			wg.Go(func() {
				switch _, err := store.Admit(t.Context(), toBind("h1", vm(), card.ProviderUUID, arq)); cyborg.ErrorKindOf(err) {
				case "":
					won.Add(1)
				case cyborg.ErrInUse:
				default:
					t.Error(err)
				}
			})
		}

		wg.Wait()
		require.EqualValues(t, 1, won.Load())
		require.Equal(t, 1, scalar[int](t, r, "SELECT count(*) FROM attach_handles WHERE holder_kind IS NOT NULL"))
		for _, op := range scalar[[]uuid.UUID](t, r, "SELECT array_agg(id) FROM operations WHERE open") {
			work, err := r.Begin(t.Context(), runOf(op))
			require.NoError(t, err)
			r.end(t, work, cyborg.OperationSucceeded)
		}
		_, err := r.DeleteARQs(t.Context(), db.ARQDeletion{UUIDs: scalar[[]uuid.UUID](t, r, "SELECT array_agg(uuid) FROM arqs"), AllowBound: true}, alice())
		require.NoError(t, err)
	}
}

// TestTogetherUnderRaces: while many bind and attach accelerators that go to one
// holder, and give them back, through several processes, at no time two have some.
// What is refused is refused because somebody has one, and nothing waits in a circle.
func TestTogetherUnderRaces(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, cards := r.addTogether(t, "h1", 4)
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, time.Hour))
	r.profile(t, "one", one())
	stores := []*db.Store{r.Store, openStore(t, r.url, defaults())}

	var (
		wg    sync.WaitGroup
		given atomic.Int32
	)
	refused := func(err error) bool {
		switch kind := cyborg.ErrorKindOf(err); kind {
		case "":
			given.Add(1)
			if holders := scalar[int](t, r, "SELECT count(DISTINCT (holder_kind, holder_id)) FROM attach_handles WHERE holder_kind IS NOT NULL AND deployable_uuid <> $1", cards[4].UUID); holders > 1 {
				t.Errorf("%d have what goes to one holder", holders)
			}
			return false
		case cyborg.ErrInUse, cyborg.ErrClaimed, cyborg.ErrNotFound:
			return true
		default:
			t.Error(err)
			return true
		}
	}
	finish := func(store *db.Store, run db.Run) {
		if err := store.End(t.Context(), run, cyborg.Outcome{Operation: run.Operation, State: cyborg.OperationSucceeded}); err != nil {
			t.Error(err)
		}
	}
	attach := func(store *db.Store, id uuid.UUID) {
		out, err := store.Admit(t.Context(), toAttach(id, vm()))
		if err != nil {
			refused(err)
			return
		}
		run := runOf(out.Operation.ID)
		if _, err := store.Begin(t.Context(), run); refused(err) {
			if err := store.End(t.Context(), run, cyborg.Outcome{Operation: run.Operation, State: cyborg.OperationFailed, Error: cyborg.AsError(err)}); err != nil {
				t.Error(err)
			}
			return
		}
		finish(store, run)
		if out, err = store.Admit(t.Context(), toDetach(id, nil)); err != nil {
			t.Error(err)
			return
		}
		if _, err := store.Begin(t.Context(), runOf(out.Operation.ID)); err != nil {
			t.Error(err)
		}
		finish(store, runOf(out.Operation.ID))
	}
	bind := func(store *db.Store, provider uuid.UUID) {
		arqs, err := store.CreateARQs(t.Context(), "one", alice())
		if err != nil {
			t.Error(err)
			return
		}
		out, err := store.Admit(t.Context(), toBind("h1", vm(), provider, arqs...))
		if !refused(err) {
			if _, err := store.Begin(t.Context(), runOf(out.Operation.ID)); err != nil {
				t.Error(err)
			}
			finish(store, runOf(out.Operation.ID))
		}
		if _, err := store.DeleteARQs(t.Context(), db.ARQDeletion{UUIDs: []uuid.UUID{arqs[0].UUID}, AllowBound: true}, alice()); err != nil {
			t.Error(err)
		}
	}

	for i := range 16 {
		wg.Go(func() {
			for n := range 12 {
				store, card := stores[i%2], cards[(i+n)%4]
				if i%4 == 3 {
					attach(store, card.UUID)
				} else {
					bind(store, card.ProviderUUID)
				}
			}
		})
	}
	wg.Go(func() { // what locks the whole host runs among them
		for n := range 20 {
			h.content.Backends[0].Devices[0].Model = fmt.Sprint("F", n)
			h.report(t)
		}
	})

	wg.Wait()
	require.Positive(t, given.Load())
	r.requireAgreed(t)
}

// TestTogetherInTheSchema: the database itself refuses a second holder, whoever
// writes it, also where two transactions do that at once; but not a report that finds
// two holders in one group.
func TestTogetherInTheSchema(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h, cards := r.addTogether(t, "h1", 3)
	const give = `UPDATE attach_handles SET holder_kind = 'service', holder_id = $2, operation_id = gen_random_uuid() WHERE deployable_uuid = $1`
	refused := func(err error) {
		t.Helper()
		var pg *pgconn.PgError
		require.ErrorAs(t, err, &pg)
		require.Equal(t, []string{"23P01", "attach_handles_same_holder"}, []string{pg.Code, pg.ConstraintName}, pg.Message)
	}

	first, err := r.sql.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = first.Rollback(t.Context()) }()
	_, err = first.Exec(t.Context(), give, cards[0].UUID, "s1")
	require.NoError(t, err)

	failed := make(chan error, 1)
	go func() {
		_, err := r.sql.Exec(t.Context(), give, cards[1].UUID, "s2")
		failed <- err
	}()
	require.Eventually(t, func() bool {
		return len(failed) > 0 || scalar[bool](t, r, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))")
	}, 5*time.Minute, time.Millisecond)
	require.NoError(t, first.Commit(t.Context()))
	refused(<-failed)

	_, err = r.sql.Exec(t.Context(), give, cards[0].UUID, "s2") // another holder of the same handle
	require.NoError(t, err)
	_, err = r.sql.Exec(t.Context(), "UPDATE attach_handles SET holder_kind = 'service', holder_id = uuid::text, operation_id = gen_random_uuid() WHERE host = 'h1'")
	refused(err)
	_, err = r.sql.Exec(t.Context(), give, cards[1].UUID, "s2")
	require.NoError(t, err)

	// Two holders in one group since a boot.
	_, err = r.sql.Exec(t.Context(), give, cards[3].UUID, "s4")
	require.NoError(t, err)
	h.together(t, map[string]string{"card0": "iommu/17", "card3": "iommu/17"})
	require.Equal(t, "iommu/17", r.accelerator(t, cards[3].UUID).SameHolder)
	require.Equal(t, []string{"''=>'iommu/17'", "'iommu/17'=>''"}, scalar[[]string](t, r, `
		SELECT array_agg(format('%L=>%L', from_value, to_value) ORDER BY id) FROM events WHERE axis = 'same_holder' AND subject_id = $1`, cards[1].UUID))
	require.True(t, r.accelerator(t, cards[3].UUID).HeldTogether[0].Precludes(cyborg.Holder{Kind: "service", ID: "s4"}))
	_, err = r.sql.Exec(t.Context(), "UPDATE attach_handles SET attached_at = now() WHERE deployable_uuid = $1", cards[3].UUID)
	require.NoError(t, err, "who has it already is not asked")
}

// TestTogetherWithWhitelist: what Nova may give out counts as Nova's, and Nova does
// not get what goes to one holder with what Cyborg has given out.
func TestTogetherWithWhitelist(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addPCIHost(t, "h1", 2)
	h.together(t, map[string]string{"card0": "iommu/17", "card1": "iommu/17"})
	cards := []*cyborg.Accelerator{h.ready(t, "card0"), h.accelerator(t, "card1")}
	r.do(t, toAttach(cards[0].UUID, instance("vm1")), cyborg.OperationSucceeded)
	_, err := r.Admit(t.Context(), toWhitelist("h1", cards[1]))
	requireKind(t, cyborg.ErrInUse, err, `shares iommu/17 with "h1_card0", which instance vm1 has`)

	r.do(t, toDetach(cards[0].UUID, nil), cyborg.OperationSucceeded)
	r.do(t, toWhitelist("h1", cards[1]), cyborg.OperationSucceeded)
	_, err = r.Admit(t.Context(), toAttach(cards[0].UUID, instance("vm1")))
	requireKind(t, cyborg.ErrInUse, err, `"h1_card1", which Nova may give out`)
	require.Contains(t, cyborg.AsError(err).Hint, "whitelist")
	_, err = r.sql.Exec(t.Context(), "UPDATE attach_handles SET holder_kind = 'service', holder_id = 's', operation_id = gen_random_uuid() WHERE deployable_uuid = $1", cards[0].UUID)
	require.ErrorContains(t, err, "which Nova may give out")
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg)
	require.Contains(t, pg.Hint, "whitelist")

	r.do(t, toWhitelist("h1"), cyborg.OperationSucceeded)
	r.do(t, toAttach(cards[0].UUID, instance("vm1")), cyborg.OperationSucceeded)

	_, err = r.sql.Exec(t.Context(), "UPDATE deployables SET nova_spec = '{}' WHERE uuid = $1", cards[1].UUID)
	require.ErrorAs(t, err, &pg)
	require.Equal(t, []string{"23P01", "attach_handles_same_holder"}, []string{pg.Code, pg.ConstraintName}, pg.Message)
	require.Contains(t, pg.Message, "which instance vm1 has")
}
