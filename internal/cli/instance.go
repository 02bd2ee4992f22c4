package cli

import (
	"context"
	"errors"
	"slices"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// attachInstance is `attach-instance`, which OpenStack's users look for.
func (s *shell) attachInstance() *cobra.Command {
	return verb{
		use: "attach-instance INSTANCE ACCELERATOR", short: "Give an accelerator to an instance",
		long: "Gives a free handle of the accelerator to the instance, as `accelerator attach --instance` does.",
		examples: []string{
			"cyborg attach-instance 5f5f5f5f-0000-4000-8000-00000000000f crypto-1",
			"cyborg attach-instance 5f5f5f5f-0000-4000-8000-00000000000f nic-1 --parameter mac=52:54:00:12:34:56 --parameter vlan=5",
		},
		build: func(cmd *cobra.Command) {
			var parameters parameterFlags
			parameters.addFlags(cmd)

			s.operate(cmd, work{
				start: func(ctx context.Context, c call) (apiclient.Answer, error) {
					instance := cyborg.Holder{Kind: cyborg.HolderInstance, ID: c.args[0]}
					return c.client.AttachWith(ctx, c.id, instance, parameters.chosen, apiclient.Async())
				},
				done: s.acceleratorAfter,
			})
		},
	}.command()
}

// detachInstance is `detach-instance`.
func (s *shell) detachInstance() *cobra.Command {
	return verb{
		use: "detach-instance INSTANCE [ACCELERATOR...]", short: "Take accelerators back from an instance",
		long: "Takes back the accelerators that you name, or else all that the instance holds. If one of them fails, the others\n" +
			"are still taken back.",
		examples: []string{
			"cyborg detach-instance 5f5f5f5f-0000-4000-8000-00000000000f crypto-1",
			"cyborg detach-instance 5f5f5f5f-0000-4000-8000-00000000000f --yes    # all that it has",
		},
		build: s.detachFromInstance,
	}.command()
}

// detachFromInstance is what `detach-instance` does.
func (s *shell) detachFromInstance(cmd *cobra.Command) {
	var wait waiting
	var agreed consent
	p := s.printer(cmd)
	wait.addFlags(cmd)
	agreed.addFlags(cmd)

	nothing := work{done: func(context.Context, *printer, call, apiclient.Answer) error { return nil }}
	s.run(cmd, func(ctx context.Context, c call) error {
		instance := cyborg.Holder{Kind: cyborg.HolderInstance, ID: c.args[0]}
		ids, err := s.heldBy(ctx, c.client, agreed, instance, c.args[1:])
		if err != nil {
			return err
		}

		if len(ids) == 0 && !s.quiet {
			s.sayf("There was nothing to do.")
		}

		// Each accelerator is detached by its own operation, so a failure is reported
		// at once and the remaining ones still follow.
		var failed error
		for _, id := range ids {
			answer, err := c.client.Detach(ctx, id, instance, apiclient.Async())
			if err == nil {
				err = s.finish(ctx, p, c, wait, answer, nothing)
			}

			switch {
			case ctx.Err() != nil, err != nil && len(ids) == 1:
				return err
			case err != nil:
				s.sayf("Accelerator %s:", id)
				s.printError(err)
				failed = &reportedError{err}
			}
		}

		return failed
	})
}

// heldBy finds the accelerators that are named. Where none is, it returns all
// that the holder has, if the user agrees to their loss.
func (s *shell) heldBy(ctx context.Context, client *apiclient.Client, agreed consent, holder cyborg.Holder, named []string) ([]uuid.UUID, error) {
	ids := []uuid.UUID{}
	for _, name := range named {
		id, err := s.accelerator(ctx, client, name)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	if len(named) > 0 {
		return ids, nil
	}

	held, err := apiclient.Collect(client.Accelerators(ctx, apiclient.AcceleratorFilter{Holder: holder}, apiclient.Page{}))
	if err != nil {
		return nil, err
	}

	var losses []string
	for _, a := range held {
		ids = append(ids, a.UUID)
		losses = append(losses, holdings(a, &holder)...)
	}

	return ids, s.agree(ctx, agreed, losses)
}

// reportedError is an error that the user has seen already; only its exit code
// is left to return.
type reportedError struct{ err error }

func (t *reportedError) Error() string { return t.err.Error() }
func (t *reportedError) Unwrap() error { return t.err }

// isReported reports whether an error must not be printed again.
func isReported(err error) bool {
	_, ok := errors.AsType[*reportedError](err)
	return ok
}
