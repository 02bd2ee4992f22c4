package v2

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/drain"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/api/operate"
	"github.com/cyborg-project/cyborg/api/web"
)

const (
	// minRetryInterval and maxRetryInterval bound the time between two attempts to
	// have an operation admitted. The lower bound keeps a burst of notifications
	// from becoming a burst of queries; the upper bound covers notifications that
	// were lost.
	minRetryInterval = 20 * time.Millisecond
	maxRetryInterval = 500 * time.Millisecond
)

// patchARQs binds or unbinds the accelerator requests that the body names: all
// of them or none. It waits for conflicting operations until BindTimeout is
// over, because Nova gives up the instance at any refusal.
func (a *API) patchARQs(w http.ResponseWriter, r *http.Request) error {
	if q := readArguments(r); q.err != nil {
		return q.err
	}

	body, err := a.body(w, r)
	if err != nil {
		return err
	}
	patches, err := readPatches(body)
	if err != nil {
		return err
	}

	// Sorted, so that logs and errors do not depend on the order of a map.
	ids := slices.SortedFunc(maps.Keys(patches), func(x, y uuid.UUID) int { return cmp.Compare(x.String(), y.String()) })
	targets := make([]string, len(ids))
	for i, id := range ids {
		targets[i] = id.String()
	}
	web.SetTarget(r.Context(), targets...)

	if in := pathText(r, "arq"); in != "" {
		if id, ok := parseUUID(in); !ok || len(ids) != 1 || ids[0] != id {
			return cyborg.Errorf(cyborg.ErrInvalid, "the path names accelerator request %s, and the body another", web.Shorten(in))
		}
	}

	// readPatches has made sure that all patches agree in the verb, the host, the
	// holder and the project.
	first := patches[ids[0]]
	if slices.ContainsFunc(ids, func(id uuid.UUID) bool { return patches[id].namesProject }) {
		if err := a.mayChooseProject(r); err != nil {
			return err
		}
	}

	if err := needsService(r); err != nil {
		return err
	}

	// One deadline for everything: waiting for the store, for other operations and
	// for Nova.
	deadline := time.Now().Add(a.config.BindTimeout)
	r = r.WithContext(limiter.NeverRefuseBefore(r.Context(), deadline)) // Nova gives up the instance at any refusal

	if !first.bind {
		return a.unbind(w, r, ids, deadline)
	}

	request := cyborg.BindRequest{Host: first.host, Holder: first.holder, Project: first.project}
	for _, id := range ids {
		request.ARQs = append(request.ARQs, cyborg.BindARQ{UUID: id, Provider: patches[id].provider})
	}

	if request.Project == "" {
		request.Project = a.projectOf(r, first.holder, deadline)
	}

	return a.bind(w, r, request, deadline)
}

// mayChooseProject returns an error unless the caller may say which project a
// request belongs to: that takes an administrator and microversion 2.1.
func (a *API) mayChooseProject(r *http.Request) error {
	if err := needs(r.Context(), minorProject); err != nil {
		return err
	}

	if !auth.CallerOf(r.Context()).Has("admin") {
		return cyborg.Errorf(cyborg.ErrForbidden, "only administrators may say to which project a request belongs")
	}

	return nil
}

// admitWithRetries calls try until the operation is admitted or the time is
// over. It retries after conflicts with other operations, while Temporal is not
// available, and while too many operations are in progress. Nova gives up an
// instance at any other answer than success, so waiting is cheaper than
// refusing. The last call of try gets no time to wait.
func (a *API) admitWithRetries(r *http.Request, deadline time.Time, try func(left time.Duration) (operate.Outcome, error)) error {
	waiting, cancel := context.WithDeadline(r.Context(), deadline)
	defer cancel()

	for {
		left := max(0, time.Until(deadline))
		outcome, err := try(left)

		// The caller gets every answer but a refusal that may pass by itself. It also
		// gets the error of an operation that has ended. An operation that goes on, but
		// whose record could not be read, is in the way of the next attempt, which
		// waits for its end.
		ended := outcome.Operation.ID != uuid.Nil && outcome.Result != operate.GoesOn
		kind := cyborg.ErrorKindOf(err)
		if err == nil || ended || kind != cyborg.ErrClaimed && kind != cyborg.ErrUnavailable && kind != cyborg.ErrOverloaded {
			return err
		}

		if left == 0 {
			return cyborg.Errorf(cyborg.ErrTimeout, "waited %s: %s", a.config.BindTimeout, err.Error()).WithOperation(cyborg.AsError(err).Operation)
		}

		// Only the caller's own context, or the server's shutdown, ends the loop. The
		// deadlines of maxRetryInterval and of waiting just lead to the next, or the
		// last, attempt.
		err = a.awaitEnd(waiting, cyborg.AsError(err).Operation, maxRetryInterval)
		if err != nil && (r.Context().Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
			return err
		}
	}
}

// awaitEnd waits until the operation has ended, but at most for the given time.
// Without an operation it only waits. The error is that of the context, or of
// kind ErrUnavailable when the server shuts down.
func (a *API) awaitEnd(ctx context.Context, operation uuid.UUID, atMost time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()

	// Subscribe before the first look at the operation, so that no change in
	// between is missed.
	var notified <-chan struct{}
	if operation != uuid.Nil {
		notified = a.store.Notify(ctx)
	}

	ticker := time.NewTicker(minRetryInterval)
	defer ticker.Stop()

	for {
		if operation != uuid.Nil {
			op, err := a.store.Operation(ctx, operation)
			if err == nil && op.State.Ended() || cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {
				return nil
			}
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-drain.Signal(ctx):
			return cyborg.Errorf(cyborg.ErrUnavailable, "the server stops")
		case <-notified:
			select {
			case <-ticker.C: // events of other operations arrive here too
			case <-ctx.Done():
			}
		}
	}
}
