package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/english"
)

// driverCommand is the noun `driver`.
func (s *shell) driverCommand() *cobra.Command {
	return noun("driver", "Drivers' backends on hosts: install, update, uninstall", []verb{
		{use: listVerb, short: "List drivers' backends", build: s.driverList},
		{use: "show HOST BACKEND", short: "Show one backend with its options", build: show(s, backends())},
		{
			use: "install HOST DRIVER", short: "Enable a driver on a host",
			long: "Enables a backend of a driver that is compiled into the host's agent. One driver can run as several backends, each\n" +
				"with its own name and options. Paths and secrets are no options of this command: set them on the host, in agent.backends.",
			examples: []string{"cyborg driver install compute-1 generic --name nvidia --option device_spec.vendor_id=10de"},
			build:    s.driverInstall,
		},
		{
			use: "update HOST BACKEND --option KEY=VALUE...", short: "Replace the options of a backend",
			long:     "Replaces all options of a backend by those of the command line.",
			examples: []string{"cyborg driver update compute-1 nvidia --option device_spec.vendor_id=10de"},
			build:    s.driverUpdate,
		},
		{use: "uninstall HOST BACKEND", short: "Disable a backend; refused while one of its devices is in use", build: s.driverUninstall},
	}, "drivers")
}

// backends is how verbs read and print a backend.
func backends() thing[cyborg.Backend] {
	return thing[cyborg.Backend]{
		read: func(ctx context.Context, c call) (cyborg.Backend, error) {
			return c.client.Driver(ctx, c.args[0], c.args[1])
		},
		feed: ofHost,
		lead: []string{hostKey, nameKey, "driver", "state", "error"},
	}
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
func (s *shell) driverList(cmd *cobra.Command) {
	var hosts []string
	cmd.Flags().StringSliceVar(&hosts, hostKey, nil, "only on this host; repeatable")

	list(s, cmd, listing[cyborg.Backend]{
		columns: backendColumns(), feed: onlyHost(&hosts),
		read: func(ctx context.Context, c call, page apiclient.Page) ([]cyborg.Backend, error) {
			return apiclient.Collect(c.client.Drivers(ctx, hosts, page))
		},
	})
}

// backendAfter prints a backend after an operation on it. The records change
// only with the host's next report; the operation's result is what its agent
// saw.
func backendAfter(_ context.Context, p *printer, c call, answer apiclient.Answer) error {
	after := withResult(object{{hostKey, c.args[0]}, {nameKey, c.args[1]}}, answer)
	return printShow(p, after, []string{hostKey, nameKey, "state", "error"}, nil)
}

// withResult appends the result of an operation, if there was one, to an
// object.
func withResult(after object, answer apiclient.Answer) object {
	if answer.Operation == nil {
		return after
	}
	for _, key := range slices.Sorted(maps.Keys(answer.Operation.Result)) {
		after = append(after, member{key, answer.Operation.Result[key]})
	}

	return after
}

// addOptions adds --option; the returned tree is filled before the command
// runs.
func addOptions(cmd *cobra.Command) *cyborg.JSONObject {
	var settings []string
	var options cyborg.JSONObject
	cmd.Flags().StringArrayVar(&settings, "option", nil, "KEY=VALUE of the driver's options; repeatable")
	before(cmd, func() (err error) {
		options, err = parseTree(cmd, "option", settings)
		return err
	})

	return &options
}

// driverInstall is `driver install`.
func (s *shell) driverInstall(cmd *cobra.Command) {
	var name string
	cmd.Flags().StringVar(&name, nameKey, "", "name of the backend (default: the driver's)")
	options := addOptions(cmd)

	s.operate(cmd, work{
		start: func(ctx context.Context, c call) (apiclient.Answer, error) {
			return c.client.InstallDriver(ctx, c.args[0], cmp.Or(name, c.args[1]), c.args[1], *options, apiclient.Async())
		},
		done: func(ctx context.Context, p *printer, c call, answer apiclient.Answer) error {
			c.args = []string{c.args[0], cmp.Or(name, c.args[1])}
			return backendAfter(ctx, p, c, answer)
		},
	})
}

// driverUpdate is `driver update`.
func (s *shell) driverUpdate(cmd *cobra.Command) {
	var none bool
	options := addOptions(cmd)
	cmd.Flags().BoolVar(&none, "no-options", false, "run it with the driver's defaults")
	cmd.MarkFlagsMutuallyExclusive("option", "no-options")
	cmd.MarkFlagsOneRequired("option", "no-options")

	s.operate(cmd, work{
		start: func(ctx context.Context, c call) (apiclient.Answer, error) {
			return c.client.UpdateDriver(ctx, c.args[0], c.args[1], *options, apiclient.Async())
		},
		done: backendAfter,
	})
}

// driverUninstall is `driver uninstall`.
func (s *shell) driverUninstall(cmd *cobra.Command) {
	s.operate(cmd, work{
		losses: func(ctx context.Context, c call) ([]string, error) {
			managed, err := apiclient.Collect(c.client.Accelerators(ctx,
				apiclient.AcceleratorFilter{Hosts: c.args[:1], Backends: c.args[1:]}, apiclient.Page{}))
			return unmanaged(c.args[0], managed), err
		},
		start: func(ctx context.Context, c call) (apiclient.Answer, error) {
			return c.client.UninstallDriver(ctx, c.args[0], c.args[1], apiclient.Async())
		},
		done: backendAfter,
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

	return []string{fmt.Sprintf("host %s loses %s: %s", host, english.Count(len(names), "accelerator"), english.Some(names))}
}
