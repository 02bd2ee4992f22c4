package operation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/openstack"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// bind is the operation that gives accelerator requests (ARQs) their attach
// handles, all of them or none.
//
// The handles get their holder at admission, so that nobody else can take them
// and nobody can program or retire their accelerators. An accelerator is
// claimed only where an image has to be loaded into it first; binds that load
// nothing therefore do not wait for each other, however many there are on one
// accelerator.
//
// A bind that admission finds to be impossible is recorded as an operation that
// has failed, with its requests in state BindFailed: whoever looks them up
// later must find the reason.
type bind struct {
	request     cyborg.BindRequest
	silentAfter time.Duration
}

// ErrOtherARQs is wrapped by the error that refuses a bind because its instance
// already has other accelerator requests. Its text is a part of that message.
var ErrOtherARQs = errors.New("accelerator requests")

// pairing gives a free handle to an accelerator request, with the resource
// provider that the handle's accelerator has in Placement.
type pairing struct {
	arq, provider, handle uuid.UUID

	prepared   bool              // its host attaches it for the holder
	parameters map[string]string // what the profile has chosen for it; never nil
	clean      string            // how the profile demands that it is cleaned afterwards; empty for not at all
}

func newBind(r cyborg.BindRequest, o records.Options) operationHandler { return bind{r, o.SilentAfter} }

// sharesHost is the SQL condition on a row of operations that is true for a
// bind for an instance that loads no image, and for which its host prepares
// nothing: it has nothing to observe of the devices. While such an operation runs,
// others may give out further handles on the same host; see lock_arqs.go.
const sharesHost = `kind = 'bind' AND NOT before ?| '{loads,prepares}' AND input #>> '{holder,kind}' = 'instance'`

// validate refuses a request that is incomplete or contradicts itself.
func (b bind) validate() error {
	r := b.request
	switch {
	case r.Host == "":
		return cyborg.Errorf(cyborg.ErrInvalid, "a bind needs the name of a host")
	case r.Holder.Kind != cyborg.HolderInstance && r.Holder.Kind != cyborg.HolderService || r.Holder.ID == "":
		return cyborg.Errorf(cyborg.ErrInvalid, "accelerator requests are bound to an instance or a service, not to %s %q", r.Holder.Kind, r.Holder.ID)
	case len(r.ARQs) == 0:
		return cyborg.Errorf(cyborg.ErrInvalid, "a bind needs an accelerator request")
	}

	if r.Holder.Kind == cyborg.HolderInstance {
		if _, err := uuid.Parse(r.Holder.ID); err != nil {
			return cyborg.Errorf(cyborg.ErrInvalid, "instance %q is no UUID", r.Holder.ID)
		}
	}

	return nil
}

// arqs lists the UUIDs of the accelerator requests in the order of the request.
func (b bind) arqs() []uuid.UUID {
	out := make([]uuid.UUID, len(b.request.ARQs))
	for i, a := range b.request.ARQs {
		out[i] = a.UUID
	}

	return out
}

// providers lists the resource providers that the accelerator requests ask for.
func (b bind) providers() []uuid.UUID {
	out := make([]uuid.UUID, len(b.request.ARQs))
	for i, a := range b.request.ARQs {
		out[i] = a.Provider
	}

	return out
}

// choose locks everything that the bind is about, and then assigns a free
// handle to each request. An error leaves no operation; failedWith records one
// that has failed, which claims nothing.
func (b bind) choose(ctx context.Context, tx pgx.Tx) (choice, error) {
	if err := b.validate(); err != nil {
		return choice{}, err
	}

	var (
		found []cyborg.ARQ
		other uuid.UUID
		uses  []inventory.Accelerator
		keys  = []string{openstack.HolderKey(b.request.Holder)}
		lock  = openstack.Locks{}
		batch = &pgx.Batch{}
	)

	for _, a := range b.request.ARQs {
		keys = append(keys, openstack.ARQKey(a.UUID), openstack.ProviderKey(a.Provider))
	}

	// The host is locked in shared mode for an instance whose profiles ask for no
	// image, on accelerators that its host does not prepare: such a bind only needs to
	// be alone on its accelerators. A bind that may load an image disturbs neighbours,
	// and one that has handles prepared observes their devices, with the neighbours on
	// them; these lock the host exclusively.
	//
	// Accelerators that go to one holder, or exclude each other, are locked together:
	// another bind then sees in its turn who has them. Those that exclude each other need
	// not name each other both, so of these a host has one lock.
	lock.Queue(batch, `
		SELECT unnest($1::text[]), false
		UNION ALL SELECT 'same_holder/' || host || '/' || same_holder, false FROM deployables WHERE provider_uuid = ANY($6) AND same_holder <> ''
		UNION ALL SELECT 'excludes/' || d.host, false FROM deployables d WHERE d.provider_uuid = ANY($6) AND EXISTS (SELECT FROM excluded_with(d.uuid))
		UNION ALL SELECT $2, $3 AND NOT EXISTS (SELECT FROM arqs WHERE uuid = ANY($4) AND profile_group ?| $5)
		    AND NOT EXISTS (SELECT FROM deployables WHERE provider_uuid = ANY($6) AND preparation IS NOT NULL)`,
		keys, b.request.Host, b.request.Holder.Kind == cyborg.HolderInstance, b.arqs(), []string{bitstreamProperty, functionProperty}, b.providers())

	openstack.QueueLockARQs(batch, &found, " WHERE a.uuid = ANY($1)", b.arqs())

	// Nova binds all requests of an instance at once. Another request of it means
	// that the instance has been bound already.
	if b.request.Holder.Kind == cyborg.HolderInstance {
		batch.Queue("SELECT uuid FROM arqs WHERE instance_uuid = $1 AND uuid <> ALL($2) LIMIT 1", b.request.Holder.ID, b.arqs()).
			QueryRow(func(row pgx.Row) error {
				if err := row.Scan(&other); !errors.Is(err, pgx.ErrNoRows) {
					return err
				}
				return nil
			})
	}

	inventory.QueueLockAccelerators(batch, &uses, "d.provider_uuid = ANY($1)", b.providers())
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return choice{}, err
	}

	out := choice{
		host: b.request.Host, arqs: b.arqs(), uses: uses,
		notificationPending: b.request.Holder.Kind == cyborg.HolderInstance,
	}

	byUUID := map[uuid.UUID]*cyborg.ARQ{}
	for i := range found {
		byUUID[found[i].UUID] = &found[i]
	}

	out.nothing = b.alreadyBound(byUUID)
	if out.nothing {
		return out, nil
	}

	if err := b.checkBindable(byUUID, other); err != nil {
		return out, err
	}

	if err := b.checkProviders(uses); err != nil {
		return out, err
	}

	out, err := b.takeHandles(ctx, tx, out, byUUID)
	if (len(out.before.Loads) > 0 || out.before.Prepares) && !lock.Has(b.request.Host, false) {
		// The lock's mode was decided before the requests existed, or before the host
		// reported that it prepares handles. That came while this transaction waited.
		return out, records.ErrCollision
	}

	return out, err
}

// alreadyBound reports whether every request is already bound as it is asked
// for, which means that the same bind was sent again.
func (b bind) alreadyBound(arqs map[uuid.UUID]*cyborg.ARQ) bool {
	for _, want := range b.request.ARQs {
		a, ok := arqs[want.UUID]
		if !ok || a.State != cyborg.ARQBound || a.Holder() != b.request.Holder || a.Host != b.request.Host || a.ProviderUUID != want.Provider {
			return false
		}
	}
	return true
}

// checkBindable refuses accelerator requests that cannot be bound in their
// present state. Such a refusal leaves no failed operation behind. other is a
// further request of the same instance, or zero.
func (b bind) checkBindable(arqs map[uuid.UUID]*cyborg.ARQ, other uuid.UUID) error {
	sources := cyborg.Sources(cyborg.ARQTransitions(), cyborg.ARQBindStarted)
	seen := map[uuid.UUID]bool{}

	for _, want := range b.request.ARQs {
		a, ok := arqs[want.UUID]
		switch {
		case !ok:
			return openstack.NoARQ(want.UUID)
		case seen[want.UUID]:
			return cyborg.Errorf(cyborg.ErrInvalid, "accelerator request %s is named twice", want.UUID)
		case a.Claim != uuid.Nil:
			return openstack.ClaimedARQ(a)
		case !slices.Contains(sources, a.State):
			return cyborg.Errorf(cyborg.ErrChanged, "accelerator request %s is %s and cannot be bound", a.UUID, a.State).
				WithOperation(a.Operation).WithHint("Unbind it first, or make a new one.")
		}

		seen[want.UUID] = true
	}

	if other != uuid.Nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "Instance %s already has %w. Cannot bind additional ARQs.", b.request.Holder.ID, ErrOtherARQs).
			WithHint("Bind all requests of an instance together; it has %s.", other)
	}

	return nil
}

// checkProviders refuses resource providers that are unknown or belong to
// another host.
func (b bind) checkProviders(uses []inventory.Accelerator) error {
	for _, want := range b.request.ARQs {
		i := slices.IndexFunc(uses, func(a inventory.Accelerator) bool { return a.ProviderUUID == want.Provider })
		switch {
		case i < 0:
			return cyborg.Errorf(cyborg.ErrNotFound, "there is no accelerator with resource provider %s", want.Provider)
		case uses[i].Host != b.request.Host:
			return cyborg.Errorf(cyborg.ErrInvalid, "resource provider %s is on host %q, not on %q", want.Provider, uses[i].Host, b.request.Host)
		}
	}

	return nil
}

// takeHandles chooses a free handle for each request, and finds the images that
// must be loaded first. Where another operation works on an accelerator, the
// caller may try again later; any other obstacle makes the bind fail.
func (b bind) takeHandles(ctx context.Context, tx pgx.Tx, out choice, arqs map[uuid.UUID]*cyborg.ARQ) (choice, error) {
	used := map[uuid.UUID]bool{}
	loads, wanted := map[uuid.UUID]cyborg.ImageLoad{}, map[uuid.UUID]string{}

	for _, want := range b.request.ARQs {
		i := slices.IndexFunc(out.uses, func(a inventory.Accelerator) bool { return a.ProviderUUID == want.Provider })
		a := &out.uses[i]

		if err := a.Enrolled(); err != nil {
			return out.failedWith(err), nil
		}
		if err := inventory.FirstError(b.unclaimed(a), a.Heard(b.silentAfter)); err != nil {
			return b.waitOrFail(out, err)
		}
		undone, err := b.undone(ctx, tx, a)
		switch {
		case err != nil:
			return out, err
		case undone != nil:
			return b.waitOrFail(out, undone)
		}
		if err := inventory.FirstError(a.Present(), a.Unprotected(), a.Ready(), a.Enabled(), a.Unfenced(), a.Available()); err != nil {
			return out.failedWith(err), nil
		}

		// Several requests may ask for one accelerator, so handles that this bind has
		// taken for an earlier request are not free either.
		free := slices.IndexFunc(a.Handles, func(h cyborg.AttachHandle) bool {
			return h.Free() && !used[h.UUID]
		})
		if free < 0 {
			return b.noFreeHandle(ctx, tx, out, a)
		}
		if err := notBoth(a, out.uses, out.pairings); err != nil {
			return out.failedWith(err), nil
		}
		if err := a.Compatible(b.request.Holder); err != nil {
			return b.otherHeld(ctx, tx, out, a, err)
		}

		paired, err := b.pair(want, a, free, arqs[want.UUID].Group)
		if err != nil {
			return out.failedWith(err), nil
		}
		used[paired.handle] = true
		out.pairings = append(out.pairings, paired)
		out.before.Prepares = out.before.Prepares || a.Prepares(b.request.Holder)

		// An image is loaded once for each accelerator, whatever the number of
		// requests.
		load, image, err := loadOf(a, arqs[want.UUID].Group)
		if err != nil {
			return out.failedWith(err), nil
		}

		if image == "" { // any image that is loaded will do
			continue
		}

		if other, ok := wanted[a.UUID]; ok && other != image {
			return out.failedWith(cyborg.Errorf(cyborg.ErrInvalid, "accelerator %q cannot have two images at once", a.Name)), nil
		}

		wanted[a.UUID], loads[a.UUID] = image, load
	}

	// The loads are in the order of the accelerators, the same for every try.
	for _, a := range out.uses {
		if load := loads[a.UUID]; load != (cyborg.ImageLoad{}) {
			out.before.Loads = append(out.before.Loads, load)
		}
	}

	if len(out.before.Loads) == 0 {
		return out, nil
	}

	return b.claimDisturbed(ctx, tx, out, wanted)
}

// unclaimed refuses an accelerator that another operation works on. A clean does not matter to
// who gets a handle as it is; where its host prepares it, that waits for the clean.
func (b bind) unclaimed(a *inventory.Accelerator) error {
	if a.Prepares(b.request.Holder) {
		return a.Unclaimed(uuid.Nil)
	}
	return a.UnclaimedBut(cyborg.OperationClean)
}

// pair gives a handle of the accelerator to a request, with what the group of its device
// profile chooses. The error says why the accelerator cannot do that.
func (b bind) pair(want cyborg.BindARQ, a *inventory.Accelerator, handle int, group map[string]string) (pairing, error) {
	parameters := parametersOf(group)
	if err := a.Preparation.Check(parameters); err != nil {
		return pairing{}, err
	}
	clean, err := cleanOf(a, group)
	if err != nil {
		return pairing{}, err
	}
	return pairing{
		arq: want.UUID, provider: want.Provider, handle: a.Handles[handle].UUID,
		prepared: a.Prepares(b.request.Holder), parameters: parameters, clean: string(clean),
	}, nil
}

// noFreeHandle decides what follows where accelerator a has no free handle
// although Placement has allocated one. If an operation is about to free a
// handle, or its host has still to take one back, the bind may wait for that; else it
// fails.
func (b bind) noFreeHandle(ctx context.Context, tx pgx.Tx, out choice, a *inventory.Accelerator) (choice, error) {
	freeing, err := freeingHandle(ctx, tx, a.UUID)
	var unsettled error
	if err == nil {
		unsettled, err = b.unsettled(ctx, tx, a)
	}
	if err == nil && unsettled == nil {
		unsettled, err = b.uncleaned(ctx, tx, a)
	}

	switch {
	case err != nil:
		return out, err
	case unsettled != nil:
		return b.waitOrFail(out, unsettled)
	case freeing != uuid.Nil:
		return b.waitOrFail(out, cyborg.Errorf(cyborg.ErrClaimed, "accelerator %q has no free attach handle before operation %s has ended", a.Name, freeing).
			WithOperation(freeing))
	case b.request.RefuseIfHeld:
		// The caller first checks whether the holders still exist, and then asks again.
		return out, cyborg.Errorf(cyborg.ErrNoFit, "all attach handles of accelerator %q are held", a.Name)
	case a.Unsettled():
		return out.failedWith(a.Confirmed()), nil
	case a.HasUnclean():
		return out.failedWith(a.AllClean()), nil
	}

	return out.failedWith(cyborg.Errorf(cyborg.ErrNotFound, "accelerator %q has no free attach handle", a.Name).
		WithHint("Placement believes that it has one: Reconcile compares the two.")), nil
}

// freeingHandle returns an operation that is about to free a handle of the
// accelerator; zero where there is none. A request with a claim that is not being
// bound is being unbound or deleted, so its handle may soon be free.
func freeingHandle(ctx context.Context, tx pgx.Tx, accelerator uuid.UUID) (uuid.UUID, error) {
	return oneOperation(tx.Query(ctx, `
		SELECT a.claimed_by FROM arqs a JOIN attach_handles h ON h.uuid = a.handle_uuid
		WHERE h.deployable_uuid = $1 AND a.claimed_by IS NOT NULL AND a.state <> 'BindStarted' ORDER BY a.id LIMIT 1`, accelerator))
}

// oneOperation reads the id of an operation, or zero where the query has none.
func oneOperation(rows pgx.Rows, err error) (uuid.UUID, error) {
	if err != nil {
		return uuid.Nil, err
	}
	id, err := pgx.CollectOneRow(rows, pgx.RowTo[uuid.UUID])
	if errors.Is(err, pgx.ErrNoRows) {
		return uuid.Nil, nil
	}
	return id, err
}

// waitOrFail refuses a bind because another operation works on one of its
// accelerators, or because its host was not heard yet. While the bind has time
// left, the caller tries again when that operation has ended, or soon. Once the time
// is over, the bind is recorded as failed.
func (b bind) waitOrFail(out choice, cause error) (choice, error) {
	if b.request.Within > 0 {
		return out, cause
	}

	e := cyborg.AsError(cause)
	return out.failedWith(cyborg.Errorf(cyborg.ErrTimeout, "%s; the bind has waited for that as long as it may", e.Message).
		WithOperation(e.Operation).WithHint("arqs.bind_timeout is the limit.")), nil
}

// guard checks the accelerators that an image disturbs. Handles that this bind
// took at its admission do not count as held.
func (bind) guard(targets []inventory.Accelerator, operation uuid.UUID) error {
	for i := range targets {
		t := &targets[i]
		if err := inventory.FirstError(t.Unclaimed(operation), t.Present(), t.Enrolled(), t.Unprotected(), t.UnheldExcept(operation), t.Confirmed()); err != nil {
			return err
		}
	}
	return nil
}

// admit gives the handles their holder and moves the accelerator requests to
// BindStarted, or records the providers they asked for where the bind has
// failed.
func (b bind) admit(ctx context.Context, tx pgx.Tx, chosen choice) error {
	var (
		arqs, providers, handles []uuid.UUID
		prepared                 []bool
		parameters               []map[string]string
		clean                    []string
	)
	for _, t := range chosen.pairings {
		arqs, providers, handles = append(arqs, t.arq), append(providers, t.provider), append(handles, t.handle)
		prepared, parameters, clean = append(prepared, t.prepared), append(parameters, t.parameters), append(clean, t.clean)
	}

	if chosen.failed != nil {
		// Nobody gets a handle; the requests still record what they asked for.
		arqs, providers = b.arqs(), b.providers()
		handles = make([]uuid.UUID, len(arqs))
	}

	// The column of the other kind of holder stays NULL.
	var instance, service *string
	if b.request.Holder.Kind == cyborg.HolderInstance {
		instance = &b.request.Holder.ID
	} else {
		service = &b.request.Holder.ID
	}

	// Both updates repeat the conditions under which the rows were chosen, and must
	// change every row: a partial bind would break "all of them or none".
	all := func(want int) func(tag pgconn.CommandTag) error {
		return func(tag pgconn.CommandTag) error {
			if int(tag.RowsAffected()) != want {
				return records.ErrCollision
			}
			return nil
		}
	}

	batch := &pgx.Batch{}
	batch.Queue(`
		UPDATE attach_handles h SET holder_kind = $2, holder_id = $3, operation_id = $4, prepared = t.prepared, parameters = t.parameters, clean = t.clean
		FROM unnest($1::uuid[], $5::boolean[], $6::jsonb[], $7::text[]) AS t (handle, prepared, parameters, clean)
		WHERE h.uuid = t.handle AND holder_kind IS NULL AND unconfirmed_kind IS NULL AND unclean = '' AND presence = 'present'`,
		handles, string(b.request.Holder.Kind), b.request.Holder.ID, chosen.operation, prepared, parameters, clean).Exec(all(len(chosen.pairings)))

	batch.Queue(`
		UPDATE arqs a SET state = $4, host = $5, provider_uuid = t.provider, handle_uuid = nullif(t.handle, $6), instance_uuid = $7,
		    service = $8, operation_id = $9, claimed_by = $9, project = coalesce(nullif($10, ''), project), reason = ''
		FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS t (arq, provider, handle)
		WHERE a.uuid = t.arq AND a.state = ANY($11) AND a.claimed_by IS NULL`,
		arqs, providers, handles, string(cyborg.ARQBindStarted), b.request.Host, uuid.Nil, instance, service, chosen.operation,
		b.request.Project, records.Texts(cyborg.Sources(cyborg.ARQTransitions(), cyborg.ARQBindStarted))).Exec(all(len(arqs)))

	return tx.SendBatch(ctx, batch).Close()
}

// begin checks once more that the host still shows the handles, and fences the
// accelerators that an image is loaded into.
func (b bind) begin(ctx context.Context, tx pgx.Tx, o *running) error {
	if o.age >= b.request.Within {
		// ErrCancelled is a kind that is never tried again: the time limit has
		// cancelled the operation.
		return cyborg.Errorf(cyborg.ErrCancelled, "the accelerator requests were not bound within %s", b.request.Within).
			WithHint("arqs.bind_timeout is the limit.")
	}

	if err := o.heard(b.silentAfter); err != nil {
		return err
	}

	// A report may have shown the loss of a handle since the admission.
	var gone string
	err := tx.QueryRow(ctx, `
		SELECT coalesce((SELECT h.identity FROM arqs a JOIN attach_handles h ON h.uuid = a.handle_uuid
			WHERE a.claimed_by = $1 AND h.presence = 'missing' LIMIT 1), '')`, o.id).Scan(&gone)
	switch {
	case err != nil:
		return err
	case gone != "":
		return cyborg.Errorf(cyborg.ErrChanged, "host %s no longer shows handle %s", o.host, gone)
	case len(o.targets) == 0:
		return nil
	}

	queueFences(tx, o, fmt.Sprintf("an image is loaded into %s for %s %s", o.targets[0].Name, b.request.Holder.Kind, b.request.Holder.ID))
	return nil
}

func (bind) loads(o *running) []cyborg.ImageLoad { return o.before.Loads }

// describe adds the images to load and the handles to attach afterwards.
func (b bind) describe(o *running, work *cyborg.Work) {
	work.Loads, work.Within, work.Notify = o.before.Loads, max(0, b.request.Within-o.age), b.notified()

	for i := range o.targets {
		for _, h := range o.targets[i].Handles {
			if h.Operation == o.id {
				handle := workHandle(h)
				handle.Accelerator = o.targets[i].UUID
				work.Handles = append(work.Handles, handle)
			}
		}
	}
}

// notified lists the requests whose result is reported to Nova. Nova knows only
// instances, so it is not told about requests of services.
func (b bind) notified() []uuid.UUID {
	if b.request.Holder.Kind != cyborg.HolderInstance {
		return nil
	}
	return b.arqs()
}

func (bind) gives() {}

// end settles the requests as Bound or BindFailed. Where an image was to be
// loaded it also lifts, restores or keeps the fences, depending on the outcome.
func (b bind) end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error {
	if outcome.State == cyborg.OperationSucceeded {
		queueLoaded(tx, o, outcome)
		return concludeARQs(ctx, tx, o, cyborg.ARQBound, "", o.abandonHandles)
	}

	// An undo that has failed may have left the handles attached on their host.
	release := inventory.TakeBackHandles
	if outcome.State == cyborg.OperationNeedsOperator {
		release = o.abandonHandles
	}
	if err := concludeARQs(ctx, tx, o, cyborg.ARQBindFailed, outcome.Error.Message, release); err != nil || len(o.targets) == 0 {
		return err
	}

	if outcome.State == cyborg.OperationNeedsOperator {
		return markUnprogrammed(ctx, tx, o, outcome)
	}

	return restoreFences(ctx, tx, o)
}
