package db_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
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

// excluding has the cards of a host report what they exclude, each by its name.
func (h *host) excluding(t testing.TB, excludes map[string][]string) {
	t.Helper()
	for i := range h.devices() {
		d := &h.content.Backends[0].Devices[i]
		d.Deployables[0].Excludes = excludes[d.Identity]
	}
	h.report(t)
}

// carved is a host with a card that is offered whole, with its parts, and with another
// card.
type carved struct {
	*host

	whole, other *cyborg.Accelerator
	parts        []*cyborg.Accelerator
}

// addCarved adds a host with a card that is offered whole, in service, as its parts are,
// and a further card. Each has one handle. Only the whole names the parts.
func (r *records) addCarved(t testing.TB, name string, parts int) carved {
	t.Helper()
	h := &host{records: r, name: name, boot: "boot-1", content: content(parts + 2)}
	var names []string
	for i := range h.content.Backends[0].Devices {
		d := &h.content.Backends[0].Devices[i]
		d.Deployables[0] = deployable(d.Identity, 1)
		if i > 0 && i <= parts {
			names = append(names, d.Deployables[0].Name)
		}
	}
	h.excluding(t, map[string][]string{"card0": names})

	var cards []*cyborg.Accelerator
	for i := range parts + 2 {
		cards = append(cards, h.ready(t, fmt.Sprintf("card%d", i)))
	}
	return carved{host: h, whole: cards[0], parts: cards[1 : parts+1 : parts+1], other: cards[parts+1]}
}

// TestExcludes: while somebody has a part of what is offered whole as well, nobody gets
// the whole, not even the same holder; and the other way round. Parts do not exclude one
// another. Afterwards everything is given out again.
func TestExcludes(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	c := r.addCarved(t, "h1", 2)
	whole, parts, other := c.whole, c.parts, c.other
	require.Equal(t, []string{"h1_card1", "h1_card2"}, whole.Excludes)
	require.Equal(t, []string{"h1_card0"}, r.accelerator(t, parts[0].UUID).Excludes, "the other way round")
	require.Empty(t, other.Excludes)
	require.Empty(t, whole.ExcludedBy)

	vm1 := instance("vm1")
	given := r.do(t, toAttach(parts[0].UUID, vm1), cyborg.OperationSucceeded)
	require.Equal(t, []cyborg.OtherHeld{{
		Accelerator: parts[0].UUID, Name: "h1_card1", Holder: &vm1, Operation: given.Operation,
	}}, r.accelerator(t, whole.UUID).ExcludedBy)
	require.Empty(t, r.accelerator(t, parts[0].UUID).ExcludedBy)
	require.Empty(t, r.accelerator(t, parts[1].UUID).ExcludedBy)

	for _, holder := range []cyborg.Holder{instance("vm2"), vm1} {
		_, err := r.Admit(t.Context(), toAttach(whole.UUID, holder))
		requireKind(t, cyborg.ErrInUse, err, `accelerators "h1_card0" and "h1_card1" exclude each other, and the latter instance vm1 has`)
		require.Equal(t, given.Operation, cyborg.AsError(err).Operation)
		require.Equal(t, "Detach that one first.", cyborg.AsError(err).Hint)
	}

	r.do(t, toAttach(other.UUID, instance("vm2")), cyborg.OperationSucceeded)
	r.do(t, toAttach(parts[1].UUID, instance("vm2")), cyborg.OperationSucceeded)
	require.Len(t, r.accelerator(t, whole.UUID).ExcludedBy, 2)
	r.do(t, toDetach(parts[0].UUID, nil), cyborg.OperationSucceeded)
	_, err := r.Admit(t.Context(), toAttach(whole.UUID, vm1))
	requireKind(t, cyborg.ErrInUse, err, "h1_card2")
	r.do(t, toDetach(parts[1].UUID, nil), cyborg.OperationSucceeded)
	r.do(t, toAttach(whole.UUID, vm1), cyborg.OperationSucceeded)

	for _, part := range parts {
		_, err := r.Admit(t.Context(), toAttach(part.UUID, vm1))
		requireKind(t, cyborg.ErrInUse, err, `"h1_card0" exclude each other, and the latter instance vm1 has`)
	}
	r.do(t, toDetach(whole.UUID, nil), cyborg.OperationSucceeded)
	r.do(t, toAttach(parts[0].UUID, vm1), cyborg.OperationSucceeded)
}

// TestExcludesOnTheSameHostOnly: names are those of one host.
func TestExcludesOnTheSameHostOnly(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	whole, parts := r.addCarved(t, "h1", 1).whole, r.addCarved(t, "h2", 1).parts
	r.do(t, toAttach(parts[0].UUID, instance("vm1")), cyborg.OperationSucceeded)
	r.do(t, toAttach(whole.UUID, instance("vm1")), cyborg.OperationSucceeded)
}

// TestExcludesWhenItBegins: what was admitted while nobody had the other one is refused
// when it begins, where somebody has it by then.
func TestExcludesWhenItBegins(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	c := r.addCarved(t, "h1", 1)
	whole, parts := c.whole, c.parts

	late := r.admit(t, toAttach(whole.UUID, instance("vm1")))
	work := r.begin(t, toAttach(parts[0].UUID, instance("vm1")))
	_, err := r.Begin(t.Context(), runOf(late.ID))
	requireKind(t, cyborg.ErrInUse, err, "exclude each other, and the latter instance vm1 has")
	require.NoError(t, r.End(t.Context(), runOf(late.ID), cyborg.Outcome{Operation: late.ID, State: cyborg.OperationFailed, Error: cyborg.AsError(err)}))

	r.end(t, work, cyborg.OperationFailed)
	r.do(t, toAttach(whole.UUID, instance("vm1")), cyborg.OperationSucceeded)
}

// TestExcludesOfTheMissingAndTheUnconfirmed: what is missing counts as long as somebody
// has it, also after a boot, and so does what somebody may still have.
func TestExcludesOfTheMissingAndTheUnconfirmed(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	c := r.addCarved(t, "h1", 1)
	h, whole, parts := c.host, c.whole, c.parts
	r.do(t, toAttach(parts[0].UUID, onHost("h1")), cyborg.OperationSucceeded)
	devices := h.content.Backends[0].Devices
	h.content.Backends[0].Devices = slices.Concat(devices[:1], devices[2:])
	h.boot = "boot-2"
	h.report(t)
	require.Equal(t, cyborg.PresenceMissing, r.accelerator(t, parts[0].UUID).Presence)
	_, err := r.Admit(t.Context(), toAttach(whole.UUID, onHost("h1")))
	requireKind(t, cyborg.ErrInUse, err, "host h1 has")

	h.content.Backends[0].Devices = devices
	h.report(t)
	h.fall(t)
	r.do(t, toForce(parts[0].UUID, nil), cyborg.OperationSucceeded)
	h.hear(t)
	_, err = r.Admit(t.Context(), toAttach(whole.UUID, onHost("h1")))
	requireKind(t, cyborg.ErrInUse, err, "the latter host h1 may still have")
	require.Contains(t, cyborg.AsError(err).Hint, "Reconcile asks host h1")

	r.exec(t, "UPDATE attach_handles SET unconfirmed_kind = NULL, unconfirmed_id = NULL, unconfirmed_operation = NULL")
	r.do(t, toAttach(whole.UUID, instance("vm1")), cyborg.OperationSucceeded)
}

// TestExcludesBind: a bind fails where somebody has what excludes an accelerator that it
// asks for, also the same instance, and where it asks for both itself. It says so in its
// requests.
func TestExcludesBind(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	c := r.addCarved(t, "h1", 2)
	whole, parts := c.whole, c.parts
	r.profile(t, "one", one())
	r.profile(t, "two", one(), one())
	pair := func(who cyborg.Holder, first, second *cyborg.Accelerator) db.Admission {
		bind := toBind("h1", who, first.ProviderUUID, r.request(t, "two")...)
		edit(&bind, func(b *cyborg.BindRequest) { b.ARQs[1].Provider = second.ProviderUUID })
		return bind
	}

	for _, order := range [][2]*cyborg.Accelerator{{whole, parts[0]}, {parts[0], whole}} {
		bind := pair(vm(), order[0], order[1])
		_, err := r.Admit(t.Context(), bind)
		requireKind(t, cyborg.ErrInvalid, err, fmt.Sprintf(`accelerators %q and %q exclude each other: nobody gets both`, order[0].Name, order[1].Name))
		for _, asked := range bind.Request.(cyborg.BindRequest).ARQs {
			require.Equal(t, cyborg.ARQBindFailed, r.arq(t, asked.UUID).State)
		}
		require.Zero(t, scalar[int](t, r, "SELECT count(*) FROM attach_handles WHERE holder_kind IS NOT NULL"))
	}

	who := vm()
	r.do(t, pair(who, parts[0], parts[1]), cyborg.OperationSucceeded)
	asked := r.request(t, "one")[0]
	_, err := r.Admit(t.Context(), toBind("h1", vm(), whole.ProviderUUID, asked))
	requireKind(t, cyborg.ErrInUse, err, `"h1_card1" exclude each other, and the latter `+who.String()+" has")
	require.Equal(t, cyborg.ARQBindFailed, r.arq(t, asked.UUID).State)
	require.Contains(t, r.arq(t, asked.UUID).Reason, "exclude each other")
	_, err = r.Admit(t.Context(), toAttach(whole.UUID, who))
	requireKind(t, cyborg.ErrInUse, err, who.String())
}

// TestExcludesBindLooksAtHolders: a caller that wants to check the holders first is
// refused, nothing is recorded, and it learns whose the other accelerators are.
func TestExcludesBindLooksAtHolders(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	c := r.addCarved(t, "h1", 2)
	whole, parts, other := c.whole, c.parts, c.other
	r.profile(t, "one", one())
	r.do(t, toBind("h1", vm(), parts[1].ProviderUUID, r.request(t, "one")[0]), cyborg.OperationSucceeded)

	asked := r.request(t, "one")[0]
	looks := toBind("h1", vm(), whole.ProviderUUID, asked)
	edit(&looks, func(b *cyborg.BindRequest) { b.RefuseIfHeld = true })
	_, err := r.Admit(t.Context(), looks)
	requireKind(t, cyborg.ErrNoFit, err, "exclude each other")
	require.Equal(t, cyborg.ARQInitial, r.arq(t, asked.UUID).State)

	for _, related := range [][]*cyborg.Accelerator{{whole, parts[0], parts[1]}, {parts[0], whole}, {other}} {
		var want []uuid.UUID
		for _, a := range related {
			want = append(want, a.ProviderUUID)
		}
		found, err := r.RelatedProviders(t.Context(), want[:1])
		require.NoError(t, err)
		require.ElementsMatch(t, want, found)
	}
}

// TestExcludesBindWaits: a bind waits for the operation that takes back what excludes
// its accelerator, also for one of its own instance.
func TestExcludesBindWaits(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	c := r.addCarved(t, "h1", 1)
	whole, parts := c.whole, c.parts
	r.profile(t, "one", one())
	who := vm()
	waits := func(work cyborg.Work) {
		t.Helper()
		asked := r.request(t, "one")[0]
		_, err := r.Admit(t.Context(), toBind("h1", who, whole.ProviderUUID, asked))
		requireKind(t, cyborg.ErrClaimed, err, work.Operation.String()+" takes one back")
		require.Equal(t, cyborg.ARQInitial, r.arq(t, asked.UUID).State)
		r.end(t, work, cyborg.OperationSucceeded)
	}

	r.do(t, toAttach(parts[0].UUID, who), cyborg.OperationSucceeded)
	waits(r.begin(t, toDetach(parts[0].UUID, nil)))

	held := r.request(t, "one")[0]
	r.do(t, toBind("h1", vm(), parts[0].ProviderUUID, held), cyborg.OperationSucceeded)
	waits(r.begin(t, toUnbind(held)))

	r.do(t, toBind("h1", who, whole.ProviderUUID, r.request(t, "one")[0]), cyborg.OperationSucceeded)
}

// TestExcludesUnderRaces: while many bind and attach a whole and its parts, and give them
// back, through several processes, nobody ever has the whole while somebody has a part.
// What is refused is refused for that, and nothing waits in a circle.
func TestExcludesUnderRaces(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	c := r.addCarved(t, "h1", 3)
	h, whole, parts := c.host, c.whole, c.parts
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, time.Hour))
	r.profile(t, "one", one())
	stores := []*db.Store{r.Store, openStore(t, r.url, defaults())}
	cards := slices.Concat(parts, []*cyborg.Accelerator{whole})
	who := vm() // also the same holder must not get both

	var (
		wg    sync.WaitGroup
		given [2]atomic.Int32 // parts, and the whole
	)
	got := func(card *cyborg.Accelerator, err error) bool {
		switch kind := cyborg.ErrorKindOf(err); kind {
		case "":
			if card == whole {
				given[1].Add(1)
			} else {
				given[0].Add(1)
			}
			if both := scalar[bool](t, r, `SELECT count(DISTINCT deployable_uuid = $1) > 1 FROM attach_handles WHERE holder_kind IS NOT NULL`, whole.UUID); both {
				t.Error("the whole and a part are given out at once")
			}
			return true
		case cyborg.ErrInUse, cyborg.ErrClaimed, cyborg.ErrNotFound:
		default:
			t.Error(err)
		}
		return false
	}
	finish := func(store *db.Store, run db.Run) {
		if err := store.End(t.Context(), run, cyborg.Outcome{Operation: run.Operation, State: cyborg.OperationSucceeded}); err != nil {
			t.Error(err)
		}
	}
	attach := func(store *db.Store, card *cyborg.Accelerator) {
		out, err := store.Admit(t.Context(), toAttach(card.UUID, who))
		if err != nil {
			got(card, err)
			return
		}
		run := runOf(out.Operation.ID)
		if _, err := store.Begin(t.Context(), run); !got(card, err) {
			if err := store.End(t.Context(), run, cyborg.Outcome{Operation: run.Operation, State: cyborg.OperationFailed, Error: cyborg.AsError(err)}); err != nil {
				t.Error(err)
			}
			return
		}
		finish(store, run)
		if out, err = store.Admit(t.Context(), toDetach(card.UUID, nil)); err != nil {
			t.Error(err)
			return
		}
		if _, err := store.Begin(t.Context(), runOf(out.Operation.ID)); err != nil {
			t.Error(err)
		}
		finish(store, runOf(out.Operation.ID))
	}
	bind := func(store *db.Store, card *cyborg.Accelerator) {
		arqs, err := store.CreateARQs(t.Context(), "one", alice())
		if err != nil {
			t.Error(err)
			return
		}
		if out, err := store.Admit(t.Context(), toBind("h1", vm(), card.ProviderUUID, arqs...)); got(card, err) {
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
				store, card := stores[i%2], cards[(i+n)%len(cards)]
				if i%4 == 3 {
					attach(store, card)
				} else {
					bind(store, card)
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
	require.Positive(t, given[0].Load())
	for given[1].Load() == 0 { // the whole has a chance only when nobody has any part
		bind(r.Store, whole)
	}
	r.requireAgreed(t)
}

// TestExcludesInTheSchema: the database itself refuses the whole and a part, whoever
// writes it, also where two transactions do that at once; but not a report that finds
// both held.
func TestExcludesInTheSchema(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	c := r.addCarved(t, "h1", 2)
	h, whole, parts, other := c.host, c.whole, c.parts, c.other
	const give = `UPDATE attach_handles SET holder_kind = 'service', holder_id = $2, operation_id = gen_random_uuid() WHERE deployable_uuid = $1`
	refused := func(err error) {
		t.Helper()
		var pg *pgconn.PgError
		require.ErrorAs(t, err, &pg)
		require.Equal(t, []string{"23P01", "attach_handles_excludes"}, []string{pg.Code, pg.ConstraintName}, pg.Message)
		require.Equal(t, "Detach that one first.", pg.Hint)
	}

	first, err := r.sql.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = first.Rollback(t.Context()) }()
	_, err = first.Exec(t.Context(), give, whole.UUID, "s1")
	require.NoError(t, err)

	failed := make(chan error, 1)
	go func() {
		_, err := r.sql.Exec(t.Context(), give, parts[0].UUID, "s1")
		failed <- err
	}()
	require.Eventually(t, func() bool {
		return len(failed) > 0 || scalar[bool](t, r, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))")
	}, 5*time.Minute, time.Millisecond)
	require.NoError(t, first.Commit(t.Context()))
	err = <-failed
	refused(err)
	require.ErrorContains(t, err, `accelerators "h1_card1" and "h1_card0" exclude each other, and the latter service s1 has`)

	// In one statement as well.
	r.exec(t, "UPDATE attach_handles SET holder_kind = NULL, holder_id = NULL, operation_id = NULL")
	_, err = r.sql.Exec(t.Context(), "UPDATE attach_handles SET holder_kind = 'service', holder_id = 's1', operation_id = gen_random_uuid() WHERE host = 'h1'")
	refused(err)
	_, err = r.sql.Exec(t.Context(), give, parts[1].UUID, "s1")
	require.NoError(t, err)
	_, err = r.sql.Exec(t.Context(), give, parts[0].UUID, "s2")
	require.NoError(t, err, "parts do not exclude one another")

	// Both are held before their driver says that they exclude each other.
	_, err = r.sql.Exec(t.Context(), give, other.UUID, "s3")
	require.NoError(t, err)
	h.excluding(t, map[string][]string{"card3": {"card2"}})
	require.Equal(t, "h1_card2", r.accelerator(t, other.UUID).ExcludedBy[0].Name)
	require.Equal(t, "h1_card3", r.accelerator(t, parts[1].UUID).ExcludedBy[0].Name)
	_, err = r.sql.Exec(t.Context(), "UPDATE attach_handles SET attached_at = now() WHERE deployable_uuid = $1", other.UUID)
	require.NoError(t, err, "who has it already is not asked")
	_, err = r.sql.Exec(t.Context(), give, whole.UUID, "s4")
	require.NoError(t, err, "nobody names it any more")
	require.Equal(t, []string{"''=>'card1, card2'", "'card1, card2'=>''"}, scalar[[]string](t, r, `
		SELECT array_agg(format('%L=>%L', from_value, to_value) ORDER BY id) FROM events WHERE axis = 'excludes' AND subject_id = $1`, whole.UUID.String()))
}

// TestExcludesWithWhitelist: what Nova may give out counts as given out, whatever it may
// be excluded by; and Nova does not get both, nor one of which Cyborg has given out the
// other.
func TestExcludesWithWhitelist(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addPCIHost(t, "h1", 3)
	h.excluding(t, map[string][]string{"card1": {"card0"}, "card2": {"card0"}})
	whole := h.ready(t, "card0")
	parts := []*cyborg.Accelerator{h.accelerator(t, "card1"), h.accelerator(t, "card2")}
	r.do(t, toAttach(whole.UUID, instance("vm1")), cyborg.OperationSucceeded)
	_, err := r.Admit(t.Context(), toWhitelist("h1", parts...))
	requireKind(t, cyborg.ErrInUse, err, `"h1_card0" exclude each other, and the latter instance vm1 has`)

	r.do(t, toDetach(whole.UUID, nil), cyborg.OperationSucceeded)
	r.do(t, toWhitelist("h1", parts...), cyborg.OperationSucceeded)
	_, err = r.Admit(t.Context(), toAttach(whole.UUID, instance("vm1")))
	requireKind(t, cyborg.ErrInUse, err, `"h1_card1" exclude each other, and the latter Nova may give out`)
	require.Contains(t, cyborg.AsError(err).Hint, "whitelist")
	_, err = r.sql.Exec(t.Context(), "UPDATE attach_handles SET holder_kind = 'service', holder_id = 's', operation_id = gen_random_uuid() WHERE deployable_uuid = $1", whole.UUID)
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg)
	require.Equal(t, []string{"23P01", "attach_handles_excludes"}, []string{pg.Code, pg.ConstraintName}, pg.Message)
	require.Contains(t, pg.Hint, "whitelist")

	r.do(t, toRetire(whole), cyborg.OperationSucceeded)
	_, err = r.Admit(t.Context(), toWhitelist("h1", append(parts, whole)...))
	requireKind(t, cyborg.ErrInUse, err, `"h1_card1" exclude each other, and the latter Nova may give out`)
	_, err = r.sql.Exec(t.Context(), "UPDATE deployables SET nova_spec = '{}' WHERE uuid = $1", whole.UUID)
	require.ErrorAs(t, err, &pg)
	require.Equal(t, "attach_handles_excludes", pg.ConstraintName, pg.Message)

	r.do(t, toWhitelist("h1"), cyborg.OperationSucceeded)
	_, err = r.Admit(t.Context(), toWhitelist("h1", append(parts, whole)...))
	requireKind(t, cyborg.ErrInvalid, err, "2 of 3 devices cannot be whitelisted", `accelerators "h1_card0" and "h1_card1" exclude each other: nobody gets both`)
	r.do(t, toWhitelist("h1", whole), cyborg.OperationSucceeded)
}

// TestExcludesAsReported: names are recorded in their order, each once; what is no name
// is left out with a complaint. Of a deployable that names too many nothing is recorded,
// because the whole and a part could be given out if some were missing.
func TestExcludesAsReported(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	c := r.addCarved(t, "h1", 1)
	h, whole := c.host, c.whole
	of := func() []string {
		return scalar[[]string](t, r, "SELECT excludes FROM deployables WHERE uuid = $1", whole.UUID)
	}
	complaint := func() string {
		return scalar[string](t, r, "SELECT error FROM backends WHERE host = 'h1'")
	}

	h.excluding(t, map[string][]string{"card0": {"unknown", "card2", "card0", "card1", "card2"}})
	require.Equal(t, []string{"card1", "card2", "unknown"}, of())
	require.Empty(t, complaint())

	h.excluding(t, map[string][]string{"card0": {"card1", "a\nb"}})
	require.Equal(t, []string{"card1"}, of())
	require.Contains(t, complaint(), "excludes")

	many := make([]string, cyborg.MaxExcludes+1)
	for i := range many {
		many[i] = fmt.Sprint("part", i)
	}
	h.excluding(t, map[string][]string{"card0": many})
	require.Equal(t, []string{"card1"}, of())
	require.Contains(t, complaint(), "stays as it was: it excludes 257 others, and more than 256")
	h.excluding(t, map[string][]string{"card0": many[1:]})
	require.Len(t, of(), cyborg.MaxExcludes)
	require.Empty(t, complaint())

	h.excluding(t, map[string][]string{"card0": {strings.Repeat("a", 256)}})
	require.Empty(t, of())
	require.Contains(t, complaint(), "that is no name")
}

// TestExcludesPlans: who excludes what is found by indexes, also where most hosts have
// something that excludes others.
func TestExcludesPlans(t *testing.T) {
	t.Parallel()
	r := cloud(t, 8_000)
	r.exec(t, "UPDATE deployables SET excludes = '{card1,card2}' WHERE local_name = 'card0'")
	r.exec(t, "ANALYZE deployables")
	r.follow(t)
	store, plans := explaining(t, r.url)
	past := &records{Store: store, url: r.url, sql: r.sql}
	past.profile(t, "asked", one())
	plans() // drops what has prepared it

	found, err := store.Accelerators(t.Context(), db.AcceleratorFilter{Hosts: []string{"h00500"}}, db.Page{Limit: 100})
	require.NoError(t, err)
	require.Equal(t, []string{"h00500_card1", "h00500_card2"}, found[0].Excludes)
	require.Equal(t, []string{"h00500_card0"}, found[1].Excludes)
	require.Empty(t, found[3].Excludes)
	_, err = store.Accelerators(t.Context(), db.AcceleratorFilter{}, db.Page{Limit: 100})
	require.NoError(t, err)
	r.exec(t, "UPDATE deployables SET lifecycle = 'ready', untouched = false WHERE host = 'h00500'")

	past.do(t, toAttach(found[1].UUID, instance("vm")), cyborg.OperationSucceeded)
	past.do(t, toDetach(found[1].UUID, nil), cyborg.OperationSucceeded)
	past.do(t, toBind("h00500", vm(), found[1].ProviderUUID, r.request(t, "asked")[0]), cyborg.OperationSucceeded)
	_, err = store.RelatedProviders(t.Context(), []uuid.UUID{found[1].ProviderUUID})
	require.NoError(t, err)

	scan := regexp.MustCompile(`Seq Scan on (deployables|attach_handles|arqs)\b`)
	for _, plan := range plans() {
		require.False(t, scan.MatchString(plan), plan)
		require.NotContains(t, plan, "Function Scan on excluded_with", "PostgreSQL plans it with the statement")
	}
}

// TestExcludesWhileProgrammed: no image is loaded into a whole of which somebody has a
// part, nor into a part while somebody has the whole.
func TestExcludesWhileProgrammed(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	c := r.addCarved(t, "h1", 2)
	vm := instance("vm1")
	r.do(t, toAttach(c.parts[0].UUID, vm), cyborg.OperationSucceeded)
	_, err := r.Admit(t.Context(), toProgram(c.whole.UUID))
	requireKind(t, cyborg.ErrInUse, err, `"h1_card0" and "h1_card1" exclude each other`)
	r.do(t, toProgram(c.parts[1].UUID), cyborg.OperationSucceeded)

	r.do(t, toDetach(c.parts[0].UUID, nil), cyborg.OperationSucceeded)
	r.do(t, toAttach(c.whole.UUID, vm), cyborg.OperationSucceeded)
	_, err = r.Admit(t.Context(), toProgram(c.parts[0].UUID))
	requireKind(t, cyborg.ErrInUse, err, `"h1_card1" and "h1_card0" exclude each other`)
}

// TestExcludesAtAdoption: an adoption records what an instance has already, also where
// it excludes what somebody else has.
func TestExcludesAtAdoption(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	c := r.addCarved(t, "h1", 1)
	c.excluding(t, map[string][]string{"card0": {"card1", "old_part"}})
	r.do(t, toAttach(c.whole.UUID, instance("vm1")), cyborg.OperationSucceeded)

	device, part, now := uuid.New(), uuid.New(), time.Now()
	all := db.Adoption{
		Devices: []db.AdoptedDevice{{
			UUID: device, Host: "h1", Driver: "fake", Identity: "oldcard", Type: "FPGA", VendorID: "1234", ProductID: "0001",
			BoardInfo: cyborg.JSONObject{}, ControlPathKind: "PCI", ControlPathInfo: map[string]string{"bus": "01"}, CreatedAt: now,
		}},
		Deployables: []db.AdoptedDeployable{{
			UUID: part, Device: device, Host: "h1", Name: "h1_old_part", LocalName: "old_part", ProviderUUID: cyborg.ProviderUUID("h1_old_part"), CreatedAt: now,
			Specs: cyborg.Specs{Num: 1, Capability: cyborg.JSONObject{}}, Attributes: []cyborg.Attribute{}, Set: []db.AdoptedAttribute{},
		}},
		Handles: []db.AdoptedHandle{{
			UUID: uuid.New(), Deployable: part, Host: "h1", Kind: "PCI", Info: map[string]string{"domain": "0000", "bus": "77", "device": "00", "function": "0"},
			Identity: "0000:77:00.0", Instance: uuid.NewString(), HeldSince: &now,
		}},
	}
	out, err := r.Adopt(t.Context(), all, alice(), true)
	require.NoError(t, err)
	require.Empty(t, out.Conflicts)
	require.Equal(t, "h1_old_part", r.accelerator(t, c.whole.UUID).ExcludedBy[0].Name)
}

// TestExcludesTellsPlacementOnce: the first part that is given out closes the whole, and
// the last one that comes back opens it. Placement hears of those only.
func TestExcludesTellsPlacementOnce(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	c := r.addCarved(t, "h1", 3)
	require.NoError(t, r.SetPlacementFollowing(t.Context(), true, time.Hour))
	require.Equal(t, []string{"h1"}, r.due(t))
	r.inStep(t, "h1")
	r.profile(t, "one", one())
	var bound []cyborg.ARQ
	for n, part := range c.parts {
		arq := r.request(t, "one")[0]
		r.do(t, toBind("h1", vm(), part.ProviderUUID, arq), cyborg.OperationSucceeded)
		bound = append(bound, arq)
		require.Equal(t, n == 0, len(r.due(t)) > 0, "part %d", n)
		if n == 0 {
			r.inStep(t, "h1")
		}
	}

	// Two at once are the first ones, too, and the last ones.
	r.profile(t, "two", one(), one())
	for n, arq := range bound {
		_, err := r.DeleteARQs(t.Context(), db.ARQDeletion{UUIDs: []uuid.UUID{arq.UUID}, AllowBound: true}, alice())
		require.NoError(t, err)
		require.Equal(t, n == len(bound)-1, len(r.due(t)) > 0, "part %d", n)
	}
	r.inStep(t, "h1")

	both := r.request(t, "two")
	bind := toBind("h1", vm(), c.parts[0].ProviderUUID, both...)
	edit(&bind, func(b *cyborg.BindRequest) { b.ARQs[1].Provider = c.parts[1].ProviderUUID })
	r.do(t, bind, cyborg.OperationSucceeded)
	require.Equal(t, []string{"h1"}, r.due(t))
	r.inStep(t, "h1")
	_, err := r.DeleteARQs(t.Context(), db.ARQDeletion{UUIDs: []uuid.UUID{both[0].UUID, both[1].UUID}, AllowBound: true}, alice())
	require.NoError(t, err)
	require.Equal(t, []string{"h1"}, r.due(t))
}

// TestExcludesWithALostImage: an instance has a part whose image a boot has lost. The
// image, which changes the whole as well, is loaded again.
func TestExcludesWithALostImage(t *testing.T) {
	t.Parallel()
	r := newRecords(t)
	h := r.addHost(t, "h1", 1)
	whole := deployable("card0_whole", 1)
	whole.Excludes = []string{"card0"}
	card := &h.content.Backends[0].Devices[0]
	card.Deployables = append(card.Deployables, whole)
	h.report(t)
	part := h.ready(t, "card0")
	h.ready(t, "card0_whole")
	require.Equal(t, part.ProgramSet, h.accelerator(t, "card0_whole").ProgramSet)

	r.loads(t, h, 0, part, aes())
	r.profile(t, "one", one())
	r.bound(t, part, uuid.New())
	_, err := r.Admit(t.Context(), toProgram(part.UUID))
	requireKind(t, cyborg.ErrInUse, err)

	h.shows(t, 0, "")
	h.reboot(t, 0)
	require.NotNil(t, r.accelerator(t, part.UUID).LostImage)
	r.do(t, toReload(part.UUID, aes()), cyborg.OperationSucceeded)
}
