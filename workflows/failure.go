package workflows

import (
	"context"
	"errors"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"

	"github.com/cyborg-project/cyborg"
)

// began is the detail of a cancellation that comes from the agent which had
// begun the activity, and not from Temporal's server. neverTaken tells the two
// apart by it: only the first may have left something to undo.
const began = "began"

// ToFailure turns an error of an activity into a Temporal failure: its type is
// the error's kind, its details hold the whole *cyborg.Error, and it is
// retryable as the table of error kinds says. A cancelled context stays a
// cancellation. Nil stays nil.
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

// FromFailure is the opposite of ToFailure: whatever error Temporal returned
// for an activity or workflow becomes a *cyborg.Error of its original kind,
// without run ids or attempt counts. A text that is too long to read is cut: a host
// may have written it, and it goes into results, of which Temporal takes no large
// ones. Nil stays nil.
func FromFailure(err error) *cyborg.Error {
	failure := fromFailure(err)
	if failure == nil || len(failure.Message) <= longestSentence && len(failure.Hint) <= longestSentence {
		return failure
	}

	short := *failure
	short.Message, short.Hint = cyborg.Sanitize(short.Message, longestSentence), cyborg.Sanitize(short.Hint, longestSentence)
	return &short
}

// fromFailure is FromFailure for texts of any length.
func fromFailure(err error) *cyborg.Error {
	if err == nil {
		return nil
	}

	if e, ok := errors.AsType[*temporal.ApplicationError](err); ok {
		// The details of a local activity are the value itself, those of a remote one
		// are JSON. Both decode into a pointer.
		var original *cyborg.Error
		if e.HasDetails() && e.Details(&original) == nil && original != nil && original.Kind != "" {
			return original
		}
		return cyborg.Errorf(cyborg.ErrInternal, "%s", e.Message())
	}

	if e, ok := errors.AsType[*temporal.TimeoutError](err); ok {
		switch {
		case isStartTimeout(e):
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
