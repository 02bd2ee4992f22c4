package cli

import (
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
	"github.com/cyborg-project/cyborg/internal/commandline"
)

// hostCommand is the noun `host` with its verbs.
func (s *shell) hostCommand() *cobra.Command {
	cmd := commandline.Noun("host", "Machines with an agent", s.hostList(), s.hostShow(), s.hostServices(), s.hostHistory(), s.hostWhitelist(), s.hostRescue(), s.hostForget())
	cmd.Aliases = []string{"hosts"}
	return cmd
}

// hostColumns are the columns of `host list`.
func hostColumns() []column[cyborg.Host] {
	type h = cyborg.Host
	return []column[h]{
		{title: nameTitle, key: nameKey, id: true, value: func(x h) any { return x.Name }},
		{title: "State", key: "silent", value: func(x h) any { return x.Silent }, text: hostState},
		{title: "Last Seen", key: "last_seen", value: func(x h) any { return x.LastSeen }},
		{title: "Devices", key: "devices", value: func(x h) any { return x.Devices }},
		{title: "Agent Version", key: "agent_version", value: func(x h) any { return x.AgentVersion }},
		{title: "Backends", key: "backends", value: func(x h) any { return x.Backends }, text: func(x h) string { return backendsText(x.Backends) }},
		{title: "Generation", key: "generation", value: func(x h) any { return x.Generation }, long: true},
		{title: "Clock Offset", key: "clock_offset", value: func(x h) any { return x.ClockOffset }, text: clockText, long: true},
		{title: "Boot ID", key: "boot_id", value: func(x h) any { return x.BootID }, long: true},
		{title: "Agent Address", key: "agent_address", value: func(x h) any { return x.Address }, long: true},
	}
}

// hostState is the state of a host's agents.
func hostState(host cyborg.Host) string {
	switch {
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
func (s *shell) hostList() *cobra.Command {
	cmd := &cobra.Command{Use: listVerb, Short: "List hosts", Args: takes()}
	return list(s, cmd, listing[cyborg.Host]{
		columns: hostColumns(), pages: true,
		read: func(ctx context.Context, client *apiclient.Client, page apiclient.Page) ([]cyborg.Host, error) {
			return apiclient.Collect(client.Hosts(ctx, page))
		},
	})
}

// hostShow is `host show`.
func (s *shell) hostShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show HOST", Short: "Show one host", Args: takes("HOST")}
	p := s.printer(cmd)
	p.addWatch(cmd)

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, err := s.connect()
		if err != nil {
			return err
		}

		return p.show(cmd.Context(), client, apiclient.EventFilter{Host: args[0]}, func(ctx context.Context) error {
			host, err := client.Host(ctx, args[0])
			if err != nil {
				return err
			}
			return printShow(p, host, []string{nameKey, "silent", "last_seen", "devices"}, map[string]string{
				"backends": backendsText(host.Backends), "rivals": duplicateAgentsText(host.DuplicateAgents),
			})
		})
	}

	return cmd
}

// hostForget is `host forget`.
func (s *shell) hostForget() *cobra.Command {
	var agreed consent
	cmd := &cobra.Command{
		Use:   "forget HOST",
		Short: "Forget a host that will not come back",
		Long: "Forgets a silent host with its devices and accelerators. It is refused while the host is heard, and while anything\n" +
			"there is held or being worked on. Its history stays, and if it reports again it is a new host.",
		Args: takes("HOST"),
	}

	agreed.addFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		client, err := s.connect()
		if err != nil {
			return err
		}

		host, err := client.Host(ctx, args[0])
		if err != nil {
			return err
		}

		if host.Silent { // the API rejects it otherwise, so there is nothing to ask
			loss := fmt.Sprintf("host %s goes with its %s and the names of their accelerators", host.Name, count(host.Devices, "device"))
			if err := s.agree(ctx, agreed, []string{loss}); err != nil {
				return err
			}
		}

		return client.ForgetHost(ctx, host.Name)
	}

	return cmd
}

// hostRescue is `host rescue`.
func (s *shell) hostRescue() *cobra.Command {
	var (
		agreed consent
		wait   waiting
	)
	cmd := &cobra.Command{
		Use:   "rescue HOST",
		Short: "Have Nova reboot the instances that a boot of the host cost their accelerators",
		Long: "Has Nova reboot, hard, the instances that may be without their accelerators since the host booted: those of\n" +
			"`drift list --class lost_at_boot`. One that does not run, or that somebody had made anew since, is left alone.",
		Args: takes("HOST"),
	}

	p := s.printer(cmd)
	agreed.addFlags(cmd)
	wait.addFlags(cmd)

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, host := cmd.Context(), args[0]
		client, err := s.connect()
		if err != nil {
			return err
		}

		filter := apiclient.DriftFilter{Hosts: []string{host}, Classes: []cyborg.DriftClass{cyborg.DriftLostAtBoot}, Open: true}
		lost, err := apiclient.Collect(client.Drift(ctx, filter, apiclient.Page{}))
		if err != nil {
			return err
		}

		var losses []string
		for _, d := range lost {
			losses = append(losses, "instance "+d.Instance.String()+" is rebooted hard, if it runs")
		}

		if err := s.agree(ctx, agreed, losses); err != nil {
			return err
		}

		answer, err := client.Rescue(ctx, host, apiclient.Async())
		if err != nil {
			return err
		}

		return s.finish(ctx, p, wait, answer, func(operation *apiclient.Operation) error {
			after := object{{hostKey, host}, {"instances", []any{}}}
			if operation != nil {
				after[1].value = operation.Result["instances"]
			}
			return printShow(p, after, []string{hostKey, "instances"}, map[string]string{"instances": rescuedText(after[1].value)})
		})
	}

	return cmd
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
func (s *shell) hostServices() *cobra.Command {
	cmd := &cobra.Command{Use: "services HOST", Short: "What acceleration services a host's backends offer", Args: takes("HOST")}
	// The API returns no more than the short columns here, and the host is known.
	columns := slices.DeleteFunc(backendColumns()[1:], func(c column[cyborg.Backend]) bool { return c.long })

	return list(s, cmd, listing[cyborg.Backend]{
		columns: columns,
		feed:    func() apiclient.EventFilter { return apiclient.EventFilter{Host: cmd.Flags().Arg(0)} },
		read: func(ctx context.Context, client *apiclient.Client, _ apiclient.Page) ([]cyborg.Backend, error) {
			return client.HostServices(ctx, cmd.Flags().Arg(0))
		},
	})
}

// discoverCommand is `discover`.
func (s *shell) discoverCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "discover HOST", Short: "Make a host look at its hardware now", GroupID: hardwareGroup, Args: takes("HOST")}
	p := s.printer(cmd)

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, err := s.connect()
		if err != nil {
			return err
		}

		found, err := client.Discover(cmd.Context(), args[0])
		if err != nil {
			return err
		}

		var lines []string
		for _, backend := range slices.Sorted(maps.Keys(found.Devices)) {
			lines = append(lines, fmt.Sprintf("%s: %d", backend, found.Devices[backend]))
		}

		return printShow(p, found, []string{hostKey, "devices", "errors"}, map[string]string{"devices": strings.Join(lines, "\n")})
	}

	return cmd
}

// serviceCommand is the noun `service` with its verb.
func (s *shell) serviceCommand() *cobra.Command {
	type v = cyborg.Service
	cmd := commandline.Noun("service", "The system's own processes", list(s,
		&cobra.Command{Use: listVerb, Short: "List processes: agents, conductors, APIs", Args: takes()},
		listing[v]{
			columns: []column[v]{
				{title: "Role", key: "role", id: true, value: func(x v) any { return x.Role }},
				{title: hostTitle, key: hostKey, id: true, value: func(x v) any { return x.Host }},
				{title: "Instance", key: "instance", id: true, value: func(x v) any { return x.Instance }},
				{title: "State", key: "alive", value: func(x v) any { return x.Alive }, text: serviceState},
				{title: "Last Seen", key: "last_seen", value: func(x v) any { return x.LastSeen }},
				{title: "Version", key: "version", value: func(x v) any { return x.Version }},
				{title: "Started At", key: "started_at", value: func(x v) any { return x.StartedAt }},
			},
			read: func(ctx context.Context, client *apiclient.Client, page apiclient.Page) ([]v, error) {
				return apiclient.Collect(client.Services(ctx, page))
			},
		}))

	cmd.Aliases = []string{"services"}
	return cmd
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
