package workflows

import (
	"context"
	"errors"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"

	"github.com/cyborg-project/cyborg"
)

// began marks the cancellation of an activity by the agent that had begun it, rather than by the server.
const began = "began"

// ToFailure turns an error of an activity into what Temporal carries: the kind as type, the whole *cyborg.Error in the
// details, retryable as the table of kinds says. A cancelled context stays a cancellation. Nil stays nil.
func ToFailure(err error) error {
	switch {
	case err == nil:
		return nil
	case temporal.IsApplicationError(err):
		return err
	case temporal.IsCanceledError(err), errors.Is(err, context.Canceled) && cyborg.ErrorKindOf(err) == cyborg.ErrInternal:
		return temporal.NewCanceledError(began)
	}
	e := cyborg.AsError(err)
	return temporal.NewApplicationErrorWithOptions(e.Message, string(e.Kind), temporal.ApplicationErrorOptions{
		NonRetryable: !e.Kind.Retryable(),
		Details:      []any{e},
	})
}

// FromFailure is the way back: whatever Temporal returned of an activity or workflow becomes a *cyborg.Error of the kind
// it had, without run ids or attempt counts. Nil stays nil.
func FromFailure(err error) *cyborg.Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*temporal.ApplicationError](err); ok {
		// A local activity's details are the very value, another's are JSON; a pointer takes both.
		var original *cyborg.Error
		if e.HasDetails() && e.Details(&original) == nil && original != nil && original.Kind != "" {
			return original
		}
		return cyborg.Errorf(cyborg.ErrInternal, "%s", e.Message())
	}
	if e, ok := errors.AsType[*temporal.TimeoutError](err); ok {
		switch {
		case startTimeout(e):
			return cyborg.Errorf(cyborg.ErrHostSilent, "the agent of the host did not take the step in time")
		case e.TimeoutType() == enumspb.TIMEOUT_TYPE_HEARTBEAT:
			return cyborg.Errorf(cyborg.ErrTimeout, "the agent of the host fell silent in the middle of the step")
		}
		return cyborg.Errorf(cyborg.ErrTimeout, "the step took longer than its limit")
	}
	if temporal.IsCanceledError(err) {
		return cyborg.Errorf(cyborg.ErrCancelled, "the operation was cancelled")
	}
	if temporal.IsTerminatedError(err) {
		return cyborg.Errorf(cyborg.ErrCancelled, "the run was terminated from outside; Reconcile undoes what it had done")
	}
	if e, ok := errors.AsType[*temporal.PanicError](err); ok {
		return cyborg.Errorf(cyborg.ErrInternal, "a step panicked: %s", e.Error())
	}
	return cyborg.AsError(err)
}
