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
	// completionLimit is how long a user who pressed Tab may be kept waiting.
	completionLimit = time.Second

	// maxOffers is how many names are read at most; nobody chooses from more.
	maxOffers = 1000

	// columnsOf is the annotation of a list with the keys of its columns.
	columnsOf = "cyborg_columns"
)

// source lists what can stand at a place of the command line: "word" or
// "word\tdescription". The args are those before the place.
type source func(ctx context.Context, cmd *cobra.Command, args []string) []string

// sources maps places to their sources. A place is the name of an argument in a
// command's use line, or of a flag with -- before it.
func (s *shell) sources() map[string]source {
	places := map[string]source{
		"ACCELERATOR": s.accelerators, "--accelerator": s.accelerators,
		"OPERATION": s.operations, "--operation": s.operations,
		"DEVICE": s.devices,
		"HOST":   s.hosts, "--host": s.hosts,
		"BACKEND": s.backends, "DRIVER": s.drivers, "--driver": s.drivers,
		"PROFILE": s.profileNames, "--profile": s.profileNames,
		"--status": fixedWords(cyborg.Statuses()), "--kind": fixedWords(cyborg.OperationKinds()),
		"--state": fixedWords([]cyborg.OperationState{
			cyborg.OperationAdmitted, cyborg.OperationRunning, cyborg.OperationSucceeded, cyborg.OperationFailed, cyborg.OperationNeedsOperator, cyborg.OperationCancelled,
		}),

		"--unset":  fixedWords([]string{"token", "token-file", "cacert", "cert", "key"}),
		"--column": columnKeys, "--sort": columnKeys, "--format": formats,

		// No file is meant, and nobody can guess.
		"--url": fixedWords([]string{}), "--reason": fixedWords([]string{}), "--name": fixedWords([]string{}), "--timeout": fixedWords([]string{}),
	}

	places["--device-type"], places["--type"] = s.deviceTypes, s.deviceTypes
	return places
}

// completes installs the completion of every argument and flag of the command
// and those below it.
func (s *shell) completes(root *cobra.Command) {
	sources := s.sources()
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		places := argumentsOf(cmd.Use)
		if !cmd.HasSubCommands() && cmd.ValidArgsFunction == nil {
			cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
				switch {
				case len(args) < len(places) && places[len(args)] == "IMAGE":
					return nil, cobra.ShellCompDirectiveDefault // an image may be a local path
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
			// It fails only for a flag that does not exist or has a completion already;
			// both were checked.
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

// argumentPattern matches an argument of a use line, such as HOST or
// [ACCELERATOR...].
var argumentPattern = regexp.MustCompile(`^\[?([A-Z]+)(\.\.\.)?\]?$`)

// argumentsOf returns the names of the arguments in a use line, without those
// of its flags.
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

// offer asks a source, for a short time. Errors are not shown: they would
// disturb the line that the user is typing.
func (s *shell) offer(cmd *cobra.Command, args []string, from source) ([]string, cobra.ShellCompDirective) {
	if from == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}

	// The shell is blocked until this returns.
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

// fixedWords is a source of words that never change.
func fixedWords[S ~string](list []S) source {
	return func(context.Context, *cobra.Command, []string) []string {
		texts := make([]string, len(list))
		for i, word := range list {
			texts[i] = string(word)
		}
		return texts
	}
}

// columnKeys offers the columns of a list.
func columnKeys(_ context.Context, cmd *cobra.Command, _ []string) []string {
	return strings.Split(cmd.Annotations[columnsOf], ",")
}

// formats offers the formats that the help of --format names, which differ
// between commands.
func formats(_ context.Context, cmd *cobra.Command, _ []string) []string {
	usage := cmd.Flag("format").Usage
	return strings.FieldsFunc(strings.ReplaceAll(usage, " or ", ","), func(r rune) bool { return r == ',' || r == ' ' })
}

// offersFrom converts the first items of a list to offers. Those that were read
// before a failure are kept.
func offersFrom[T any](items iter.Seq2[T, error], offer func(T) string) []string {
	var offers []string
	for item, err := range items {
		if err != nil || len(offers) == maxOffers {
			break
		}
		offers = append(offers, clean(offer(item)))
	}

	return offers
}

// accelerators offers the accelerators by name.
func (s *shell) accelerators(ctx context.Context, _ *cobra.Command, _ []string) []string {
	client, err := s.connect()
	if err != nil {
		return nil
	}
	return offersFrom(client.Accelerators(ctx, apiclient.AcceleratorFilter{}, apiclient.Page{Limit: maxOffers}), func(a apiclient.Accelerator) string {
		return fmt.Sprintf("%s\t%s, %s on %s", a.Name, a.Status, a.DeviceType, a.Host)
	})
}

// deviceTypes offers the types of the devices that exist.
func (s *shell) deviceTypes(ctx context.Context, _ *cobra.Command, _ []string) []string {
	client, err := s.connect()
	if err != nil {
		return nil
	}
	return offersFrom(client.Devices(ctx, apiclient.DeviceFilter{}, apiclient.Page{Limit: maxOffers}), func(d apiclient.Device) string { return string(d.Type) })
}

// devices offers the devices by UUID.
func (s *shell) devices(ctx context.Context, _ *cobra.Command, _ []string) []string {
	client, err := s.connect()
	if err != nil {
		return nil
	}
	return offersFrom(client.Devices(ctx, apiclient.DeviceFilter{}, apiclient.Page{Limit: maxOffers}), func(d apiclient.Device) string {
		return fmt.Sprintf("%s\t%s %s on %s", d.UUID, d.Type, d.Identity, d.Host)
	})
}

// operations offers the operations that the command can work on: open ones to
// watch or cancel, unsuccessful ones to retry.
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

	return offersFrom(client.Operations(ctx, filter, apiclient.Page{Limit: listedOperations}), func(o apiclient.Operation) string {
		return fmt.Sprintf("%s\t%s %s on %s", o.ID, o.Kind, o.State, o.Host)
	})
}

// hosts offers the hosts by name.
func (s *shell) hosts(ctx context.Context, _ *cobra.Command, _ []string) []string {
	client, err := s.connect()
	if err != nil {
		return nil
	}
	return offersFrom(client.Hosts(ctx, apiclient.Page{Limit: maxOffers}), func(h cyborg.Host) string { return h.Name })
}

// backends offers the backends of the host that was named before.
func (s *shell) backends(ctx context.Context, _ *cobra.Command, args []string) []string {
	return s.offerBackends(ctx, args, func(b cyborg.Backend) string { return fmt.Sprintf("%s\t%s, %s", b.Name, b.Driver, b.State) })
}

// drivers offers the drivers that run on any host. Only an agent knows which
// other drivers it has compiled in.
func (s *shell) drivers(ctx context.Context, _ *cobra.Command, _ []string) []string {
	return s.offerBackends(ctx, nil, func(b cyborg.Backend) string { return b.Driver })
}

// offerBackends makes an offer of each backend of the hosts, or of all hosts.
func (s *shell) offerBackends(ctx context.Context, hosts []string, offer func(cyborg.Backend) string) []string {
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

// profileNames offers the user's profiles.
func (s *shell) profileNames(context.Context, *cobra.Command, []string) []string {
	book, err := s.profiles()
	if err != nil {
		return nil
	}
	return book.Names()
}
