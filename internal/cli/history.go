package cli

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/history"
)

// past is the source of one history.
type past struct {
	events func(page apiclient.Page) iter.Seq2[cyborg.Event, error]

	// subject is what the history is about, and is called "it".
	subject cyborg.Subject

	// host has the accelerators that the sentences may name besides the subject; it
	// is empty where there are none.
	host string
}

// history completes a command that describes in sentences what happened to the
// thing that its argument names. Formats for programs get the events
// themselves.
func (s *shell) history(cmd *cobra.Command, find func(ctx context.Context, client *apiclient.Client, name string) (past, error)) *cobra.Command {
	var page pageFlags
	var raw bool

	p := s.printer(cmd)
	page.addFlags(cmd, 0)
	cmd.Flags().BoolVar(&raw, "events", false, "print the events themselves, one in each row, as the formats for programs do")
	cmd.Long = cmd.Short + ", in sentences: who did what, when and why,\n" +
		"and what came of it. All changes that one operation made are one sentence. --limit and --marker count events."

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		client, err := s.connect()
		if err != nil {
			return err
		}

		about, err := find(ctx, client, args[0])
		if err != nil {
			return err
		}

		events, err := apiclient.Collect(about.events(page.page()))
		if err != nil {
			return err
		}

		if raw || p.format != formatTable || len(p.columns) > 0 {
			return printList(p, events, eventColumns(), false)
		}

		n := history.Narrator{Subject: about.subject, Names: map[string]string{}}
		if n.Operations, err = operationsOf(ctx, client, events); err != nil {
			return err
		}

		// The sentences name accelerators, and the events have only their UUIDs.
		if about.host != "" {
			for a, err := range client.Accelerators(ctx, apiclient.AcceleratorFilter{Hosts: []string{about.host}}, apiclient.Page{}) {
				if err != nil {
					return err
				}
				n.Names[a.UUID.String()] = a.Name
			}
		}

		return p.sentences(n.Sentences(events))
	}

	return cmd
}

// operationsOf reads the operations that the events belong to, by id. An
// operation that the API no longer keeps is left out.
func operationsOf(ctx context.Context, client *apiclient.Client, events []cyborg.Event) (map[uuid.UUID]cyborg.Operation, error) {
	var ids []uuid.UUID
	known := map[uuid.UUID]cyborg.Operation{}
	for _, event := range events {
		if _, ok := known[event.Operation]; !ok && event.Operation != uuid.Nil {
			// The empty operation marks an id that is in ids already.
			known[event.Operation] = cyborg.Operation{}
			ids = append(ids, event.Operation)
		}
	}

	clear(known)
	for some := range slices.Chunk(ids, 100) { // more ids would make the URL too long
		for operation, err := range client.Operations(ctx, apiclient.OperationFilter{IDs: some}, apiclient.Page{Limit: len(some)}) {
			if err != nil {
				return nil, err
			}
			known[operation.ID] = operation.Operation
		}
	}

	return known, nil
}

// sentences prints one sentence after the other, each with its time before it,
// wrapped to the terminal.
func (p *printer) sentences(all []history.Sentence) error {
	const stamp = "2006-01-02 15:04:05"
	indent := strings.Repeat(" ", len(stamp)+2)

	var out strings.Builder
	for _, one := range all {
		wrapped := clean(one.Text)
		if width := p.shell.outWidth(); width > len(indent)+20 {
			wrapped = text.WrapSoft(wrapped, width-len(indent)-1)
		}

		lines := strings.Split(strings.TrimRight(wrapped, " \n"), "\n")
		for i := range lines {
			lines[i] = strings.TrimRight(lines[i], " ")
		}

		out.WriteString(one.At.UTC().Format(stamp) + "  " + strings.Join(lines, "\n"+indent) + "\n")
	}

	return p.write(out.String())
}

// acceleratorHistory is `accelerator history`.
func (s *shell) acceleratorHistory() *cobra.Command {
	cmd := &cobra.Command{Use: "history ACCELERATOR", Short: "What happened to an accelerator, oldest first", Args: takes("ACCELERATOR")}
	return s.history(cmd, func(ctx context.Context, client *apiclient.Client, name string) (past, error) {
		id, err := s.accelerator(ctx, client, name)
		return past{
			subject: cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: id.String()},
			events:  func(page apiclient.Page) iter.Seq2[cyborg.Event, error] { return client.History(ctx, id, page) },
		}, err
	})
}

// deviceHistory is `device history`.
func (s *shell) deviceHistory() *cobra.Command {
	cmd := &cobra.Command{Use: "history DEVICE", Short: "What happened to a device and its accelerators, oldest first", Args: takes("DEVICE")}
	return s.history(cmd, func(ctx context.Context, client *apiclient.Client, name string) (past, error) {
		id, err := s.device(ctx, client, name)
		if err != nil {
			return past{}, err
		}

		device, err := client.Device(ctx, id)
		if err != nil && cyborg.ErrorKindOf(err) != cyborg.ErrNotFound { // a history outlives its device
			return past{}, err
		}

		return past{
			subject: cyborg.Subject{Kind: cyborg.SubjectDevice, ID: id.String()}, host: device.Host,
			events: func(page apiclient.Page) iter.Seq2[cyborg.Event, error] { return client.DeviceHistory(ctx, id, page) },
		}, nil
	})
}

// hostHistory is `host history`.
func (s *shell) hostHistory() *cobra.Command {
	cmd := &cobra.Command{Use: "history HOST", Short: "What happened on a host, oldest first", Args: takes("HOST")}
	return s.history(cmd, func(ctx context.Context, client *apiclient.Client, name string) (past, error) {
		return past{
			subject: cyborg.Subject{Kind: cyborg.SubjectHost, ID: name}, host: name,
			events: func(page apiclient.Page) iter.Seq2[cyborg.Event, error] { return client.HostHistory(ctx, name, page) },
		}, nil
	})
}

// operationHistory is `operation history`.
func (s *shell) operationHistory() *cobra.Command {
	cmd := &cobra.Command{Use: "history OPERATION", Short: "What an operation changed, oldest first", Args: takes("OPERATION")}
	return s.history(cmd, func(ctx context.Context, client *apiclient.Client, name string) (past, error) {
		id, err := s.operation(ctx, client, name)
		if err != nil {
			return past{}, err
		}

		operation, err := client.Operation(ctx, id)
		return past{
			subject: cyborg.Subject{Kind: cyborg.SubjectOperation, ID: id.String()}, host: operation.Host,
			events: func(page apiclient.Page) iter.Seq2[cyborg.Event, error] {
				return client.OperationHistory(ctx, id, page)
			},
		}, err
	})
}
