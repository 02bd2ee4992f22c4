package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/english"
)

// listedOperations is the default limit of `operation list`: the number of
// operations only grows.
const listedOperations = 50

// operationCommand is the noun `operation`.
func (s *shell) operationCommand() *cobra.Command {
	return noun("operation", "Operations on the hardware: watch, cancel, retry", []verb{
		{
			use: listVerb, short: "List operations, newest first",
			examples: []string{
				"cyborg operation list --state failed --state needs_operator --long",
				"cyborg operation list --accelerator crypto-1 --limit 0",
			},
			build: s.operationList,
		},
		{use: "show OPERATION", short: "Show one operation with its steps", build: show(s, operations())},

		{
			use: "watch OPERATION", short: "Follow an operation until it has ended",
			long: "Follows an operation until it has ended, then shows it. The exit code says how it ended. Ctrl-C does\n" +
				"not stop the operation.",
			examples: []string{"cyborg operation watch 0a1b2c3d --timeout 10m"},
			build:    s.operationWatch,
		},
		{
			use: "cancel OPERATION", short: "Stop an operation and undo what it did",
			long: "Asks the operation to stop and to undo what it did, and waits until it has. It fails if the operation ends in\n" +
				"another way first.",
			examples: []string{"cyborg operation cancel 0a1b2c3d --yes"},
			build:    s.operationCancel,
		},
		{
			use: "retry OPERATION", short: "Repeat an operation that failed, was cancelled or needs an operator",
			build: s.operationRetry,
		},
		{complete: s.operationHistory()},
	}, "operations", "op")
}

// operations is how verbs read and print an operation.
func operations() thing[apiclient.Operation] {
	return thing[apiclient.Operation]{
		read: func(ctx context.Context, c call) (apiclient.Operation, error) { return c.client.Operation(ctx, c.id) },
		feed: func(_ context.Context, c call) (apiclient.EventFilter, error) {
			return apiclient.EventFilter{Operation: c.id}, nil
		},
		lead:  []string{"id", "kind", "state", hostKey, "subjects", "steps", "error"},
		texts: operationTexts,
	}
}

// operationTexts are an operation's steps and progress in words.
func operationTexts(operation apiclient.Operation) map[string]string {
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

	return texts
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
	return subjectsText(subjects[:few]) + "\nand " + english.Count(len(subjects)-few, "other")
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
func (s *shell) operationList(cmd *cobra.Command) {
	var filter apiclient.OperationFilter
	var kinds, states []string
	var accelerator string

	flags := cmd.Flags()
	flags.StringSliceVar(&kinds, "kind", nil, "only of this kind, such as attach; repeatable")
	flags.StringSliceVar(&states, "state", nil, "only in this state, such as failed; repeatable")
	flags.StringSliceVar(&filter.Hosts, hostKey, nil, "only on this host; repeatable")
	flags.StringVar(&accelerator, "accelerator", "", "only on this accelerator")

	list(s, cmd, listing[apiclient.Operation]{
		columns: operationColumns(), pages: true, limit: listedOperations, feed: onlyHost(&filter.Hosts),
		read: func(ctx context.Context, c call, page apiclient.Page) (items []apiclient.Operation, err error) {
			filter.Kinds, filter.States = asWords[cyborg.OperationKind](kinds), asWords[cyborg.OperationState](states)
			if accelerator != "" {
				if filter.Accelerator, err = s.accelerator(ctx, c.client, accelerator); err != nil {
					return nil, err
				}
			}

			return apiclient.Collect(c.client.Operations(ctx, filter, page))
		},
	})
}

// operationWatch is `operation watch`.
func (s *shell) operationWatch(cmd *cobra.Command) {
	p := s.printer(cmd)
	s.run(cmd, func(ctx context.Context, c call) error {
		operation, err := s.follow(ctx, c.client, c.id)
		if err != nil {
			return err
		}

		if err := operations().render(p, operation); err != nil {
			return err
		}

		return failureOf(operation)
	})
}

// operationCancel is `operation cancel`.
func (s *shell) operationCancel(cmd *cobra.Command) {
	s.operate(cmd, work{
		losses: func(ctx context.Context, c call) ([]string, error) {
			operation, err := c.client.Operation(ctx, c.id)
			return cancellationLosses(operation), err
		},
		start: func(ctx context.Context, c call) (apiclient.Answer, error) {
			operation, err := c.client.CancelOperation(ctx, c.id)
			return apiclient.Answer{Operation: &operation}, err
		},
		// The operation may still succeed: the cancellation was only asked for.
		failure: func(operation apiclient.Operation) error {
			switch operation.State {
			case cyborg.OperationCancelled:
				return nil
			case cyborg.OperationSucceeded:
				return cyborg.Errorf(cyborg.ErrChanged, "operation %s had succeeded before it could be cancelled", operation.ID).WithOperation(operation.ID)
			default:
				return failureOf(operation)
			}
		},
		done: operationAfter,
	})
}

// operationAfter prints the operation that the answer has. Without one, nothing
// was left to do, and it prints nothing.
func operationAfter(_ context.Context, p *printer, _ call, answer apiclient.Answer) error {
	if answer.Operation == nil {
		return nil
	}
	return operations().render(p, *answer.Operation)
}

// cancellationLosses describes whose work a cancellation stops, for the user to
// agree to.
func cancellationLosses(operation apiclient.Operation) []string {
	if operation.State.Ended() {
		return nil // nothing is lost, and the API rejects the request with the reason
	}
	return []string{fmt.Sprintf("the %s for %s, %s since %s on %s, would be stopped, and what it did undone", operation.Kind,
		operation.Actor.Name, operation.State, timeText(operation.CreatedAt), operation.Host)}
}

// operationRetry is `operation retry`.
func (s *shell) operationRetry(cmd *cobra.Command) {
	s.operate(cmd, work{
		start: func(ctx context.Context, c call) (apiclient.Answer, error) {
			return c.client.RetryOperation(ctx, c.id, apiclient.Async())
		},
		done: operationAfter,
	})
}
