package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
)

// acceleratorUsage is `accelerator usage`.
func (s *shell) acceleratorUsage() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "usage ACCELERATOR",
		Short: "How an accelerator is used at this moment, asked of its host",
		Args:  takes("ACCELERATOR"),
	}
	p := s.printer(cmd)

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, id, err := s.named(cmd.Context(), args[0])
		if err != nil {
			return err
		}

		usage, err := client.AcceleratorUsage(cmd.Context(), id)
		if err != nil {
			return err
		}

		if p.objects() && len(p.columns) == 0 {
			return p.document(usage)
		}

		return p.usage([]cyborg.HostUsage{usage})
	}

	return cmd
}

// usageCommand is `usage`.
func (s *shell) usageCommand() *cobra.Command {
	var hosts []string
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "How accelerators are used at this moment, asked of their hosts",
		Args:  takes(),
	}

	p := s.printer(cmd)
	cmd.Flags().StringSliceVar(&hosts, hostKey, nil, "ask only this host; repeatable")

	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client, err := s.connect()
		if err != nil {
			return err
		}

		census, err := client.Usage(cmd.Context(), hosts...)
		if err != nil {
			return err
		}

		if p.objects() && len(p.columns) == 0 {
			return p.document(census)
		}

		return p.usage(census.Hosts)
	}

	return cmd
}

// usageRow is what a host reports of one handle.
type usageRow struct {
	host       string
	deployable cyborg.DeployableUsage
	handle     cyborg.HandleUsage
}

// usage prints a row for each handle. What could not be asked is reported on
// standard error, so that the rows stay machine-readable.
func (p *printer) usage(hosts []cyborg.HostUsage) error {
	rows := []usageRow{}
	for _, host := range hosts {
		if host.Error != "" {
			p.shell.sayf("No answer from %s: %s", host.Host, host.Error)
		}

		for _, deployable := range host.Deployables {
			if deployable.Error != "" {
				p.shell.sayf("%s: %s: %s", host.Host, usedName(deployable), deployable.Error)
			}

			for _, handle := range deployable.Handles {
				rows = append(rows, usageRow{host.Host, deployable, handle})
			}
		}
	}

	return printList(p, rows, []column[usageRow]{
		{title: "UUID", key: "accelerator", value: func(r usageRow) any { return usedUUID(r.deployable) }, long: true},
		{title: hostTitle, key: hostKey, value: func(r usageRow) any { return r.host }},
		{
			title: nameTitle, key: nameKey,
			value: func(r usageRow) any { return usedName(r.deployable) },
		},
		{title: "Handle", key: "handle", value: func(r usageRow) any { return r.handle.Handle }},
		{title: "Attached", key: "attached", value: func(r usageRow) any { return r.handle.Attached }},
		{title: "In Use", key: "in_use", value: func(r usageRow) any { return r.handle.InUse }},
		{title: "By", key: "by", value: func(r usageRow) any { return r.handle.By }},
		{
			title: "Metrics", key: "metrics",
			value: func(r usageRow) any { return r.deployable.Metrics },
			text:  func(r usageRow) string { return metricsText(r.deployable.Metrics) },
		},
	}, false)
}

// usedUUID is the accelerator's UUID, or "" where it is not recorded yet.
func usedUUID(d cyborg.DeployableUsage) string {
	if d.Accelerator == uuid.Nil {
		return ""
	}
	return d.Accelerator.String()
}

// usedName is the accelerator's name, or its driver's name for it where it is
// not recorded yet.
func usedName(d cyborg.DeployableUsage) string { return cmp.Or(d.Name, d.Deployable) }

// metricsText has a line for each metric, sorted by name.
func metricsText(metrics map[string]float64) string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		lines = append(lines, fmt.Sprintf("%s=%g", name, metrics[name]))
	}
	return strings.Join(lines, "\n")
}
