package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/commandline"
)

// listedOperations is the default limit of `operation list`: the number of
// operations only grows.
const listedOperations = 50

// operationCommand is the noun `operation` with its verbs.
func (s *shell) operationCommand() *cobra.Command {
	cmd := commandline.Noun("operation", "Durable pieces of work: watch, cancel, retry",
		s.operationList(), s.operationShow(), s.operationWatch(), s.operationCancel(), s.operationRetry(),
		s.operationHistory())
	cmd.Aliases = []string{"operations", "op"}
	return cmd
}

// operationColumns are the columns of `operation list`.
func operationColumns() []column[apiclient.Operation] {
	type o = apiclient.Operation
	return []column[o]{
		{title: "ID", key: "id", id: true, value: func(x o) any { return x.ID }},
		{title: "Kind", key: "kind", value: func(x o) any { return x.Kind }},
		{title: "State", key: "state", value: func(x o) any { return x.State }},
		{title: hostTitle, key: hostKey, value: func(x o) any { return x.Host }},
		{title: "Subjects", key: "subjects", value: func(x o) any { return x.Subjects }, text: func(x o) string { return fewSubjects(x.Subjects) }},
		{title: "Actor", key: "actor", value: func(x o) any { return x.Actor }, text: func(x o) string { return x.Actor.Name }},
		{title: "Admitted At", key: "admitted_at", value: func(x o) any { return x.CreatedAt }},
		{title: "Error", key: "error", value: func(x o) any { return x.Error }, text: errorText, long: true},
	}
}

// subjectsText has a line for each subject.
func subjectsText(subjects []cyborg.Subject) string {
	lines := make([]string, len(subjects))
	for i, subject := range subjects {
		lines[i] = string(subject.Kind) + " " + subject.ID
	}
	return strings.Join(lines, "\n")
}

// fewSubjects lists the first subjects only: an operation on a backend has all
// accelerators of its host as subjects, which would fill the list.
func fewSubjects(subjects []cyborg.Subject) string {
	const few = 3
	if len(subjects) <= few+1 {
		return subjectsText(subjects)
	}
	return subjectsText(subjects[:few]) + "\nand " + count(len(subjects)-few, "other")
}

// errorText is an operation's error with its hint.
func errorText(operation apiclient.Operation) string {
	if operation.Error == nil {
		return ""
	}
	if operation.Error.Hint == "" {
		return operation.Error.Message
	}
	return operation.Error.Message + "\n" + operation.Error.Hint
}

// operationList is `operation list`.
func (s *shell) operationList() *cobra.Command {
	var filter apiclient.OperationFilter
	var kinds, states []string
	var accelerator string
	cmd := &cobra.Command{Use: listVerb, Short: "List operations, newest first", Args: takes()}

	flags := cmd.Flags()
	flags.StringSliceVar(&kinds, "kind", nil, "only of this kind, such as attach; repeatable")
	flags.StringSliceVar(&states, "state", nil, "only in this state, such as failed; repeatable")
	flags.StringSliceVar(&filter.Hosts, hostKey, nil, "only on this host; repeatable")
	flags.StringVar(&accelerator, "accelerator", "", "only on this accelerator")

	return list(s, cmd, listing[apiclient.Operation]{
		columns: operationColumns(), pages: true, limit: listedOperations,
		feed: func() apiclient.EventFilter { return onlyHost(filter.Hosts) },
		read: func(ctx context.Context, client *apiclient.Client, page apiclient.Page) (items []apiclient.Operation, err error) {
			filter.Kinds, filter.States = asWords[cyborg.OperationKind](kinds), asWords[cyborg.OperationState](states)
			if accelerator != "" {
				if filter.Accelerator, err = s.accelerator(ctx, client, accelerator); err != nil {
					return nil, err
				}
			}

			return apiclient.Collect(client.Operations(ctx, filter, page))
		},
	})
}

// operationShow is `operation show`.
func (s *shell) operationShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show OPERATION", Short: "Show one operation with its steps", Args: takes("OPERATION")}
	p := s.printer(cmd)
	p.addWatch(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, id, err := s.namedOperation(cmd, args[0])
		if err != nil {
			return err
		}

		return p.show(cmd.Context(), client, apiclient.EventFilter{Operation: id}, func(ctx context.Context) error {
			operation, err := client.Operation(ctx, id)
			if err != nil {
				return err
			}
			return p.operation(operation)
		})
	}

	return cmd
}

// namedOperation connects to the API and finds the operation that an argument
// names.
func (s *shell) namedOperation(cmd *cobra.Command, name string) (*apiclient.Client, uuid.UUID, error) {
	client, err := s.connect()
	if err != nil {
		return nil, uuid.Nil, err
	}
	id, err := s.operation(cmd.Context(), client, name)
	return client, id, err
}

// operation prints one operation, with its steps and progress in words.
func (p *printer) operation(operation apiclient.Operation) error {
	steps := make([]string, len(operation.Steps))
	for i, step := range operation.Steps {
		steps[i] = fmt.Sprintf("%s %-7s %s%s", timeText(step.At), step.State, step.Name, note(step.Note))
	}

	texts := map[string]string{
		"subjects": subjectsText(operation.Subjects),
		"steps":    strings.Join(steps, "\n"),
	}

	if operation.Error != nil {
		texts["error"] = errorText(operation)
	}

	if at := operation.Progress; at != nil {
		texts["progress"] = inWords(at.Step) + note(at.Note)
		if at.Percent >= 0 {
			texts["progress"] = fmt.Sprintf("%s %d%%%s", inWords(at.Step), at.Percent, note(at.Note))
		}
	}

	return printShow(p, operation, []string{"id", "kind", "state", hostKey, "subjects", "steps", "error"}, texts)
}

// operationWatch is `operation watch`.
func (s *shell) operationWatch() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch OPERATION",
		Short: "Follow an operation until it has ended",
		Long:  "Follows an operation until it has ended, then shows it. The exit code tells how it ended. Ctrl-C leaves it alone.",
		Args:  takes("OPERATION"),
	}
	p := s.printer(cmd)

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		_, id, err := s.namedOperation(cmd, args[0])
		if err != nil {
			return err
		}

		operation, err := s.follow(cmd.Context(), id)
		if err != nil {
			return err
		}

		if err := p.operation(operation); err != nil {
			return err
		}

		return failureOf(operation)
	}

	return cmd
}

// operationCancel is `operation cancel`.
func (s *shell) operationCancel() *cobra.Command {
	var wait waiting
	var agreed consent
	cmd := &cobra.Command{
		Use:   "cancel OPERATION",
		Short: "Stop an operation and undo what it did",
		Long:  "Asks the operation to stop and to undo what it did, and stays until it has. It fails where the operation came to\nanother end first.",
		Args:  takes("OPERATION"),
	}
	p := s.printer(cmd)
	wait.addFlags(cmd)
	agreed.addFlags(cmd)

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, id, err := s.namedOperation(cmd, args[0])
		if err != nil {
			return err
		}

		if !agreed.yes {
			operation, err := client.Operation(cmd.Context(), id)
			if err != nil {
				return err
			}
			if err := s.agree(cmd.Context(), agreed, cancellationLosses(operation)); err != nil {
				return err
			}
		}

		operation, err := client.CancelOperation(cmd.Context(), id)
		if err != nil {
			return err
		}

		if !wait.stays() {
			return p.operationOnly(operation)
		}

		// The operation may still succeed: the cancellation was only asked for.
		if operation, err = s.follow(cmd.Context(), id); err != nil {
			return err
		}

		switch operation.State {
		case cyborg.OperationCancelled:
			return p.operation(operation)
		case cyborg.OperationSucceeded:
			return cyborg.Errorf(cyborg.ErrChanged, "operation %s had succeeded before it could be cancelled", id).WithOperation(id)
		default:
			return failureOf(operation)
		}
	}

	return cmd
}

// cancellationLosses describes whose work a cancellation stops, for the user to
// agree to.
func cancellationLosses(operation apiclient.Operation) []string {
	if operation.State.Ended() {
		return nil // nothing is lost, and the API rejects the request with the reason
	}
	return []string{fmt.Sprintf("the %s for %s, %s since %s on %s, is stopped, and what it did is undone", operation.Kind,
		operation.Actor.Name, operation.State, timeText(operation.CreatedAt), operation.Host)}
}

// operationRetry is `operation retry`.
func (s *shell) operationRetry() *cobra.Command {
	var wait waiting
	cmd := &cobra.Command{Use: "retry OPERATION", Short: "Do an operation that failed or was cancelled again, as a new one", Args: takes("OPERATION")}
	p := s.printer(cmd)
	wait.addFlags(cmd)

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, id, err := s.namedOperation(cmd, args[0])
		if err != nil {
			return err
		}

		answer, err := client.RetryOperation(cmd.Context(), id, apiclient.Async())
		if err != nil {
			return err
		}

		return s.finish(cmd.Context(), p, wait, answer, func(operation *apiclient.Operation) error {
			if operation == nil {
				return nil // there was nothing left to do
			}
			return p.operation(*operation)
		})
	}

	return cmd
}
