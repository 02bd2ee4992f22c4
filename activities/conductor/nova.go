package conductor

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/openstack/nova"
	"github.com/cyborg-project/cyborg/workflows"
)

// Nova is what the activities need of OpenStack Nova: it takes notifications of
// accelerator requests, knows the instances, and reboots them. *nova.Nova
// implements it.
type Nova interface {
	// Notify sends all events in one request. The error is of kind ErrUnavailable
	// where Nova has to be notified again.
	Notify(ctx context.Context, events []nova.Event) (nova.Delivered, error)
	// Instance returns an error of kind ErrNotFound only where Nova says that it
	// has no such instance.
	Instance(ctx context.Context, instance uuid.UUID) (nova.Instance, error)
	// Created says how long ago the guest was last created.
	Created(ctx context.Context, instance uuid.UUID) (ago time.Duration, ever bool, err error)
	// OwnReboots returns the ids of our requests to reboot the instance.
	OwnReboots(ctx context.Context, instance uuid.UUID) ([]string, error)
	RebootHard(ctx context.Context, instance uuid.UUID) error
	// Rebooted says whether the reboot of that request is over, and why it failed
	// if it did.
	Rebooted(ctx context.Context, instance uuid.UUID, request string) (over bool, failure string, err error)
}

// Requests is what the activities need of the accelerator requests in the
// records.
type Requests interface {
	ARQs(ctx context.Context, filter db.ARQFilter, listing db.Listing) ([]cyborg.ARQ, error)
	FailARQs(ctx context.Context, run db.Run, reason string) error
	MarkNovaNotified(ctx context.Context, operation uuid.UUID) error
	DeleteARQs(ctx context.Context, deletion db.ARQDeletion, actor cyborg.Actor) (db.DeletedARQs, error)
	CollectUnbound(ctx context.Context, untouchedFor time.Duration, limit int) (int, error)
	StaleInstances(ctx context.Context, unseenFor time.Duration, limit int) ([]db.HeldInstance, error)
	RecordSeenInstances(ctx context.Context, seen []db.SeenInstance, backdate time.Duration) error
	EndInstanceDrift(ctx context.Context) error
	HardReboot(ctx context.Context, lost cyborg.Rescue) (string, error)
	SinceBoot(ctx context.Context, host string, lost cyborg.Rescue) (atLeast, atMost time.Duration, err error)
	CompareWhitelists(ctx context.Context) error
	UnrescuedHosts(ctx context.Context, limit int) ([]string, error)
}

// FailARQs is the activity that marks the requests of a bind as failed, before
// the bind is undone.
func (a *Activities) FailARQs(ctx context.Context, in workflows.FailARQsInput) error {
	return workflows.ToFailure(a.store.FailARQs(ctx, runOf(ctx, in.Operation), in.Reason))
}

// NotifyNova is the activity that notifies Nova of the outcome of a bind's
// requests, as the records have it now. Requests that were deleted meanwhile,
// or that another operation binds, are left out.
func (a *Activities) NotifyNova(ctx context.Context, in workflows.NotifyNovaInput) error {
	if a.cloud.Nova == nil {
		return nil
	}

	op, err := a.store.Operation(ctx, in.Operation)
	if err != nil {
		return workflows.ToFailure(err)
	}

	var arqs []uuid.UUID
	for _, subject := range op.Subjects {
		if id, err := uuid.Parse(subject.ID); err == nil && subject.Kind == cyborg.SubjectARQ {
			arqs = append(arqs, id)
		}
	}

	return workflows.ToFailure(a.notify(ctx, in.Operation, arqs))
}

// notifyTimeout is how long Begin and End wait for Nova. They are local
// activities, and keep the run's workflow task open.
const notifyTimeout = 3 * time.Second

// notifyAtOnce notifies Nova of the requests with one attempt, and returns
// those that it has still to be notified of: all or none.
func (a *Activities) notifyAtOnce(ctx context.Context, operation uuid.UUID, arqs []uuid.UUID) []uuid.UUID {
	if len(arqs) == 0 {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()

	if a.notify(ctx, operation, arqs) != nil {
		return arqs
	}

	return nil
}

// notify sends Nova the events of the requests, and then records that it did.
// Where the process dies between the two, Nova gets the events twice, which
// does no harm.
func (a *Activities) notify(ctx context.Context, operation uuid.UUID, arqs []uuid.UUID) error {
	if err := a.sendEvents(ctx, operation, arqs); err != nil {
		return err
	}
	return a.store.MarkNovaNotified(ctx, operation)
}

// sendEvents sends Nova the events of the requests. It returns an error where
// Nova has to be notified again.
func (a *Activities) sendEvents(ctx context.Context, operation uuid.UUID, arqs []uuid.UUID) error {
	events, err := a.eventsOf(ctx, operation, arqs)
	if err != nil || len(events) == 0 {
		return err
	}

	delivered, err := a.cloud.Nova.Notify(ctx, events)
	if err != nil {
		a.log.WarnContext(ctx, "Nova was not told of a bind yet", slog.String("operation_id", operation.String()), slog.String("error", err.Error()))
		return err
	}

	a.log.InfoContext(ctx, "Nova was told of a bind", slog.String("operation_id", operation.String()),
		slog.Int("taken", delivered.Accepted), slog.Int("early", delivered.NotOnHost), slog.Int("gone", delivered.NotFound))

	return nil
}

// eventsOf returns one event for each request that belongs to an instance and
// that this operation has bound or failed to bind.
func (a *Activities) eventsOf(ctx context.Context, operation uuid.UUID, ids []uuid.UUID) ([]nova.Event, error) {
	if len(ids) == 0 {
		return nil, nil
	}

	arqs, err := a.store.ARQs(ctx, db.ARQFilter{UUIDs: ids}, db.Listing{})
	if err != nil {
		return nil, err
	}

	var events []nova.Event
	for _, arq := range arqs {
		bound := arq.State == cyborg.ARQBound
		if arq.Operation == operation && arq.Instance != uuid.Nil && (bound || arq.State == cyborg.ARQBindFailed) {
			events = append(events, nova.Event{Instance: arq.Instance, ARQ: arq.UUID, Bound: bound})
		}
	}

	return events, nil
}
