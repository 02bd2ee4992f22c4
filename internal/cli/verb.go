package cli

import (
	"context"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/commandline"
)

// verb describes a command. Each noun has a table of its verbs, in the file
// that is named after the noun; a new verb is one more entry there.
type verb struct {
	// use is the name and the arguments: HOST, or [PROFILE] where it may be
	// missing, or [ACCELERATOR...] for any number. From it follow the check of the
	// arguments, their completion, and the UUID in call.
	use   string
	short string // ends without a full stop
	long  string // says more than short, where there is more to say

	// examples are complete command lines, which work where the things that they
	// name exist.
	examples []string

	// build adds the flags and the action: one of this package's builders, such as
	// show, or a method beside the table.
	build func(cmd *cobra.Command)

	// complete is a command that needs nothing but its examples; use, short, long
	// and build are empty then.
	complete *cobra.Command
}

// command makes the command that the verb describes.
func (v verb) command() *cobra.Command {
	cmd := v.complete
	if cmd == nil {
		cmd = &cobra.Command{Use: v.use, Short: v.short, Long: v.long, Args: takesArguments(argumentsOf(v.use))}
		v.build(cmd)
	}

	if len(v.examples) > 0 {
		cmd.Example = commandline.Examples(v.examples...)
	}

	return cmd
}

// noun makes the command that holds the verbs.
func noun(use, short string, verbs []verb, aliases ...string) *cobra.Command {
	cmd := commandline.Noun(use, short)
	cmd.Aliases = aliases
	for _, v := range verbs {
		cmd.AddCommand(v.command())
	}

	return cmd
}

// call is what one run of a verb works with.
type call struct {
	client *apiclient.Client
	args   []string

	// id is the UUID of the ACCELERATOR, DEVICE or OPERATION that the use line
	// demands.
	id uuid.UUID
}

// run gives a command its action, which uses the API: the command then
// connects, finds what the arguments name, and calls act. Mistakes in the flags
// are found earlier; see before.
func (s *shell) run(cmd *cobra.Command, act func(ctx context.Context, c call) error) {
	finders := map[string]func(context.Context, *apiclient.Client, string) (uuid.UUID, error){
		"ACCELERATOR": s.accelerator, "DEVICE": s.device, "OPERATION": s.operation,
	}

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		client, err := s.connect()
		if err != nil {
			return err
		}

		c := call{client: client, args: args}
		for i, argument := range argumentsOf(cmd.Use) {
			if find := finders[argument.name]; find != nil && !argument.optional {
				if c.id, err = find(ctx, client, args[i]); err != nil {
					return err
				}
			}
		}

		return act(ctx, c)
	}
}

// before adds a check of a command's flags, which precedes all that the command
// does: a mistake is reported even where the API does not answer.
func before(cmd *cobra.Command, check func() error) {
	earlier := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if earlier != nil {
			if err := earlier(cmd, args); err != nil {
				return err
			}
		}
		return check()
	}
}

// feeder returns the events that may change what a command shows, for --watch;
// nil means all events.
type feeder func(ctx context.Context, c call) (apiclient.EventFilter, error)

// thing is a kind of thing, and how verbs read and print one.
type thing[T any] struct {
	read func(ctx context.Context, c call) (T, error)
	feed feeder

	// lead names the members of its JSON that are printed first.
	lead []string
	// texts returns the texts that replace members of its JSON in a table; it may
	// be nil.
	texts func(T) map[string]string
}

// render prints one thing.
func (t thing[T]) render(p *printer, value T) error {
	var texts map[string]string
	if t.texts != nil {
		texts = t.texts(value)
	}
	return printShow(p, value, t.lead, texts)
}

// show reads a thing and prints its present state.
func (t thing[T]) show(ctx context.Context, p *printer, c call) error {
	value, err := t.read(ctx, c)
	if err != nil {
		return err
	}
	return t.render(p, value)
}

// show builds a verb that shows one thing, and with --watch again whenever it
// changes.
func show[T any](s *shell, of thing[T]) func(cmd *cobra.Command) {
	return func(cmd *cobra.Command) {
		p := s.printer(cmd)
		p.addWatch(cmd)
		s.run(cmd, func(ctx context.Context, c call) error {
			return p.show(ctx, c, of.feed, func(ctx context.Context) error { return of.show(ctx, p, c) })
		})
	}
}

// method is one of the client's methods that take the UUID of a thing.
type method[T any] func(client *apiclient.Client, ctx context.Context, id uuid.UUID, options ...apiclient.Option) (T, error)

// change builds a verb that changes one thing by a request, and shows what it
// is then.
func change[T any](s *shell, of thing[T], do method[T]) func(cmd *cobra.Command) {
	return func(cmd *cobra.Command) {
		p := s.printer(cmd)
		s.run(cmd, func(ctx context.Context, c call) error {
			changed, err := do(c.client, ctx, c.id)
			if err != nil {
				return err
			}
			return of.render(p, changed)
		})
	}
}

// work is a verb that starts an operation.
type work struct {
	// losses lists who loses what, for the user to agree to. It is nil for a verb
	// by which nobody ever loses anything, which has no --yes.
	losses func(ctx context.Context, c call) ([]string, error)

	// start sends the request.
	start func(ctx context.Context, c call) (apiclient.Answer, error)

	// failure says why the ended operation is not what the user wanted; nil means
	// failureOf.
	failure func(operation apiclient.Operation) error

	// done prints the outcome. The answer has the ended operation, or none where
	// the API answered that there was nothing left to do.
	done func(ctx context.Context, p *printer, c call, answer apiclient.Answer) error
}

// operate completes a verb that starts an operation: it asks for consent, sends
// the request, waits as the flags say, and prints the outcome.
func (s *shell) operate(cmd *cobra.Command, w work) {
	var wait waiting
	var agreed consent

	p := s.printer(cmd)
	wait.addFlags(cmd)
	if w.losses != nil {
		agreed.addFlags(cmd)
	}

	s.run(cmd, func(ctx context.Context, c call) error {
		// With --yes the losses need not be read at all.
		if w.losses != nil && !agreed.yes {
			losses, err := w.losses(ctx, c)
			if err != nil {
				return err
			}
			if err := s.agree(ctx, agreed, losses); err != nil {
				return err
			}
		}

		answer, err := w.start(ctx, c)
		if err != nil {
			return err
		}

		return s.finish(ctx, p, c, wait, answer, w)
	})
}
