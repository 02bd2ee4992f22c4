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
	cmd := &cobra.Command{
		Use:   "attach-instance INSTANCE ACCELERATOR",
		Short: "Give an accelerator to an instance",
		Long:  "Gives a free handle of the accelerator to the instance, as `accelerator attach --instance` does.",
		Args:  takes("INSTANCE", "ACCELERATOR"),
	}
	return s.operate(cmd, change{
		shows: true,
		named: second,
		start: func(ctx context.Context, client *apiclient.Client, id uuid.UUID, args []string) (apiclient.Answer, error) {
			return client.Attach(ctx, id, cyborg.Holder{Kind: cyborg.HolderInstance, ID: args[0]}, apiclient.Async())
		},
	})
}

// detachInstance is `detach-instance`.
func (s *shell) detachInstance() *cobra.Command {
	var wait waiting
	var agreed consent
	cmd := &cobra.Command{
		Use:   "detach-instance INSTANCE [ACCELERATOR...]",
		Short: "Take accelerators back from an instance",
		Long: "Takes back from the instance what it holds of the accelerators named; all that it holds, where none is.\n" +
			"One that fails does not keep the others from being taken back.",
		Args: takesMore("ACCELERATOR", "INSTANCE"),
	}

	p := s.printer(cmd)
	wait.addFlags(cmd)
	agreed.addFlags(cmd)

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		client, err := s.connect()
		if err != nil {
			return err
		}

		instance := cyborg.Holder{Kind: cyborg.HolderInstance, ID: args[0]}
		ids, err := s.heldBy(ctx, client, agreed, instance, args[1:])
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
			answer, err := client.Detach(ctx, id, instance, apiclient.Async())
			if err == nil {
				err = s.finish(ctx, p, wait, answer, func(*apiclient.Operation) error { return nil })
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
	}

	return cmd
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
