package v2

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/api/operate"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/stalearqs"
)

// Instances answers questions about instances; *nova.Nova implements it. An
// error is of kind ErrNotFound if the instance does not exist.
type Instances interface {
	// Project returns the id of the project that the instance belongs to.
	Project(ctx context.Context, instance uuid.UUID) (string, error)
	// Scheduled reports whether the instance is on no host while Nova is looking
	// for one.
	Scheduled(ctx context.Context, instance uuid.UUID) (bool, error)
	// Stranded reports whether the instance is on no host and Nova has no task in
	// progress for it.
	Stranded(ctx context.Context, instance uuid.UUID) (bool, error)
	// HardReboot returns the request id of the hard reboot that is in progress for
	// the instance, or an empty text if there is none.
	HardReboot(ctx context.Context, instance uuid.UUID) (string, error)
}

// Canceller cancels the workflow run of an operation.
type Canceller interface {
	Cancel(ctx context.Context, op cyborg.Operation) error
}

// deletionWait is how long a DELETE waits for the operations that work on the
// deleted requests. A request whose operation takes longer is deleted when the
// operation ends.
const deletionWait = 10 * time.Second

// withNovaTimeout derives the context for a question to Nova during a bind.
// Nova gets half of the time that is left, so that the other half remains for
// the bind itself.
func withNovaTimeout(ctx context.Context, deadline time.Time) (context.Context, context.CancelFunc) {
	const share = 2
	return context.WithTimeout(ctx, time.Until(deadline)/share)
}

// projectOf returns the project that the requests of an instance should belong
// to, or an empty text to leave them where they are. Nova creates requests in
// the project of its caller. When an administrator moves or unshelves an
// instance, that is the administrator's project, so Nova is asked for the
// instance's own. The answer is not essential: an error is only logged.
func (a *API) projectOf(r *http.Request, holder cyborg.Holder, deadline time.Time) string {
	if a.instances == nil || holder.Kind != cyborg.HolderInstance || !auth.CallerOf(r.Context()).Has("admin") {
		return ""
	}

	id, err := uuid.Parse(holder.ID)
	if err != nil {
		return ""
	}

	ctx, cancel := withNovaTimeout(r.Context(), deadline)
	defer cancel()

	project, err := a.instances.Project(ctx, id)
	if err != nil {
		a.log.WarnContext(r.Context(), "the project of an instance is not known; its accelerator requests stay in the project of their creator",
			slog.String("instance", holder.ID), slog.String("error", err.Error()))
	}

	return project
}

// bind gets the bind admitted, and answers. Two refusals are resolved here
// before they reach Nova: the instance still has requests of an earlier
// scheduling attempt, or all handles, or others that go to one holder with them,
// are held by instances that Nova may have deleted meanwhile.
func (a *API) bind(w http.ResponseWriter, r *http.Request, request cyborg.BindRequest, deadline time.Time) error {
	ctx := r.Context()
	request.RefuseIfHeld = a.instances != nil

	err := a.admitWithRetries(r, deadline, func(left time.Duration) (operate.Outcome, error) {
		request.Within = left
		outcome, err := a.operate(w, r, db.Admission{Request: request}, a.config.BindWait)
		if errors.Is(err, db.ErrOtherARQs) {
			if err := a.deleteEarlierARQs(ctx, request, deadline, err); err != nil {
				return outcome, err
			}
			request.Within = max(0, time.Until(deadline))
			outcome, err = a.operate(w, r, db.Admission{Request: request}, a.config.BindWait)
		}

		if cyborg.ErrorKindOf(err) != cyborg.ErrNoFit {
			return outcome, err
		}

		// This admission must not look for stale holders again: if the handles are
		// still held, the bind fails and is recorded as failed.
		a.deleteAbandonedARQs(ctx, request, deadline)
		request.RefuseIfHeld, request.Within = false, max(0, time.Until(deadline))
		return a.operate(w, r, db.Admission{Request: request}, a.config.BindWait)
	})
	if err != nil {
		return err
	}
	return writeEmpty(w, http.StatusAccepted)
}

// deleteEarlierARQs deletes the requests that an instance already has, provided
// that the instance is on no host and Nova is looking for one. They were left
// by an earlier scheduling attempt: Nova gave it up, but its DELETE did not
// reach this service. Where Nova is not looking for a host, or does not answer,
// it returns the given refusal. Where an operation still works on the old
// requests, it returns an error of kind ErrClaimed that names the operation, so
// that the caller waits for it.
func (a *API) deleteEarlierARQs(ctx context.Context, request cyborg.BindRequest, deadline time.Time, refusal error) error {
	instance, err := uuid.Parse(request.Holder.ID)
	if err != nil || a.instances == nil {
		return refusal
	}

	// List the requests before Nova is asked. A request that Nova creates after its
	// answer belongs to a newer attempt and must not be deleted.
	earlier, err := a.store.ARQs(ctx, db.ARQFilter{Instances: []uuid.UUID{instance}}, db.Listing{})
	if err != nil {
		return err
	}

	askingCtx, cancel := withNovaTimeout(ctx, deadline)
	defer cancel()

	scheduled, err := a.instances.Scheduled(askingCtx, instance)
	if err != nil {
		a.log.WarnContext(ctx, "Nova does not say whether an instance that has accelerator requests is on a host",
			slog.String("instance", instance.String()), slog.String("error", err.Error()))
	}
	if !scheduled {
		return refusal
	}

	// The requests of this bind are not leftovers, even if the records already list
	// them under this instance.
	earlier = slices.DeleteFunc(earlier, func(arq cyborg.ARQ) bool {
		return slices.ContainsFunc(request.ARQs, func(b cyborg.BindARQ) bool { return b.UUID == arq.UUID })
	})

	pending, err := a.deleteInstanceARQs(ctx, instance, earlier)
	if err != nil || len(pending) == 0 {
		return err
	}

	return cyborg.Errorf(cyborg.ErrClaimed, "operation %s works on the accelerator requests that instance %s had before", pending[0].ID, instance).
		WithOperation(pending[0].ID)
}

// deleteInstanceARQs deletes the given requests as far as they still belong to
// the instance, and cancels the operations that work on them. It returns these
// operations. The caller has made sure that the instance is on no host.
func (a *API) deleteInstanceARQs(ctx context.Context, instance uuid.UUID, arqs []cyborg.ARQ) ([]cyborg.Operation, error) {
	var stale []uuid.UUID
	for i := range arqs {
		if arqs[i].Instance == instance {
			stale = append(stale, arqs[i].UUID)
		}
	}

	pending, err := stalearqs.OnNoHost(ctx, a.store, a.log, instance, stale)
	a.cancelAll(ctx, pending)
	return pending, err
}

// deleteAbandonedARQs deletes the requests that hold the wanted accelerators, or
// others that keep these from being given out, on behalf of instances that Nova has
// deleted, or that Nova could not place on any host. Nova's DELETE for them did not
// reach this service, but Placement has already given their accelerators to the new
// instance. Without this, the bind would fail until Reconcile has checked all
// instances (package stalearqs has the policy of both). It does what it can: errors
// are only logged.
func (a *API) deleteAbandonedARQs(ctx context.Context, request cyborg.BindRequest, deadline time.Time) {
	ctx, cancel := withNovaTimeout(ctx, deadline)
	defer cancel()

	held, err := a.store.ARQs(ctx, db.ARQFilter{Hosts: []string{request.Host}}, db.Listing{})
	if err != nil {
		a.log.WarnContext(ctx, "who holds the accelerators of a host is not known", slog.String("host", request.Host), slog.String("error", err.Error()))
		return
	}

	providers := make([]uuid.UUID, len(request.ARQs))
	for i, b := range request.ARQs {
		providers[i] = b.Provider
	}

	wanted, err := a.store.RelatedProviders(ctx, providers)
	if err != nil {
		a.log.WarnContext(ctx, "what keeps the accelerators of a bind from being given out is not known", slog.String("host", request.Host), slog.String("error", err.Error()))
		return
	}

	// Each instance is checked once. The nil instance is excluded: it marks
	// requests that are held by no instance.
	checked := map[uuid.UUID]bool{uuid.Nil: true}
	for _, arq := range held {
		if !slices.Contains(wanted, arq.ProviderUUID) || checked[arq.Instance] {
			continue
		}

		checked[arq.Instance] = true
		stranded, err := a.instances.Stranded(ctx, arq.Instance)
		gone := cyborg.ErrorKindOf(err) == cyborg.ErrNotFound
		if err != nil && !gone {
			a.log.WarnContext(ctx, "Nova does not say whether an instance with accelerator requests exists",
				slog.String("instance", arq.Instance.String()), slog.String("error", err.Error()))
			return
		}

		switch {
		case gone:
			err = stalearqs.Gone(ctx, a.store, a.log, arq.Instance)
		case stranded:
			_, err = a.deleteInstanceARQs(ctx, arq.Instance, held)
		}

		if err != nil {
			a.log.WarnContext(ctx, "the accelerator requests of an instance that does not need them could not be deleted",
				slog.String("instance", arq.Instance.String()), slog.String("error", err.Error()))
			return
		}
	}
}

// finishDeletion cancels the operations that work on deleted requests, and
// waits up to deletionWait for their ends.
func (a *API) finishDeletion(r *http.Request, pending []cyborg.Operation) {
	ctx, cancel := context.WithTimeout(limiter.NeverRefuse(r.Context()), deletionWait)
	defer cancel()

	a.cancelAll(ctx, pending)
	for _, op := range pending {
		if a.awaitEnd(ctx, op.ID, deletionWait) != nil {
			return
		}
	}
}

// cancelAll cancels operations that work on deleted requests. An error is only
// logged: the requests are marked in the records and are deleted whenever the
// operation ends.
func (a *API) cancelAll(ctx context.Context, pending []cyborg.Operation) {
	for _, op := range pending {
		if err := a.canceller.Cancel(ctx, op); err != nil {
			a.log.WarnContext(ctx, "an operation on deleted accelerator requests was not cancelled; they are deleted when it has ended",
				slog.String("operation_id", op.ID.String()), slog.String("error", err.Error()))
		}
	}
}
