package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/english"
)

// hostCommand is the noun `host`.
func (s *shell) hostCommand() *cobra.Command {
	return noun("host", "Machines with an agent", []verb{
		{use: listVerb, short: "List hosts", examples: []string{"cyborg host list --watch"}, build: s.hostList},
		{use: "show HOST", short: "Show one host", build: show(s, hosts())},
		{use: "services HOST", short: "List the acceleration services that a host's backends offer", build: s.hostServices},
		{complete: s.hostHistory(), examples: []string{"cyborg host history compute-1 --limit 100"}},

		{
			use: "whitelist HOST [ACCELERATOR...]", short: "Set which PCI devices of a host its Nova gives out by itself",
			long: "Has the host's agent write the [pci] device_spec of these accelerators into a drop-in file of nova.conf, in place of\n" +
				"what the file has; shows the difference, and asks first. Name each by UUID, name or PCI address, or name a device by\n" +
				"UUID for all that is on it. ,KEY=VALUE may follow: physical_network, resource_class, trait (repeatable), trusted,\n" +
				"remote_managed, managed and live_migratable, as in Nova's device_spec. Only inactive accelerators can be given to\n" +
				"Nova. Without an accelerator, it shows the current whitelist.",
			examples: []string{
				"cyborg host whitelist compute-1                                        # what it has",
				"cyborg host whitelist compute-1 0000:3b:00.0,physical_network=physnet1 --dry-run",
				"cyborg host whitelist compute-1 --none --yes",
			},
			build: s.hostWhitelist,
		},
		{
			use: "rescue HOST", short: "Have Nova reboot the instances that lost their accelerators when the host booted",
			long: "Has Nova hard-reboot the instances that may be without their accelerators since the host booted: those of\n" +
				"`drift list --class lost_at_boot`. An instance that does not run, or was started anew since, is left alone.",
			examples: []string{
				"cyborg drift list --host compute-1 --class lost_at_boot    # which instances it would reboot",
				"cyborg host rescue compute-1",
			},
			build: s.hostRescue,
		},
		{
			use: "enroll HOST", short: "Make a token with which a host's agent gets its certificate",
			long: "Makes a token that is good for one certificate of the host, within 15 minutes, in place of one that was made before.\n" +
				"Run cyborg-agent enroll on the host, with the server and the pin that are shown, and give it the token. The agent then\n" +
				"renews its certificate by itself. Nobody can see the token again.",
			examples: []string{"cyborg host enroll compute-7"},
			build:    s.hostEnroll,
		},
		{
			use: "revoke HOST", short: "Shut out a host whose certificate may be in wrong hands",
			long: "Makes all certificates count no more that the host has got until now, also those that you gave it as files, and ends its\n" +
				"invitation. Within 5 seconds, no server hears its agent any more, and it gets no steps. Enroll the host to let it in again.\n" +
				"A host that a standalone runs in its own process has no certificate, and cannot be revoked.",
			examples: []string{"cyborg host revoke compute-7 --reason stolen"},
			build:    s.hostRevoke,
		},
		{
			use: "forget HOST", short: "Forget a host that will not come back",
			long: "Forgets a silent host with its devices and accelerators. It is refused while the host reports, and while anything\n" +
				"there is held or being worked on. Its history stays. If it reports again, it is a new host.",
			build: s.hostForget,
		},
	}, "hosts")
}

// shownHost is a host with what else its table shows.
type shownHost struct {
	cyborg.Host
	accelerators []apiclient.Accelerator // for its NUMA nodes
}

// hosts is how verbs read and print a host.
func hosts() thing[shownHost] {
	return thing[shownHost]{
		read: func(ctx context.Context, c call) (shown shownHost, err error) {
			if shown.Host, err = c.client.Host(ctx, c.args[0]); err != nil {
				return shown, err
			}
			if shown.Facts != nil && len(shown.Facts.NUMANodes) > 0 {
				filter := apiclient.AcceleratorFilter{Hosts: []string{shown.Name}}
				shown.accelerators, err = apiclient.Collect(c.client.Accelerators(ctx, filter, apiclient.Page{}))
			}
			return shown, err
		},
		feed: ofHost,
		lead: []string{nameKey, "silent", "last_seen", revokedKey, "devices"},
		texts: func(host shownHost) map[string]string {
			texts := map[string]string{"backends": backendsText(host.Backends), "rivals": duplicateAgentsText(host.DuplicateAgents)}
			if host.Facts != nil {
				texts["facts"] = factsText(host.Facts, host.accelerators)
			}
			return texts
		},
	}
}

// revokedKey is the key of when a host was revoked.
const revokedKey = "revoked"

// ofHost is the feed of what belongs to the host that the first argument names.
func ofHost(_ context.Context, c call) (apiclient.EventFilter, error) {
	return apiclient.EventFilter{Host: c.args[0]}, nil
}

// hostColumns are the columns of `host list`.
func hostColumns() []column[cyborg.Host] {
	type h = cyborg.Host
	return []column[h]{
		{title: nameTitle, key: nameKey, id: true, value: func(x h) any { return x.Name }},
		{title: "State", key: "state", value: func(x h) any { return hostState(x) }},
		{title: "Last Seen", key: "last_seen", value: func(x h) any { return x.LastSeen }},
		{title: "Revoked", key: revokedKey, value: func(x h) any { return x.Revoked }, long: true},
		{title: "Devices", key: "devices", value: func(x h) any { return x.Devices }},
		{title: "Agent Version", key: "agent_version", value: func(x h) any { return x.AgentVersion }},
		{title: "Backends", key: "backends", value: func(x h) any { return x.Backends }, text: func(x h) string { return backendsText(x.Backends) }},
		{title: "Generation", key: "generation", value: func(x h) any { return x.Generation }, long: true},
		{title: "Clock Offset", key: "clock_offset", value: func(x h) any { return x.ClockOffset }, text: clockText, long: true},
		{title: "Boot ID", key: "boot_id", value: func(x h) any { return x.BootID }, long: true},
		{title: "Agent Address", key: "agent_address", value: func(x h) any { return x.Address }, long: true},
		{title: "Silent", key: "silent", value: func(x h) any { return x.Silent }, named: true},
	}
}

// hostState is the state of a host's agents.
func hostState(host cyborg.Host) string {
	switch {
	case !host.Revoked.IsZero() && host.Silent:
		return "revoked"
	case !host.Revoked.IsZero():
		return "revoked, alive"
	case host.Silent:
		return "silent"
	case len(host.DuplicateAgents) > 0:
		return "alive, two agents"
	}
	return "alive"
}

// duplicateAgentsText has a line for each duplicate agent.
func duplicateAgentsText(duplicates []cyborg.DuplicateAgent) string {
	lines := make([]string, len(duplicates))
	for i, d := range duplicates {
		lines[i] = fmt.Sprintf("%s, instance %s, boot %s, since %s", d.Address, d.Instance, d.BootID, timeText(d.Since))
	}
	return strings.Join(lines, "\n")
}

// clockText rounds an offset to milliseconds, which is precise enough for
// people.
func clockText(host cyborg.Host) string {
	if host.ClockOffset == nil {
		return ""
	}
	return clockOffset(host).Round(time.Millisecond).String()
}

// backendsText has a line for each backend, with its driver and its state where
// they are not the usual ones.
func backendsText(backends []cyborg.Backend) string {
	lines := make([]string, len(backends))
	for i, b := range backends {
		lines[i] = b.Name
		if b.Driver != b.Name {
			lines[i] += " (" + b.Driver + ")"
		}
		if b.State != cyborg.BackendOK {
			lines[i] += ": " + string(b.State) + note(b.Error)
		}
	}

	return strings.Join(lines, "\n")
}

// hostList is `host list`.
func (s *shell) hostList(cmd *cobra.Command) {
	list(s, cmd, listing[cyborg.Host]{
		columns: hostColumns(), pages: true,
		read: func(ctx context.Context, c call, page apiclient.Page) ([]cyborg.Host, error) {
			return apiclient.Collect(c.client.Hosts(ctx, page))
		},
	})
}

// hostForget is `host forget`.
func (s *shell) hostForget(cmd *cobra.Command) {
	var agreed consent
	agreed.addFlags(cmd)

	s.run(cmd, func(ctx context.Context, c call) error {
		host, err := c.client.Host(ctx, c.args[0])
		if err != nil {
			return err
		}

		if host.Silent { // the API rejects it otherwise, so there is nothing to ask
			loss := fmt.Sprintf("host %s goes with its %s and the names of their accelerators", host.Name, english.Count(host.Devices, "device"))
			if err := s.agree(ctx, agreed, []string{loss}); err != nil {
				return err
			}
		}

		return c.client.ForgetHost(ctx, host.Name)
	})
}

// hostEnroll is `host enroll`.
func (s *shell) hostEnroll(cmd *cobra.Command) {
	p := s.printer(cmd)
	s.run(cmd, func(ctx context.Context, c call) error {
		made, err := c.client.EnrollHost(ctx, c.args[0])
		if err != nil {
			return err
		}

		server := cmp.Or(made.Server, "https://SERVER:6667")
		out := object{
			{hostKey, made.Host},
			{"token", made.Token},
			{"expires_at", made.ExpiresAt},
			{"pin", made.Pin},
			{"command", fmt.Sprintf("cyborg-agent enroll --host %s --server %s --pin %s", made.Host, server, made.Pin)},
		}
		return printShow(p, out, []string{hostKey, "token", "expires_at", "pin", "command"}, nil)
	})
}

// hostRevoke is `host revoke`.
func (s *shell) hostRevoke(cmd *cobra.Command) {
	var agreed consent
	agreed.addFlags(cmd)
	reason := cmd.Flags().String("reason", "", "why, for the history")

	s.run(cmd, func(ctx context.Context, c call) error {
		loss := fmt.Sprintf("the agent of host %s is shut out until the host is enrolled again", c.args[0])
		if err := s.agree(ctx, agreed, []string{loss}); err != nil {
			return err
		}
		if err := c.client.RevokeHost(ctx, c.args[0], *reason); err != nil {
			return err
		}

		if !s.quiet {
			s.sayf("Host %s is revoked: within 5 seconds, what certificates it has count nowhere any more.", c.args[0])
		}
		return nil
	})
}

// hostRescue is `host rescue`.
func (s *shell) hostRescue(cmd *cobra.Command) {
	s.operate(cmd, work{
		losses: func(ctx context.Context, c call) (losses []string, err error) {
			filter := apiclient.DriftFilter{Hosts: c.args, Classes: []cyborg.DriftClass{cyborg.DriftLostAtBoot}, Open: true}
			for lost, err := range c.client.Drift(ctx, filter, apiclient.Page{}) {
				if err != nil {
					return nil, err
				}
				losses = append(losses, "instance "+lost.Instance.String()+" is rebooted hard, if it runs")
			}

			return losses, nil
		},
		start: func(ctx context.Context, c call) (apiclient.Answer, error) {
			return c.client.Rescue(ctx, c.args[0], apiclient.Async())
		},
		done: func(_ context.Context, p *printer, c call, answer apiclient.Answer) error {
			after := object{{hostKey, c.args[0]}, {"instances", []any{}}}
			if answer.Operation != nil {
				after[1].value = answer.Operation.Result["instances"]
			}
			return printShow(p, after, []string{hostKey, "instances"}, map[string]string{"instances": rescuedText(after[1].value)})
		},
	})
}

// rescuedText has a line for each instance in a rescue's result.
func rescuedText(result any) string {
	var rescued []cyborg.RescuedInstance
	if text, err := json.Marshal(result); err != nil || json.Unmarshal(text, &rescued) != nil {
		return ""
	}

	lines := make([]string, len(rescued))
	for i, r := range rescued {
		lines[i] = r.Instance.String() + ": " + string(r.Outcome) + note(r.Detail)
	}

	return strings.Join(lines, "\n")
}

// hostServices is `host services`.
func (s *shell) hostServices(cmd *cobra.Command) {
	list(s, cmd, listing[cyborg.Backend]{
		// The API returns no more than the short columns here, and the host is known.
		columns: slices.DeleteFunc(backendColumns()[1:], func(c column[cyborg.Backend]) bool { return c.long }),
		feed:    ofHost,
		read: func(ctx context.Context, c call, _ apiclient.Page) ([]cyborg.Backend, error) {
			return c.client.HostServices(ctx, c.args[0])
		},
	})
}

// discoverCommand is `discover`.
func (s *shell) discoverCommand() *cobra.Command {
	found := thing[apiclient.Discovery]{
		read: func(ctx context.Context, c call) (apiclient.Discovery, error) {
			return c.client.Discover(ctx, c.args[0])
		},
		lead: []string{hostKey, "devices", "errors"},
		texts: func(found apiclient.Discovery) map[string]string {
			var lines []string
			for _, backend := range slices.Sorted(maps.Keys(found.Devices)) {
				lines = append(lines, fmt.Sprintf("%s: %d", backend, found.Devices[backend]))
			}
			return map[string]string{"devices": strings.Join(lines, "\n")}
		},
	}

	return verb{
		use: "discover HOST", short: "Make a host scan its hardware now",
		examples: []string{"cyborg discover compute-1"},
		build: func(cmd *cobra.Command) {
			p := s.printer(cmd)
			s.run(cmd, func(ctx context.Context, c call) error { return found.show(ctx, p, c) })
		},
	}.command()
}

// serviceCommand is the noun `service`.
func (s *shell) serviceCommand() *cobra.Command {
	return noun("service", "The system's own processes", []verb{
		{use: listVerb, short: "List processes: agents, conductors, APIs", build: s.serviceList},
	}, "services")
}

// serviceList is `service list`.
func (s *shell) serviceList(cmd *cobra.Command) {
	type v = cyborg.Service
	list(s, cmd, listing[v]{
		columns: []column[v]{
			{title: "Role", key: "role", id: true, value: func(x v) any { return x.Role }},
			{title: hostTitle, key: hostKey, id: true, value: func(x v) any { return x.Host }},
			{title: "Instance", key: "instance", id: true, value: func(x v) any { return x.Instance }},
			{title: "State", key: "state", value: func(x v) any { return serviceState(x) }},
			{title: "Last Seen", key: "last_seen", value: func(x v) any { return x.LastSeen }},
			{title: "Version", key: "version", value: func(x v) any { return x.Version }},
			{title: "Started At", key: "started_at", value: func(x v) any { return x.StartedAt }},
			{title: "Alive", key: "alive", value: func(x v) any { return x.Alive }, named: true},
		},
		read: func(ctx context.Context, c call, page apiclient.Page) ([]v, error) {
			return apiclient.Collect(c.client.Services(ctx, page))
		},
	})
}

// serviceState is the state of a process; an agent that is not the host's own
// is refused.
func serviceState(service cyborg.Service) string {
	switch {
	case service.Refused:
		return "refused"
	case service.Alive:
		return "alive"
	}
	return "silent"
}
