package cli

import (
	"context"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// waiting holds --wait and --no-wait: whether a command waits until its
// operation has ended.
type waiting struct{ wait, not bool }

// addFlags adds --wait and --no-wait.
func (w *waiting) addFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&w.wait, "wait", true, "wait until the operation has ended")
	cmd.Flags().BoolVar(&w.not, "no-wait", false, "print the operation's id and return at once")
	cmd.MarkFlagsMutuallyExclusive("wait", "no-wait")
}

// finish waits for the operation that w has started, and prints the outcome;
// with --no-wait it prints the operation's id instead.
func (s *shell) finish(ctx context.Context, p *printer, c call, wait waiting, answer apiclient.Answer, w work) error {
	if answer.Operation == nil {
		return w.done(ctx, p, c, answer)
	}
	if wait.not || !wait.wait {
		return p.operationOnly(*answer.Operation)
	}

	operation, err := s.follow(ctx, c.client, answer.Operation.ID)
	if err != nil {
		return err
	}

	failure := failureOf
	if w.failure != nil {
		failure = w.failure
	}
	if err := failure(operation); err != nil {
		return err
	}

	answer.Operation = &operation
	return w.done(ctx, p, c, answer)
}

// operationOnly prints an operation's id, or the whole operation as JSON or
// YAML.
func (p *printer) operationOnly(operation apiclient.Operation) error {
	if p.objects() {
		return p.document(operation)
	}
	return p.write(operation.ID.String() + "\n")
}

// follow shows an operation's progress until it has ended. When the context
// ends first, the operation goes on and follow returns *detached.
func (s *shell) follow(ctx context.Context, client *apiclient.Client, id uuid.UUID) (apiclient.Operation, error) {
	show := s.newProgress()
	defer show.end()

	var last apiclient.Operation

	for operation, err := range client.Watch(ctx, id, show.trouble) {
		// The operation is durable, so the end of the wait does not touch it.
		if err != nil && ctx.Err() != nil {
			return last, &detached{operation: id}
		}
		if err != nil {
			if cyborg.ErrorKindOf(err) == cyborg.ErrNotFound {
				return last, err // there is no operation that could go on
			}
			s.sayf("Lost sight of operation %s, which goes on. Return to it with: cyborg operation watch %s", id, id)
			return last, err
		}

		last = operation
		show.update(operation)
	}

	return last, nil
}

// failureOf returns why an ended operation did not succeed, or nil where it
// did.
func failureOf(operation apiclient.Operation) error {
	if operation.State == cyborg.OperationSucceeded {
		return nil
	}

	failure := cyborg.Errorf(cyborg.ErrInternal, "operation %s has the state %s and does not say why", operation.ID, operation.State)
	if operation.Error != nil {
		// The copy keeps the caller's operation as the API sent it.
		copied := *operation.Error
		failure = &copied
	}

	if operation.State == cyborg.OperationNeedsOperator {
		failure.Message += "; it needs an operator"
	}
	failure.Operation = operation.ID

	return failure
}
