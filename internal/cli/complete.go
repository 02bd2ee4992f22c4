package cli

import (
	"context"
	"fmt"
	"iter"
	"slices"
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
	accelerators, operations, hosts := s.asks(offeredAccelerators), s.asks(offeredOperations), s.asks(offeredHosts)
	drivers, types := s.asks(offeredDrivers), s.asks(offeredTypes)

	return map[string]source{
		"ACCELERATOR": accelerators, "--accelerator": accelerators,
		"OPERATION": operations, "--operation": operations,
		"DEVICE": s.asks(offeredDevices), "PART": s.asks(s.offeredParts),
		"HOST": hosts, "--host": hosts,
		"BACKEND": s.asks(offeredBackends), "DRIVER": drivers, "--driver": drivers,
		"--device-type": types, "--type": types,
		"PROFILE": s.profileNames, "--profile": s.profileNames,
		"--status": fixedWords(cyborg.Statuses()), "--kind": fixedWords(cyborg.OperationKinds()),
		"--state": fixedWords([]cyborg.OperationState{
			cyborg.OperationAdmitted, cyborg.OperationRunning, cyborg.OperationSucceeded, cyborg.OperationFailed, cyborg.OperationNeedsOperator, cyborg.OperationCancelled,
		}),

		"--method": fixedWords(cyborg.CleanMethods()),

		"--unset":  fixedWords([]string{"token", "token-file", "cacert", "cert", "key"}),
		"--column": columnKeys, "--sort": columnKeys, "--format": formats,

		// No file is meant, and nobody can guess.
		"--url": fixedWords([]string{}), "--reason": fixedWords([]string{}), "--name": fixedWords([]string{}), "--timeout": fixedWords([]string{}),
		"--declare": fixedWords([]string{}),
	}
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
				at := min(len(args), len(places)-1)
				switch {
				case at < 0, at < len(args) && !places[at].repeats:
					return nil, cobra.ShellCompDirectiveNoFileComp
				case places[at].name == "IMAGE":
					return nil, cobra.ShellCompDirectiveDefault // an image may be a local path
				}

				return s.offer(cmd, args, sources[places[at].name])
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

// asks is a source that asks the API; it offers nothing where there is no
// connection.
func (s *shell) asks(list func(ctx context.Context, client *apiclient.Client, cmd *cobra.Command, args []string) []string) source {
	return func(ctx context.Context, cmd *cobra.Command, args []string) []string {
		client, err := s.connect()
		if err != nil {
			return nil
		}
		return list(ctx, client, cmd, args)
	}
}

// offeredAccelerators offers the accelerators by name.
func offeredAccelerators(ctx context.Context, client *apiclient.Client, _ *cobra.Command, _ []string) []string {
	return offersFrom(client.Accelerators(ctx, apiclient.AcceleratorFilter{}, apiclient.Page{Limit: maxOffers}), func(a apiclient.Accelerator) string {
		return fmt.Sprintf("%s\t%s, %s on %s", a.Name, a.Status, a.DeviceType, a.Host)
	})
}

// offeredTypes offers the types of the devices that exist.
func offeredTypes(ctx context.Context, client *apiclient.Client, _ *cobra.Command, _ []string) []string {
	return offersFrom(client.Devices(ctx, apiclient.DeviceFilter{}, apiclient.Page{Limit: maxOffers}), func(d apiclient.Device) string { return string(d.Type) })
}

// offeredDevices offers the devices by UUID.
func offeredDevices(ctx context.Context, client *apiclient.Client, _ *cobra.Command, _ []string) []string {
	return offersFrom(client.Devices(ctx, apiclient.DeviceFilter{}, apiclient.Page{Limit: maxOffers}), func(d apiclient.Device) string {
		return fmt.Sprintf("%s\t%s %s on %s", d.UUID, d.Type, d.Identity, d.Host)
	})
}

// offeredParts offers, of each kind that is not named yet, as many parts as the device that
// was named before can have.
func (s *shell) offeredParts(ctx context.Context, client *apiclient.Client, _ *cobra.Command, args []string) []string {
	id, err := s.device(ctx, client, args[0])
	if err != nil {
		return nil
	}
	device, err := client.Device(ctx, id)
	if err != nil || device.Partitioning == nil {
		return nil
	}

	var offers []string
	for _, kind := range device.Partitioning.Parts {
		named := slices.ContainsFunc(args[1:], func(word string) bool { return strings.HasPrefix(word, kind.Name+"=") })
		if !named {
			offers = append(offers, clean(fmt.Sprintf("%s=%d\t%s", kind.Name, kind.Most, kindText(kind))))
		}
	}
	return offers
}

// offeredOperations offers the operations that the command can work on: open
// ones to watch or cancel, unsuccessful ones to retry.
func offeredOperations(ctx context.Context, client *apiclient.Client, cmd *cobra.Command, _ []string) []string {
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

// offeredHosts offers the hosts by name.
func offeredHosts(ctx context.Context, client *apiclient.Client, _ *cobra.Command, _ []string) []string {
	return offersFrom(client.Hosts(ctx, apiclient.Page{Limit: maxOffers}), func(h cyborg.Host) string { return h.Name })
}

// offeredBackends offers the backends of the host that was named before.
func offeredBackends(ctx context.Context, client *apiclient.Client, _ *cobra.Command, args []string) []string {
	return offersFrom(client.Drivers(ctx, args, apiclient.Page{}), func(b cyborg.Backend) string {
		return fmt.Sprintf("%s\t%s, %s", b.Name, b.Driver, b.State)
	})
}

// offeredDrivers offers the drivers that run on any host. Only an agent knows
// which other drivers it has compiled in.
func offeredDrivers(ctx context.Context, client *apiclient.Client, _ *cobra.Command, _ []string) []string {
	return offersFrom(client.Drivers(ctx, nil, apiclient.Page{}), func(b cyborg.Backend) string { return b.Driver })
}

// profileNames offers the user's profiles.
func (s *shell) profileNames(context.Context, *cobra.Command, []string) []string {
	book, err := s.profiles()
	if err != nil {
		return nil
	}
	return book.Names()
}
