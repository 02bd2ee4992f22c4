// Package stalearqs deletes accelerator requests (ARQs) that their instances no
// longer need. Normally Nova deletes them; those that are left are the ones
// whose DELETE did not reach this service. What Nova says about the instance
// decides:
//
//   - There is no such instance: each of its requests is stale (Gone).
//   - It is on no host, and Nova either has given up to place it, or is looking
//     for a host: the requests that it had before Nova was asked are stale
//     (OnNoHost). No guest uses them, and for a next host Nova makes new ones.
//
// Anything else, or no answer, leaves the requests alone: no accelerator is
// taken from a running instance.
//
// There are two callers. Reconcile (activities/conductor) asks Nova about every
// instance in turn. It lets an instance on no host keep its requests until
// nobody has changed them for arqs.forget_unbound_after, and for as long as the
// instance has an allocation of their accelerators in Placement. A bind
// (api/v2) that finds all handles held asks about their holders at once, and
// does not wait: Placement has already given the accelerators to another
// instance. It also asks about its own instance where that has requests of an
// earlier attempt.
//
// Requests without an instance need no answer from Nova; see
// db.Store.CollectUnbound.
package stalearqs

import (
	"context"
	"log/slog"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
)

// Store deletes accelerator requests.
type Store interface {
	DeleteARQs(ctx context.Context, deletion db.ARQDeletion, actor cyborg.Actor) (db.DeletedARQs, error)
}

// actor is in whose name the requests are deleted.
func actor() cyborg.Actor { return cyborg.Actor{Name: "cyborg"} }

// Gone deletes all requests of an instance that Nova certainly does not have.
func Gone(ctx context.Context, store Store, log *slog.Logger, instance uuid.UUID) error {
	deleted, err := store.DeleteARQs(ctx, db.ARQDeletion{Instance: instance, AllowBound: true}, actor())
	if err == nil {
		logDeleted(ctx, log, instance, "Nova no longer has it", deleted)
	}
	return err
}

// OnNoHost deletes requests of an instance that is certainly on no host. They
// must have been read before Nova was asked: Nova may have made new ones since.
// It returns the operations that work on some of them; those requests are
// deleted when their operation ends.
func OnNoHost(ctx context.Context, store Store, log *slog.Logger, instance uuid.UUID, arqs []uuid.UUID) ([]cyborg.Operation, error) {
	deleted, err := store.DeleteARQs(ctx, db.ARQDeletion{UUIDs: arqs, AllowBound: true}, actor())
	if err == nil {
		logDeleted(ctx, log, instance, "it is on no host", deleted)
	}
	return deleted.Pending, err
}

// logDeleted logs what a deletion did and why the instance does not need its
// requests, unless there was nothing to delete.
func logDeleted(ctx context.Context, log *slog.Logger, instance uuid.UUID, reason string, deleted db.DeletedARQs) {
	if len(deleted.Deleted)+len(deleted.Pending) == 0 {
		return
	}

	log.WarnContext(ctx, "deleted accelerator requests that their instance does not need",
		slog.String("instance", instance.String()), slog.String("reason", reason),
		slog.Int("deleted", len(deleted.Deleted)), slog.Int("operations_asked_to_stop", len(deleted.Pending)))
}
