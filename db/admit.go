package db

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cyborg-project/cyborg"
)

// story is what one kind of operation does to the records: what it claims, and its first and its last change. There is
// one file for each.
type operationHandler interface {
	kind() cyborg.OperationKind
	// choose locks the host, finds what the operation is about, and guards it as it is then.
	choose(ctx context.Context, tx pgx.Tx) (choice, error)
	// admit makes what changes at admission, with the claims held.
	admit(ctx context.Context, tx pgx.Tx, chosen choice) error
	// guard says why the operation cannot be done to its targets. Its own claim does not count.
	guard(targets []accelerator, operation uuid.UUID) error
	// begin makes the first change. It runs once, and after guard.
	begin(ctx context.Context, tx pgx.Tx, o *running) error
	// describe completes the work to do from the records, however often it is asked.
	describe(o *running, work *cyborg.Work)
	// end makes the last change, or takes back all that admit and begin did. Of an operation that never began, begin's
	// changes are not there.
	end(ctx context.Context, tx pgx.Tx, o *running, outcome *cyborg.Outcome) error
}

// choice is what an operation is about. Its targets will be claimed; the first is the one it was asked for.
type choice struct {
	operation           uuid.UUID
	host                string
	targets             []accelerator
	uses                []accelerator // what it is about besides them, without a claim
	arqs                []uuid.UUID   // the accelerator requests that it is about
	takes               []taking      // the handles that they get
	backend             string        // set where the operation is about a backend
	before              before
	nothing             bool // there is nothing to do
	notificationPending bool // Nova will have to be told how it ends
	// failed is why it cannot be done, where that is recorded: the operation has failed with its admission.
	failed error
}

// failedWith is the choice of an operation that fails with its admission, and touches nothing but its own subjects.
func (c *choice) failedWith(err error) choice {
	out := *c
	out.targets, out.takes, out.before, out.notificationPending, out.failed = nil, nil, before{}, false, err
	return out
}

// before is what an undo brings back.
type before struct {
	// Name is what the accelerator was called before a Provision gave it a name.
	Name string `json:"name,omitempty"`
	// Fences are those of the targets before a Program set its own.
	Fences map[uuid.UUID]cyborg.Fence `json:"fences,omitempty"`
	// Stuck is why a Detach by force was needed.
	Stuck string `json:"stuck,omitempty"`
	// Loads are what a Bind found to load.
	Loads []cyborg.Load `json:"loads,omitempty"`
	// Handles are those that an Unbind takes back.
	Handles []uuid.UUID `json:"handles,omitempty"`
	// Whitelist is what Nova had of the targets before a Whitelist.
	Whitelist map[uuid.UUID]cyborg.NovaSpec `json:"whitelist,omitempty"`
	// Rescues are the instances that a Rescue has Nova reboot.
	Rescues []cyborg.Rescue `json:"rescues,omitempty"`
}

// subjects are the accelerator requests, the accelerators, their devices, the backend, and the host.
func (c *choice) subjects() []cyborg.Subject {
	var out []cyborg.Subject
	for _, id := range c.arqs {
		out = append(out, cyborg.Subject{Kind: cyborg.SubjectARQ, ID: id.String()})
	}
	if c.backend != "" {
		out = append(out, cyborg.Subject{Kind: cyborg.SubjectBackend, ID: c.host + "/" + c.backend})
	}
	devices := map[uuid.UUID]bool{}
	about := slices.Clone(c.targets)
	for _, used := range c.uses {
		if !slices.ContainsFunc(c.targets, func(t accelerator) bool { return t.UUID == used.UUID }) {
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

// story returns what the admission asks for, and its request, which is recorded as the operation's input.
func (s *Store) handler(a *Admission) (operationHandler, any, error) {
	var (
		stories []operationHandler
		request any
	)
	if a.Provision != nil {
		stories, request = append(stories, provision{*a.Provision, s.opts.SilentAfter}), a.Provision
	}
	if a.Program != nil {
		stories, request = append(stories, program{*a.Program}), a.Program
	}
	if a.Attach != nil {
		stories, request = append(stories, attach{*a.Attach}), a.Attach
	}
	if a.Detach != nil {
		stories, request = append(stories, detach{*a.Detach, s.opts.SilentAfter}), a.Detach
	}
	if a.Configure != nil {
		stories, request = append(stories, configure{*a.Configure}), a.Configure
	}
	if a.Retire != nil {
		stories, request = append(stories, retire{*a.Retire}), a.Retire
	}
	if a.Bind != nil {
		stories, request = append(stories, bind{*a.Bind}), a.Bind
	}
	if a.Unbind != nil {
		stories, request = append(stories, unbind{*a.Unbind}), a.Unbind
	}
	if a.Whitelist != nil {
		stories, request = append(stories, whitelist{*a.Whitelist}), a.Whitelist
	}
	if a.Rescue != nil {
		stories, request = append(stories, rescue{*a.Rescue}), a.Rescue
	}
	if len(stories) != 1 || a.ID == uuid.Nil {
		return nil, nil, cyborg.Errorf(cyborg.ErrInvalid, "an admission has an id and exactly one request")
	}
	return stories[0], request, nil
}

// Admit records an operation with its claims, all or none, or says why it cannot be: Invalid, ErrNotFound, Claimed (the
// error names the operation in the way), ErrInUse, Changed, ErrNameTaken, ErrNoFit, Protected. The workflow is started after it. A
// bind that is refused because of the accelerator that it asks for is recorded as one that has failed: then there is an
// operation beside the error.
//
// Admitting the same id again, or the same idempotency key for the same actor and project, returns what was admitted
// first.
func (s *Store) Admit(ctx context.Context, a Admission) (Admitted, error) {
	story, request, err := s.handler(&a)
	if err != nil {
		return Admitted{}, err
	}
	if a.IdempotencyKey != "" { // else it is hardly a repeat, and one that is fails below
		if first, err := s.admittedBefore(ctx, &a); err != nil || first.Repeated {
			return first, err
		}
	}
	var (
		out     Admitted
		refused error
	)
	change := s.changeByKey
	if a.Provision != nil { // which may look for one that fits
		change = s.change
	}
	err = change(ctx, a.Actor, a.ID, func(tx pgx.Tx) error {
		out, refused = Admitted{}, nil
		chosen, err := story.choose(ctx, tx)
		if err != nil {
			return err
		}
		chosen.operation = a.ID
		if out.Nothing = chosen.nothing; out.Nothing {
			return nil
		}
		if out.Operation, err = insertOperation(ctx, tx, &a, story.kind(), request, &chosen); err != nil {
			return err
		}
		if err := story.admit(ctx, tx, chosen); err != nil || chosen.failed == nil {
			return err
		}
		refused = cyborg.AsError(chosen.failed).WithOperation(a.ID)
		return (&running{id: a.ID, state: cyborg.OperationAdmitted, host: chosen.host, handler: story}).conclude(ctx, tx,
			&cyborg.Outcome{Operation: a.ID, State: cyborg.OperationFailed, Error: cyborg.AsError(refused)})
	})
	if err != nil || out.Nothing {
		// The same request, sent twice, may have been in our way, or have left nothing to do.
		if first, readErr := s.admittedBefore(ctx, &a); readErr != nil || first.Repeated {
			return first, readErr
		}
	}
	if err != nil {
		return Admitted{}, err
	}
	return out, refused
}

// admittedBefore finds the operation that an earlier call of the same request admitted.
func (s *Store) admittedBefore(ctx context.Context, a *Admission) (Admitted, error) {
	var (
		id          uuid.UUID
		fingerprint *string
	)
	c := clause{}
	if a.IdempotencyKey == "" {
		c.and("id = ?", a.ID)
	} else {
		// Before migration 22 nobody kept the id of who asked.
		c.and("(id = ? OR (actor = ? AND actor_id IN (?, '') AND project = ? AND idempotency_key = ?))", a.ID, a.Actor.Name, a.Actor.ID, a.Actor.Project, a.IdempotencyKey)
	}
	err := s.pool.QueryRow(ctx, "SELECT id, fingerprint FROM operations"+c.String(), c.values...).Scan(&id, &fingerprint)
	if errors.Is(err, pgx.ErrNoRows) {
		return Admitted{}, nil
	}
	if err != nil {
		return Admitted{}, s.failure(ctx, err)
	}
	if fingerprint != nil && *fingerprint != a.Fingerprint {
		return Admitted{}, cyborg.Errorf(cyborg.ErrInvalid, "idempotency key %q was used for another request", a.IdempotencyKey).
			WithOperation(id).WithHint("Use a new key for each request.")
	}
	op, err := s.Operation(ctx, id)
	return Admitted{Operation: op, Repeated: err == nil}, err
}

// insertOperation writes the operation, its subjects and its claims, and returns what is recorded then.
func insertOperation(
	ctx context.Context, tx pgx.Tx, a *Admission, kind cyborg.OperationKind, request any, c *choice,
) (out cyborg.Operation, _ error) {
	input, err := json.Marshal(request)
	if err != nil {
		return out, err
	}
	var key, fingerprint *string
	if a.IdempotencyKey != "" {
		key, fingerprint = &a.IdempotencyKey, &a.Fingerprint
	}
	var kinds, subjects []string
	for _, subject := range c.subjects() {
		kinds, subjects = append(kinds, string(subject.Kind)), append(subjects, subject.ID)
	}
	granted, targets := 0, ids(c.targets)
	batch := &pgx.Batch{}
	batch.Queue(`
		INSERT INTO operations (id, kind, host, input, before, actor, project, request_id, idempotency_key, fingerprint, retry_of,
		    untold, actor_id)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, (SELECT id FROM operations WHERE id = $11), $12, $13)`,
		a.ID, string(kind), c.host, input, c.before, a.Actor.Name, a.Actor.Project, a.Actor.RequestID, key, fingerprint, a.RetryOf, c.notificationPending, a.Actor.ID)
	batch.Queue(`
		INSERT INTO operation_subjects (operation_id, position, kind, subject_id)
		SELECT $1, position - 1, kind, id FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS s (kind, id, position)`,
		a.ID, kinds, subjects)
	if len(targets) > 0 {
		batch.Queue(`
			INSERT INTO claims (deployable_uuid, operation_id)
			SELECT target, $2 FROM unnest($1::uuid[]) AS target ORDER BY target
			ON CONFLICT DO NOTHING`, targets, a.ID).Exec(func(tag pgconn.CommandTag) error {
			granted = int(tag.RowsAffected())
			return nil
		})
	}
	batch.Queue(selectOperations+" WHERE o.id = $1", a.ID).QueryRow(func(row pgx.Row) (err error) {
		out, err = scanOperation(row)
		return err
	})
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return out, err
	}
	if granted < len(targets) {
		return out, whoClaimed(ctx, tx, targets, a.ID)
	}
	return out, nil
}

// whoClaimed is the error that names the operation in the way.
func whoClaimed(ctx context.Context, tx pgx.Tx, targets []uuid.UUID, operation uuid.UUID) error {
	var (
		name  string
		claim cyborg.Claim
	)
	err := tx.QueryRow(ctx, `
		SELECT d.accelerator, o.id, o.kind FROM claims c
		JOIN operations o ON o.id = c.operation_id JOIN deployables d ON d.uuid = c.deployable_uuid
		WHERE c.deployable_uuid = ANY($1) AND c.operation_id <> $2 ORDER BY d.uuid LIMIT 1`, targets, operation).
		Scan(&name, &claim.Operation, &claim.Kind)
	if errors.Is(err, pgx.ErrNoRows) {
		return errCollision // it has just ended
	}
	if err != nil {
		return err
	}
	return claimed(name, claim)
}
