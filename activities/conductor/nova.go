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

// Nova is told what became of accelerator requests, and knows the instances. *nova.Nova does.
type Nova interface {
	Notify(ctx context.Context, events []nova.Event) (nova.Delivered, error)
	Instance(ctx context.Context, instance uuid.UUID) (nova.Instance, error)
	RecreatedSince(ctx context.Context, instance uuid.UUID, since time.Time) (bool, error)
	OwnReboots(ctx context.Context, instance uuid.UUID) ([]string, error)
	RebootHard(ctx context.Context, instance uuid.UUID) error
	Rebooted(ctx context.Context, instance uuid.UUID, request string) (over bool, failure string, err error)
}

// Requests is what the activities need of accelerator requests in the records.
type Requests interface {
	ARQs(ctx context.Context, filter db.ARQFilter, listing db.Listing) ([]cyborg.ARQ, error)
	FailARQs(ctx context.Context, operation uuid.UUID, reason string) error
	MarkNovaNotified(ctx context.Context, operation uuid.UUID) error
	DeleteARQs(ctx context.Context, deletion db.ARQDeletion, actor cyborg.Actor) (db.DeletedARQs, error)
	CollectUnbound(ctx context.Context, untouchedFor time.Duration, limit int) (int, error)
	UnseenInstances(ctx context.Context, unseenFor time.Duration, limit int) ([]db.HeldInstance, error)
	SawInstances(ctx context.Context, seen []db.SeenInstance, sooner time.Duration) error
	EndInstanceDrift(ctx context.Context) error
	HardReboot(ctx context.Context, lost cyborg.Rescue) (string, error)
	CompareWhitelists(ctx context.Context) error
	UnrescuedHosts(ctx context.Context, limit int) ([]string, error)
}

// FailARQs records that a bind will not succeed, before it is undone.
func (a *Activities) FailARQs(ctx context.Context, in workflows.FailARQsInput) error {
	return workflows.ToFailure(a.store.FailARQs(ctx, in.Operation, in.Reason))
}

// NotifyNova tells Nova what became of the requests of a bind, as the records have it now: of those that were deleted meanwhile,
// or are bound by another operation, there is nothing to tell.
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

// atOnce is how long Nova may take where a run would go on without it.
const atOnce = 3 * time.Second

// notifyAtOnce tells Nova of those requests, and returns the ones that it has still to be told of.
func (a *Activities) notifyAtOnce(ctx context.Context, operation uuid.UUID, arqs []uuid.UUID) []uuid.UUID {
	if len(arqs) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, atOnce)
	defer cancel()
	if a.notify(ctx, operation, arqs) != nil {
		return arqs
	}
	return nil
}

// notify tells Nova, and records that it was told.
func (a *Activities) notify(ctx context.Context, operation uuid.UUID, arqs []uuid.UUID) error {
	if err := a.tell(ctx, operation, arqs); err != nil {
		return err
	}
	return a.store.MarkNovaNotified(ctx, operation)
}

func (a *Activities) tell(ctx context.Context, operation uuid.UUID, arqs []uuid.UUID) error {
	events, err := a.eventsOf(ctx, operation, arqs)
	if err != nil || len(events) == 0 {
		return err
	}
	told, err := a.cloud.Nova.Notify(ctx, events)
	if err != nil {
		a.log.WarnContext(ctx, "Nova was not told of a bind yet", slog.String("operation_id", operation.String()), slog.String("error", err.Error()))
		return err
	}
	a.log.InfoContext(ctx, "Nova was told of a bind", slog.String("operation_id", operation.String()),
		slog.Int("taken", told.Taken), slog.Int("early", told.Early), slog.Int("gone", told.Gone))
	return nil
}

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
