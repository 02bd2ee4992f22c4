package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/history"
)

// eventColumns are the columns of a history with --events.
func eventColumns() []column[cyborg.Event] {
	type e = cyborg.Event
	return []column[e]{
		{title: "Time", key: "time", value: func(x e) any { return x.Time }},
		{title: "Subject", key: "subject", value: func(x e) any { return x.Subject }, text: func(x e) string { return string(x.Subject.Kind) + " " + x.Subject.ID }},
		{title: "Change", key: "change", value: func(x e) any { return history.Change(x) }},
		{title: "Actor", key: "actor", value: func(x e) any { return x.Actor }},
		{title: "Operation", key: "operation_id", value: func(x e) any { return x.Operation }, text: func(x e) string { return idText(x.Operation) }},
		{title: hostTitle, key: hostKey, value: func(x e) any { return x.Host }, long: true},
		{title: "Request ID", key: "request_id", value: func(x e) any { return x.RequestID }, long: true},
		{title: "Cursor", key: "cursor", value: func(x e) any { return x.Cursor }, long: true},
	}
}

// eventsCommand is `cyborg events`.
func (s *shell) eventsCommand() *cobra.Command {
	return verb{
		use: "events", short: "Follow all changes, until Ctrl-C",
		long: "Prints a line for each change, from now on or from --after on, until Ctrl-C. It survives restarts of the API without\n" +
			"losing or repeating a change, and says so if the records have lost or deleted some meanwhile. With -f json, each line is\n" +
			"a JSON object.",
		examples: []string{
			"cyborg events --host compute-1",
			"cyborg events --after 0-0 -f json    # all that are kept, and on",
		},
		build: s.events,
	}.command()
}

// events is what `cyborg events` does.
func (s *shell) events(cmd *cobra.Command) {
	var host, accelerator, operation, after string
	p := &printer{shell: s, command: cmd}

	flags := cmd.Flags()
	flags.StringVarP(&p.format, "format", "f", formatTable, "table or json")
	flags.StringVar(&host, hostKey, "", "only on this host")
	flags.StringVar(&accelerator, "accelerator", "", "only of this accelerator")
	flags.StringVar(&operation, "operation", "", "only of this operation")
	flags.StringVar(&after, "after", "", "start after this cursor; 0-0 means the oldest change that is kept")

	before(cmd, func() error {
		if p.format != formatTable && p.format != formatJSON {
			return usageErrorf(cmd, "there is no format %q for events; there are table, json", p.format)
		}
		return nil
	})

	s.run(cmd, func(ctx context.Context, c call) (err error) {
		filter := apiclient.EventFilter{Host: host}
		if accelerator != "" {
			if filter.Accelerator, err = s.accelerator(ctx, c.client, accelerator); err != nil {
				return err
			}
		}
		if operation != "" {
			if filter.Operation, err = s.operation(ctx, c.client, operation); err != nil {
				return err
			}
		}

		// The caller must know if the cursor that they gave is gone, which it is where
		// we would go on before it. Later ones are ours, and we go on where the records
		// do.
		first, err := cyborg.ParseCursor(after)
		if err != nil {
			return err
		}

		for sent := ""; ; {
			err := p.follow(ctx, c, filter, &after)
			next := cyborg.AsError(err).After
			noFurther := after == sent && next.String() == sent
			if cyborg.ErrorKindOf(err) != cyborg.ErrGone || noFurther || next.Compare(first) < 0 {
				return err
			}

			sent, after = next.String(), next.String()
			s.sayf("Changes are missing here: %s. Going on after %s.", err, after)
		}
	})
}

// follow prints the events after a cursor, until an error, and moves the
// cursor to the last one.
func (p *printer) follow(ctx context.Context, c call, filter apiclient.EventFilter, after *string) error {
	reporter := &plain{shell: p.shell}
	for event, err := range c.client.Events(ctx, filter, *after, reporter.trouble) {
		if err != nil {
			return err
		}

		*after = event.Cursor.String()
		if err := p.event(event); err != nil {
			return err
		}
	}

	return nil
}

// event prints one event of the feed as a line.
func (p *printer) event(event cyborg.Event) error {
	if p.format == formatJSON {
		line, err := encode(event)
		if err != nil {
			return err
		}
		return p.write(string(line) + "\n")
	}

	line := fmt.Sprintf("%s %s %s %s", timeText(event.Time), event.Subject.Kind, event.Subject.ID, history.Change(event))
	if event.Actor != "" {
		line += " by " + event.Actor
	}

	return p.write(message(line) + "\n")
}
