package cli

import (
	"context"
	"fmt"
	"iter"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

const (
	// completionLimit is how long somebody who pressed Tab may be kept waiting.
	completionLimit = time.Second
	// offered is the most names that are read; nobody chooses from more.
	offered = 1000
	// columnsOf annotates a list with the keys of its columns.
	columnsOf = "cyborg_columns"
)

// source lists what can stand somewhere: "word" or "word\tdescription". Args are those before it.
type source func(ctx context.Context, cmd *cobra.Command, args []string) []string

// sources are the places by their names: of an argument in a command's use line, or of a flag with -- before it.
func (s *shell) sources() map[string]source {
	places := map[string]source{
		"ACCELERATOR": s.accelerators, "--accelerator": s.accelerators,
		"OPERATION": s.operations, "--operation": s.operations,
		"DEVICE": s.devices,
		"HOST":   s.hosts, "--host": s.hosts,
		"BACKEND": s.backends, "DRIVER": s.drivers, "--driver": s.drivers,
		"PROFILE": s.profileNames, "--profile": s.profileNames,
		"--status": words(cyborg.Statuses()), "--kind": words(cyborg.OperationKinds()),
		"--state": words([]cyborg.OperationState{
			cyborg.OperationAdmitted, cyborg.OperationRunning, cyborg.OperationSucceeded, cyborg.OperationFailed, cyborg.OperationNeedsOperator, cyborg.OperationCancelled,
		}),
		"--unset":  words([]string{"token", "token-file", "cacert", "cert", "key"}),
		"--column": columnKeys, "--sort": columnKeys, "--format": formats,
		// No file is meant, and nobody can guess.
		"--url": words([]string{}), "--reason": words([]string{}), "--name": words([]string{}), "--timeout": words([]string{}),
	}
	places["--device-type"], places["--type"] = s.deviceTypes, s.deviceTypes
	return places
}

// completes gives each argument and flag below the command what can stand there.
func (s *shell) completes(root *cobra.Command) {
	sources := s.sources()
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		places := argumentsOf(cmd.Use)
		if !cmd.HasSubCommands() && cmd.ValidArgsFunction == nil {
			cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
				switch {
				case len(args) < len(places) && places[len(args)] == "IMAGE":
					return nil, cobra.ShellCompDirectiveDefault // a file, perhaps
				case len(args) < len(places):
					return s.offer(cmd, args, sources[places[len(args)]])
				case len(places) > 0 && strings.HasSuffix(cmd.Use, "...]"):
					return s.offer(cmd, args, sources[places[len(places)-1]])
				}
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			from, ok := sources["--"+f.Name]
			if _, registered := cmd.GetFlagCompletionFunc(f.Name); !ok || registered {
				return
			}
			// It fails for a flag that does not exist or is registered already: neither is so.
			_ = cmd.RegisterFlagCompletionFunc(f.Name, func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
				return s.offer(cmd, args, from)
			})
		})
		for _, below := range cmd.Commands() {
			walk(below)
		}
	}
	walk(root)
}

var argumentPattern = regexp.MustCompile(`^\[?([A-Z]+)(\.\.\.)?\]?$`)

// argumentsOf are the names of the arguments in a use line; what flags take does not count.
func argumentsOf(use string) []string {
	var names []string
	for _, word := range strings.Fields(use)[1:] {
		if strings.HasPrefix(strings.TrimPrefix(word, "["), "-") {
			break
		}
		if found := argumentPattern.FindStringSubmatch(word); found != nil {
			names = append(names, found[1])
		}
	}
	return names
}

// offer asks a source, for a moment only. Who presses Tab is not told of failures.
func (s *shell) offer(cmd *cobra.Command, args []string, from source) ([]string, cobra.ShellCompDirective) {
	if from == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
	defer cancel()
	offers, seen := []string{}, map[string]bool{}
	for _, one := range from(ctx, cmd, args) {
		if !seen[one] {
			seen[one] = true
			offers = append(offers, one)
		}
	}
	return offers, cobra.ShellCompDirectiveNoFileComp
}

func words[S ~string](list []S) source {
	return func(context.Context, *cobra.Command, []string) []string {
		texts := make([]string, len(list))
		for i, word := range list {
			texts[i] = string(word)
		}
		return texts
	}
}

func columnKeys(_ context.Context, cmd *cobra.Command, _ []string) []string {
	return strings.Split(cmd.Annotations[columnsOf], ",")
}

// formats are those that the flag's own help names.
func formats(_ context.Context, cmd *cobra.Command, _ []string) []string {
	usage := cmd.Flag("format").Usage
	return strings.FieldsFunc(strings.ReplaceAll(usage, " or ", ","), func(r rune) bool { return r == ',' || r == ' ' })
}

// take makes offers of the first items of a list. What was read before a failure is offered.
func take[T any](items iter.Seq2[T, error], offer func(T) string) []string {
	var offers []string
	for item, err := range items {
		if err != nil || len(offers) == offered {
			break
		}
		offers = append(offers, clean(offer(item)))
	}
	return offers
}

func (s *shell) accelerators(ctx context.Context, _ *cobra.Command, _ []string) []string {
	client, err := s.connect()
	if err != nil {
		return nil
	}
	return take(client.Accelerators(ctx, apiclient.AcceleratorFilter{}, apiclient.Page{Limit: offered}), func(a apiclient.Accelerator) string {
		return fmt.Sprintf("%s\t%s, %s on %s", a.Name, a.Status, a.DeviceType, a.Host)
	})
}

// deviceTypes are those that there are.
func (s *shell) deviceTypes(ctx context.Context, _ *cobra.Command, _ []string) []string {
	client, err := s.connect()
	if err != nil {
		return nil
	}
	return take(client.Devices(ctx, apiclient.DeviceFilter{}, apiclient.Page{Limit: offered}), func(d apiclient.Device) string { return string(d.Type) })
}

func (s *shell) devices(ctx context.Context, _ *cobra.Command, _ []string) []string {
	client, err := s.connect()
	if err != nil {
		return nil
	}
	return take(client.Devices(ctx, apiclient.DeviceFilter{}, apiclient.Page{Limit: offered}), func(d apiclient.Device) string {
		return fmt.Sprintf("%s\t%s %s on %s", d.UUID, d.Type, d.Identity, d.Host)
	})
}

// operations are those that somebody may watch or cancel, or, where failed ones are meant, do again.
func (s *shell) operations(ctx context.Context, cmd *cobra.Command, _ []string) []string {
	client, err := s.connect()
	if err != nil {
		return nil
	}
	filter, open := apiclient.OperationFilter{}, true
	switch cmd.Name() {
	case "watch", "cancel":
		filter.Open = &open
	case "retry":
		filter.States = []cyborg.OperationState{cyborg.OperationFailed, cyborg.OperationCancelled, cyborg.OperationNeedsOperator}
	}
	return take(client.Operations(ctx, filter, apiclient.Page{Limit: listedOperations}), func(o apiclient.Operation) string {
		return fmt.Sprintf("%s\t%s %s on %s", o.ID, o.Kind, o.State, o.Host)
	})
}

func (s *shell) hosts(ctx context.Context, _ *cobra.Command, _ []string) []string {
	client, err := s.connect()
	if err != nil {
		return nil
	}
	return take(client.Hosts(ctx, apiclient.Page{Limit: offered}), func(h cyborg.Host) string { return h.Name })
}

// backends are those of the host that was named before.
func (s *shell) backends(ctx context.Context, _ *cobra.Command, args []string) []string {
	return s.ofBackends(ctx, args, func(b cyborg.Backend) string { return fmt.Sprintf("%s\t%s, %s", b.Name, b.Driver, b.State) })
}

// drivers are those that run anywhere; which else a host has compiled in, only its agent knows.
func (s *shell) drivers(ctx context.Context, _ *cobra.Command, _ []string) []string {
	return s.ofBackends(ctx, nil, func(b cyborg.Backend) string { return b.Driver })
}

func (s *shell) ofBackends(ctx context.Context, hosts []string, offer func(cyborg.Backend) string) []string {
	client, err := s.connect()
	if err != nil {
		return nil
	}
	backends, err := apiclient.Collect(client.Drivers(ctx, hosts, apiclient.Page{}))
	if err != nil {
		return nil
	}
	offers := make([]string, len(backends))
	for i, backend := range backends {
		offers[i] = offer(backend)
	}
	return offers
}

func (s *shell) profileNames(context.Context, *cobra.Command, []string) []string {
	book, err := s.profiles()
	if err != nil {
		return nil
	}
	return book.Names()
}
