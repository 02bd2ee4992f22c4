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
)

// acceleratorUsage is `accelerator usage`.
func (s *shell) acceleratorUsage(cmd *cobra.Command) {
	p := s.printer(cmd)
	s.run(cmd, func(ctx context.Context, c call) error {
		usage, err := c.client.AcceleratorUsage(ctx, c.id)
		if err != nil {
			return err
		}
		return p.usage(usage, []cyborg.HostUsage{usage})
	})
}

// usageCommand is `usage`.
func (s *shell) usageCommand() *cobra.Command {
	return verb{
		use: "usage", short: "Ask hosts how their accelerators are used right now",
		examples: []string{"cyborg usage --host compute-1 -c name -c in_use -c by"},
		build: func(cmd *cobra.Command) {
			var hosts []string
			p := s.printer(cmd)
			cmd.Flags().StringSliceVar(&hosts, hostKey, nil, "ask only this host; repeatable")

			s.run(cmd, func(ctx context.Context, c call) error {
				census, err := c.client.Usage(ctx, hosts...)
				if err != nil {
					return err
				}
				return p.usage(census, census.Hosts)
			})
		},
	}.command()
}

// usageRow is what a host reports of one handle.
type usageRow struct {
	host       string
	deployable cyborg.DeployableUsage
	handle     cyborg.HandleUsage
}

// usage prints the API's answer, or a row for each handle of the hosts in it.
// What could not be asked is reported on standard error, so that the rows stay
// machine-readable.
func (p *printer) usage(answer any, hosts []cyborg.HostUsage) error {
	if p.objects() && len(p.columns) == 0 {
		return p.document(answer)
	}

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
		{title: "UUID", key: "accelerator", value: func(r usageRow) any { return idText(r.deployable.Accelerator) }, long: true},
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
