package operation

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// Admission is what Admit records: an operation and, with it, its claims.
type Admission struct {
	ID    uuid.UUID // chosen by the caller
	Actor cyborg.Actor

	// IdempotencyKey makes a repeat by the same actor return the operation that was
	// admitted first; empty for none. Fingerprint is that of the request: a repeat
	// of the key with another one is an error of kind ErrInvalid.
	IdempotencyKey string
	Fingerprint    string

	RetryOf uuid.UUID // the failed operation that this one repeats; zero for none

	Request cyborg.Request // what the operation has to do; it is recorded as its input
}

// Admitted is the answer of Admit.
type Admitted struct {
	Operation cyborg.Operation
	// Repeated is true where the operation had been admitted before with the same
	// idempotency key.
	Repeated bool
	// NothingToDo is true where there was nothing to do and no operation was
	// admitted, for example for a detach of an accelerator that nobody holds.
	NothingToDo bool
}

// choice is the result of operationHandler.choose: the host and the things on
// it that an operation is about.
type choice struct {
	operation uuid.UUID
	host      string

	targets  []inventory.Accelerator // will be claimed; the first is the one that was asked for
	uses     []inventory.Accelerator // further accelerators that are used without a claim
	arqs     []uuid.UUID             // the accelerator requests
	pairings []pairing               // the handles that the requests get
	backend  string                  // "" unless the operation is about a backend
	device   uuid.UUID               // zero unless the operation is about all of a device, which may have no accelerators

	before              before
	nothing             bool // there is nothing to do, and no operation is admitted
	notificationPending bool // Nova must be notified of the result

	// failed is set where the operation cannot be done and that has to be recorded:
	// the operation then fails in the transaction that admits it.
	failed error
}

// failedWith returns the choice of an operation that fails with its admission.
// It claims no accelerator and assigns no handle; it only has its subjects.
func (c *choice) failedWith(err error) choice {
	out := *c

	out.targets, out.pairings, out.before, out.notificationPending, out.failed = nil, nil, before{}, false, err

	return out
}

// before is what an operation remembers in its row about the time before its
// first change, for its undo and its last change.
type before struct {
	// Name is the accelerator's name before a Provision renamed it.
	Name string `json:"name,omitempty"`
	// Fences are the fences of the targets before a Program replaced them with its
	// own.
	Fences map[uuid.UUID]cyborg.Fence `json:"fences,omitempty"`
	// Stuck is why a Detach by force was needed.
	Stuck string `json:"stuck,omitempty"`
	// Loads are the images that a Bind has to load.
	Loads []cyborg.ImageLoad `json:"loads,omitempty"`
	// Prepares is set where the host of a Bind prepares handles for the holder.
	Prepares bool `json:"prepares,omitempty"`
	// Bitstreams are the images that the targets had. What the host reports of them
	// later changes nothing of the work: it was signed. Nil in an operation that an
	// earlier release has begun.
	Bitstreams map[uuid.UUID]string `json:"bitstreams,omitempty"`
	// Clean are the handles that a Clean cleans, with the method that each needs.
	Clean []cyborg.HandleToClean `json:"clean,omitempty"`
	// Partition is what a Partition has to do. The parts of the device that it names are
	// those of its beginning, also once reports show others: it was signed.
	Partition *cyborg.PartitionWork `json:"partition,omitempty"`
	// Handles are the handles that an Unbind has its host take back.
	Handles []uuid.UUID `json:"handles,omitempty"`
	// Whitelist is what Nova's whitelist had of the targets before a Whitelist
	// changed it.
	Whitelist map[uuid.UUID]cyborg.NovaSpec `json:"whitelist,omitempty"`
	// Rescues are the instances that a Rescue makes Nova reboot.
	Rescues []cyborg.Rescue `json:"rescues,omitempty"`
}

// subjects lists what the operation is about: its accelerator requests, its
// backend, the device that all of it is about, its accelerators, their devices, and the
// host.
func (c *choice) subjects() []cyborg.Subject {
	var out []cyborg.Subject
	for _, id := range c.arqs {
		out = append(out, cyborg.Subject{Kind: cyborg.SubjectARQ, ID: id.String()})
	}

	if c.backend != "" {
		out = append(out, cyborg.Subject{Kind: cyborg.SubjectBackend, ID: c.host + "/" + c.backend})
	}

	// The order is recorded. lockOperation finds by it which accelerator was asked
	// for: the first one.
	devices := map[uuid.UUID]bool{c.device: true}
	if c.device != uuid.Nil {
		out = append(out, cyborg.Subject{Kind: cyborg.SubjectDevice, ID: c.device.String()})
	}
	about := slices.Clone(c.targets)

	for _, used := range c.uses {
		if !slices.ContainsFunc(c.targets, func(t inventory.Accelerator) bool { return t.UUID == used.UUID }) {
			about = append(about, used)
		}
	}

	for _, t := range about {
		out = append(out, cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: t.UUID.String()})
	}

	for _, t := range about {
		if !devices[t.DeviceUUID] {
			devices[t.DeviceUUID] = true
			out = append(out, cyborg.Subject{Kind: cyborg.SubjectDevice, ID: t.DeviceUUID.String()})
		}
	}

	return append(out, cyborg.Subject{Kind: cyborg.SubjectHost, ID: c.host})
}

// Admit records an operation with its claims, all or none. The caller starts
// the operation's workflow afterwards.
//
// A refusal has one of the kinds ErrInvalid, ErrNotFound, ErrClaimed (the error names
// the operation in the way), ErrInUse, ErrChanged, ErrNameTaken, ErrNoFit, ErrProtected
// and ErrHostSilent (the certificates of the host were revoked). A bind that is refused
// because of the accelerators that it asks for is recorded as a failed operation; only
// then both the operation and the error are returned.
//
// Admit is idempotent: the same id, or the same idempotency key from the same
// actor and project, returns the operation that was admitted first.
func (s *Store) Admit(ctx context.Context, a Admission) (Admitted, error) {
	if a.Request == nil || a.ID == uuid.Nil {
		return Admitted{}, cyborg.Errorf(cyborg.ErrInvalid, "an admission has an id and a request")
	}

	handler, err := s.handlerOf(a.Request)
	if err != nil {
		return Admitted{}, err
	}

	// One turn for the transaction and the reads around it. A refusal for overload
	// among them would hide what became of the admission.
	ctx, release, err := records.TakeTurn(ctx)
	if err != nil {
		return Admitted{}, s.db.Failure(ctx, err)
	}
	defer release()

	var (
		out     Admitted
		refused error
	)

	change := s.db.ChangeByKey
	if _, ok := handler.(searching); ok {
		change = s.db.Change
	}

	err = change(ctx, a.Actor, a.ID, func(tx pgx.Tx) error {
		out, refused = Admitted{}, nil
		queueKeyUnused(tx, &a)

		chosen, err := handler.choose(ctx, tx)
		if err != nil {
			return err
		}

		chosen.operation = a.ID

		out.NothingToDo = chosen.nothing
		if out.NothingToDo {
			return nil
		}

		if err := queueOperation(tx, &a, &chosen, &out.Operation); err != nil {
			return err
		}

		if err := handler.admit(ctx, tx, chosen); err != nil || chosen.failed == nil {
			return err
		}

		// The operation ends in the transaction that admits it, so nobody ever sees it
		// open and no workflow is started for it.
		refused = cyborg.AsError(chosen.failed).WithOperation(a.ID)
		failed := &running{
			id: a.ID, kind: a.Request.Kind(), state: cyborg.OperationAdmitted, host: chosen.host, handler: handler,
		}
		return failed.conclude(ctx, tx, &cyborg.Outcome{
			Operation: a.ID, State: cyborg.OperationFailed, Error: cyborg.AsError(refused),
		})
	})
	if err != nil || out.NothingToDo {
		// The same request may run twice at the same moment. The other one may be what
		// was in the way, or may have left nothing to do.
		if first, readErr := s.AdmittedBefore(ctx, a); readErr != nil || first.Repeated {
			return first, readErr
		}
	}

	if err != nil {
		return Admitted{}, err
	}

	return out, refused
}

// queueKeyUnused refuses to admit an operation whose idempotency key has been
// used before; the caller then looks up what that admitted. The server refuses:
// the statement fails for a row that it finds, and the rest of the message is
// skipped. So a repeat does not wait for the lock of the host, which may be held
// for long, and keeps nobody else waiting for it.
//
// A repeat that comes at the same moment collides instead, and one that has only
// the same id violates a constraint; both are looked up as well. See records.Queue.
func queueKeyUnused(tx pgx.Tx, a *Admission) {
	if a.IdempotencyKey == "" {
		return
	}

	// No text with a UUID in it is a boolean.
	records.Queue(tx, `
		SELECT ('the idempotency key of operation ' || id || ' was used again')::boolean FROM operations
		WHERE actor = $1 AND actor_id = $2 AND project = $3 AND idempotency_key = $4`,
		a.Actor.Name, a.Actor.ID, a.Actor.Project, a.IdempotencyKey).QueryRow(func(row pgx.Row) error {
		err := row.Scan(nil)
		switch pg, isPg := errors.AsType[*pgconn.PgError](err); {
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		case isPg && pg.Code == invalidText:
			return cyborg.Errorf(cyborg.ErrChanged, "idempotency key %q was used before", a.IdempotencyKey)
		default:
			return err
		}
	})
}

// invalidText is the SQLSTATE invalid_text_representation.
const invalidText = "22P02"

// AdmittedBefore finds the operation that an earlier call of Admit with the same
// id or idempotency key admitted; Repeated is false where there is none. It does
// not read the admission's request. A key that was used with another fingerprint
// is an error of kind ErrInvalid.
func (s *Store) AdmittedBefore(ctx context.Context, a Admission) (Admitted, error) {
	var (
		id          uuid.UUID
		fingerprint *string
	)

	c := records.Clause{}
	if a.IdempotencyKey == "" {
		c.And("id = ?", a.ID)
	} else {
		c.And("(id = ? OR (actor = ? AND actor_id = ? AND project = ? AND idempotency_key = ?))",
			a.ID, a.Actor.Name, a.Actor.ID, a.Actor.Project, a.IdempotencyKey)
	}

	err := s.db.Pool.QueryRow(ctx, "SELECT id, fingerprint FROM operations"+c.String(), c.Values...).Scan(&id, &fingerprint)
	if errors.Is(err, pgx.ErrNoRows) {
		return Admitted{}, nil
	}
	if err != nil {
		return Admitted{}, s.db.Failure(ctx, err)
	}

	if fingerprint != nil && *fingerprint != a.Fingerprint {
		return Admitted{}, cyborg.Errorf(cyborg.ErrInvalid, "idempotency key %q was used for another request", a.IdempotencyKey).
			WithOperation(id).WithHint("Use a new key for each request.")
	}

	op, err := s.Operation(ctx, id)
	return Admitted{Operation: op, Repeated: err == nil}, err
}

// queueOperation writes the operation, its subjects and its claims, and reads
// the operation back into out. It fails with records.ErrCollision where another
// operation has one of the targets, or the key, since choose looked: the next try
// says which. See records.Queue.
func queueOperation(tx pgx.Tx, a *Admission, c *choice, out *cyborg.Operation) error {
	input, err := json.Marshal(a.Request)
	if err != nil {
		return err
	}

	var key, fingerprint *string
	if a.IdempotencyKey != "" {
		key, fingerprint = &a.IdempotencyKey, &a.Fingerprint
	}

	var kinds, subjects []string
	for _, subject := range c.subjects() {
		kinds, subjects = append(kinds, string(subject.Kind)), append(subjects, subject.ID)
	}

	targets := inventory.UUIDs(c.targets)
	batch := &pgx.Batch{}

	// retry_of is left empty where the earlier operation has been pruned. Where the
	// key was used since queueKeyUnused has looked, by a request that shares no lock
	// with this one, the next try finds that.
	batch.Queue(`
		INSERT INTO operations (id, kind, host, input, before, actor, project, request_id, idempotency_key, fingerprint, retry_of,
		    notification_pending, actor_id)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, (SELECT id FROM operations WHERE id = $11), $12, $13)
		ON CONFLICT (actor, actor_id, project, idempotency_key) DO NOTHING`,
		a.ID, string(a.Request.Kind()), c.host, input, c.before, a.Actor.Name, a.Actor.Project, a.Actor.RequestID, key, fingerprint,
		a.RetryOf, c.notificationPending, a.Actor.ID).Exec(records.MustAffect(records.ErrCollision))

	batch.Queue(`
		INSERT INTO operation_subjects (operation_id, position, kind, subject_id)
		SELECT $1, position - 1, kind, id FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS s (kind, id, position)`,
		a.ID, kinds, subjects)

	if len(targets) > 0 {
		// Claims are inserted in one order, so that two admissions with common targets
		// cannot wait for each other. A row that exists already is skipped; fewer rows
		// than targets then mean that another operation has a claim.
		batch.Queue(`
			INSERT INTO claims (deployable_uuid, operation_id)
			SELECT target, $2 FROM unnest($1::uuid[]) AS target ORDER BY target
			ON CONFLICT DO NOTHING`, targets, a.ID).Exec(func(tag pgconn.CommandTag) error {
			if int(tag.RowsAffected()) < len(targets) {
				return records.ErrCollision
			}
			return nil
		})
	}

	batch.Queue(records.SelectOperations+" WHERE o.id = $1", a.ID).QueryRow(func(row pgx.Row) (err error) {
		*out, err = records.ScanOperation(row)
		return err
	})

	records.QueueBatch(tx, batch)
	return nil
}
