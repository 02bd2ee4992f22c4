package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

func (s *shell) hostCommand() *cobra.Command {
	cmd := s.noun("host", "Machines with an agent", s.hostList(), s.hostShow(), s.hostServices())
	cmd.Aliases = []string{"hosts"}
	return cmd
}

func hostColumns() []column[cyborg.Host] {
	type h = cyborg.Host
	return []column[h]{
		{title: nameTitle, key: nameKey, value: func(x h) any { return x.Name }},
		{title: "State", key: "silent", value: func(x h) any { return x.Silent }, text: hostState},
		{title: "Last Seen", key: "last_seen", value: func(x h) any { return x.LastSeen }},
		{title: "Devices", key: "devices", value: func(x h) any { return x.Devices }},
		{title: "Agent Version", key: "agent_version", value: func(x h) any { return x.AgentVersion }},
		{title: "Backends", key: "backends", value: func(x h) any { return x.Backends }, text: func(x h) string { return backendsText(x.Backends) }},
		{title: "Generation", key: "generation", value: func(x h) any { return x.Generation }, long: true},
		{title: "Boot ID", key: "boot_id", value: func(x h) any { return x.BootID }, long: true},
	}
}

func hostState(host cyborg.Host) string {
	if host.Silent {
		return "silent"
	}
	return "alive"
}

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

func (s *shell) hostList() *cobra.Command {
	var page pageFlags
	var long bool
	cmd := &cobra.Command{Use: listVerb, Short: "List hosts", Args: takes()}
	p := s.printer(cmd)
	cmd.Flags().BoolVar(&long, "long", false, "more columns")
	page.addFlags(cmd, 0)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client, err := s.connect()
		if err != nil {
			return err
		}
		items, err := apiclient.Collect(client.Hosts(cmd.Context(), page.page()))
		if err != nil {
			return err
		}
		return printList(p, items, hostColumns(), long)
	}
	return cmd
}

func (s *shell) hostShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show HOST", Short: "Show one host", Args: takes("HOST")}
	p := s.printer(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, err := s.connect()
		if err != nil {
			return err
		}
		host, err := client.Host(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return printShow(p, host, []string{nameKey, "silent", "last_seen", "devices"}, map[string]string{"backends": backendsText(host.Backends)})
	}
	return cmd
}

func (s *shell) hostServices() *cobra.Command {
	cmd := &cobra.Command{Use: "services HOST", Short: "What acceleration services a host's backends offer", Args: takes("HOST")}
	p := s.printer(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, err := s.connect()
		if err != nil {
			return err
		}
		backends, err := client.HostServices(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return printList(p, backends, backendColumns()[1:], false)
	}
	return cmd
}

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

func (s *shell) serviceCommand() *cobra.Command {
	list := &cobra.Command{Use: listVerb, Short: "List processes: agents, conductors, APIs", Args: takes()}
	p := s.printer(list)
	list.RunE = func(cmd *cobra.Command, _ []string) error {
		client, err := s.connect()
		if err != nil {
			return err
		}
		services, err := client.Services(cmd.Context())
		if err != nil {
			return err
		}
		type v = cyborg.Service
		return printList(p, services, []column[v]{
			{title: "Role", key: "role", value: func(x v) any { return x.Role }},
			{title: hostTitle, key: hostKey, value: func(x v) any { return x.Host }},
			{title: "Instance", key: "instance", value: func(x v) any { return x.Instance }},
			{title: "State", key: "alive", value: func(x v) any { return x.Alive }, text: serviceState},
			{title: "Last Seen", key: "last_seen", value: func(x v) any { return x.LastSeen }},
			{title: "Version", key: "version", value: func(x v) any { return x.Version }},
			{title: "Started At", key: "started_at", value: func(x v) any { return x.StartedAt }},
		}, false)
	}
	cmd := s.noun("service", "The system's own processes", list)
	cmd.Aliases = []string{"services"}
	return cmd
}

func serviceState(service cyborg.Service) string {
	if service.Alive {
		return "alive"
	}
	return "silent"
}
