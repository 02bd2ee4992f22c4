package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/commandline"
)

// driverCommand is the noun `driver` with its verbs.
func (s *shell) driverCommand() *cobra.Command {
	cmd := commandline.Noun("driver", "Drivers' backends on hosts: install, update, uninstall",
		s.driverList(), s.driverShow(), s.driverInstall(), s.driverUpdate(), s.driverUninstall())
	cmd.Aliases = []string{"drivers"}
	return cmd
}

// backendColumns are the columns of `driver list`.
func backendColumns() []column[cyborg.Backend] {
	type b = cyborg.Backend
	return []column[b]{
		{title: hostTitle, key: hostKey, id: true, value: func(x b) any { return x.Host }},
		{title: nameTitle, key: nameKey, id: true, value: func(x b) any { return x.Name }},
		{title: "Driver", key: "driver", value: func(x b) any { return x.Driver }},
		{title: "State", key: "state", value: func(x b) any { return x.State }},
		{title: "Services", key: "services", value: func(x b) any { return x.Services }, text: func(x b) string { return strings.Join(x.Services, ", ") }},
		{title: "Error", key: "error", value: func(x b) any { return x.Error }},
		{title: "Options", key: "options", value: func(x b) any { return x.Options }, long: true},
	}
}

// driverList is `driver list`.
func (s *shell) driverList() *cobra.Command {
	var hosts []string
	cmd := &cobra.Command{Use: listVerb, Short: "List drivers' backends", Args: takes()}

	cmd.Flags().StringSliceVar(&hosts, hostKey, nil, "only on this host; repeatable")
	return list(s, cmd, listing[cyborg.Backend]{
		columns: backendColumns(),
		feed:    func() apiclient.EventFilter { return onlyHost(hosts) },
		read: func(ctx context.Context, client *apiclient.Client, page apiclient.Page) ([]cyborg.Backend, error) {
			return apiclient.Collect(client.Drivers(ctx, hosts, page))
		},
	})
}

// driverShow is `driver show`.
func (s *shell) driverShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show HOST BACKEND", Short: "Show one backend with its options", Args: takes("HOST", "BACKEND")}
	p := s.printer(cmd)
	p.addWatch(cmd)

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, err := s.connect()
		if err != nil {
			return err
		}

		return p.show(cmd.Context(), client, apiclient.EventFilter{Host: args[0]}, func(ctx context.Context) error {
			backend, err := client.Driver(ctx, args[0], args[1])
			if err != nil {
				return err
			}
			return printShow(p, backend, []string{hostKey, nameKey, "driver", "state", "error"}, nil)
		})
	}

	return cmd
}

// configure completes a command that changes a backend and then prints its new
// state.
func (s *shell) configure(cmd *cobra.Command, backend func(args []string) string,
	start func(ctx context.Context, client *apiclient.Client, args []string) (apiclient.Answer, error),
) *cobra.Command {
	var wait waiting

	p := s.printer(cmd)
	wait.addFlags(cmd)

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		client, err := s.connect()
		if err != nil {
			return err
		}

		answer, err := start(ctx, client, args)
		if err != nil {
			return err
		}

		return s.finish(ctx, p, wait, answer, func(operation *apiclient.Operation) error {
			// The records change only with the host's next report; the operation's result
			// is what its agent saw.
			after := object{{hostKey, args[0]}, {nameKey, backend(args)}}
			if operation != nil {
				for _, key := range slices.Sorted(maps.Keys(operation.Result)) {
					after = append(after, member{key, operation.Result[key]})
				}
			}

			return printShow(p, after, []string{hostKey, nameKey, "state", "error"}, nil)
		})
	}
	return cmd
}

// driverInstall is `driver install`.
func (s *shell) driverInstall() *cobra.Command {
	var name string
	var settings []string
	cmd := &cobra.Command{
		Use:   "install HOST DRIVER",
		Short: "Enable a driver on a host",
		Long:  "Enables a backend of a driver that the host's agent has compiled in. One driver may run as several backends, each\nwith a name and options of its own.",
		Args:  takes("HOST", "DRIVER"),
	}

	cmd.Flags().StringVar(&name, nameKey, "", "the backend's name; the driver's where empty")
	cmd.Flags().StringArrayVar(&settings, "option", nil, "KEY=VALUE of the driver's options; repeatable")

	backend := func(args []string) string {
		if name != "" {
			return name
		}
		return args[1]
	}

	return s.configure(cmd, backend, func(ctx context.Context, client *apiclient.Client, args []string) (apiclient.Answer, error) {
		options, err := parseTree(cmd, "option", settings)
		if err != nil {
			return apiclient.Answer{}, err
		}

		return client.InstallDriver(ctx, args[0], backend(args), args[1], options, apiclient.Async())
	})
}

// driverUpdate is `driver update`.
func (s *shell) driverUpdate() *cobra.Command {
	var settings []string
	var none bool
	cmd := &cobra.Command{
		Use:   "update HOST BACKEND --option KEY=VALUE...",
		Short: "Give a backend new options",
		Long:  "Gives a backend the options of the command line in place of all that it has.",
		Args:  takes("HOST", "BACKEND"),
	}

	cmd.Flags().StringArrayVar(&settings, "option", nil, "KEY=VALUE of the driver's options; repeatable")
	cmd.Flags().BoolVar(&none, "no-options", false, "run it with the driver's defaults")
	cmd.MarkFlagsMutuallyExclusive("option", "no-options")
	cmd.MarkFlagsOneRequired("option", "no-options")

	return s.configure(cmd, second, func(ctx context.Context, client *apiclient.Client, args []string) (apiclient.Answer, error) {
		options, err := parseTree(cmd, "option", settings)
		if err != nil {
			return apiclient.Answer{}, err
		}

		return client.UpdateDriver(ctx, args[0], args[1], options, apiclient.Async())
	})
}

// driverUninstall is `driver uninstall`.
func (s *shell) driverUninstall() *cobra.Command {
	var agreed consent
	cmd := &cobra.Command{
		Use:   "uninstall HOST BACKEND",
		Short: "Disable a backend; refused while one of its devices is in use",
		Args:  takes("HOST", "BACKEND"),
	}

	agreed.addFlags(cmd)
	return s.configure(cmd, second, func(ctx context.Context, client *apiclient.Client, args []string) (apiclient.Answer, error) {
		if !agreed.yes {
			managed, err := apiclient.Collect(client.Accelerators(ctx,
				apiclient.AcceleratorFilter{Hosts: args[:1], Backends: args[1:]}, apiclient.Page{}))
			if err != nil {
				return apiclient.Answer{}, err
			}
			if err := s.agree(ctx, agreed, unmanaged(args[0], managed)); err != nil {
				return apiclient.Answer{}, err
			}
		}

		return client.UninstallDriver(ctx, args[0], args[1], apiclient.Async())
	})
}

// unmanaged describes which accelerators a host loses with their backend.
func unmanaged(host string, accelerators []apiclient.Accelerator) []string {
	var names []string
	for _, a := range accelerators {
		if a.Presence == cyborg.PresencePresent {
			names = append(names, a.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}

	return []string{fmt.Sprintf("host %s loses %s: %s", host, count(len(names), "accelerator"), some(names))}
}
