package cli

import (
	"context"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// driftColumns are the columns of `drift list`.
func driftColumns() []column[apiclient.Drift] {
	type d = apiclient.Drift
	return []column[d]{
		{title: hostTitle, key: hostKey, id: true, value: func(x d) any { return x.Host }},
		{title: "Class", key: "class", id: true, value: func(x d) any { return x.Class }},
		{title: "Resource Provider", key: "resource_provider", value: func(x d) any { return x.Name }},
		{title: "Instance", key: "instance_uuid", id: true, value: func(x d) any { return x.Instance }, text: func(x d) string { return idText(x.Instance) }},
		{title: "Detail", key: "detail", value: func(x d) any { return x.Detail }},
		{title: "Found At", key: "found_at", value: func(x d) any { return x.FoundAt }},
		{title: "Repaired At", key: "repaired_at", value: func(x d) any { return x.RepairedAt }, text: func(x d) string { return timeText(x.RepairedAt) }},
		{title: "Last Found At", key: "last_found_at", value: func(x d) any { return x.LastAt }, long: true},
		{title: "Resource Provider UUID", key: "resource_provider_uuid", id: true, value: func(x d) any { return x.Provider }, text: func(x d) string { return idText(x.Provider) }, long: true},
		{title: "Device UUID", key: "device_uuid", id: true, value: func(x d) any { return x.Device }, text: func(x d) string { return idText(x.Device) }, long: true},
	}
}

// idText shows the UUID of nothing as an empty cell.
func idText(id uuid.UUID) string {
	if id == uuid.Nil {
		return ""
	}
	return id.String()
}

// driftCommand is the noun `drift`.
func (s *shell) driftCommand() *cobra.Command {
	return noun("drift", "Differences between OpenStack and the records", []verb{{
		use: listVerb, short: "List where OpenStack Placement, Nova, a host's whitelist file, or the layout of a device differ from the records",
		long: "Lists where Placement, Nova, a host's whitelist file, or the layout of a device differ from the records now; with --all,\n" +
			"also the differences that were repaired.",
		examples: []string{
			"cyborg drift list",
			"cyborg drift list --class lost_at_boot --class lost_image --all --sort found_at:desc",
		},
		build: s.driftList,
	}})
}

// driftList is `drift list`.
func (s *shell) driftList(cmd *cobra.Command) {
	var hosts, classes []string
	var all bool
	cmd.Flags().StringSliceVar(&hosts, hostKey, nil, "only on this host; repeatable")
	cmd.Flags().StringSliceVar(&classes, "class", nil, "only of this class; repeatable")
	cmd.Flags().BoolVar(&all, "all", false, "show repaired differences, too")

	list(s, cmd, listing[apiclient.Drift]{
		columns: driftColumns(), pages: true, feed: onlyHost(&hosts),
		read: func(ctx context.Context, c call, page apiclient.Page) ([]apiclient.Drift, error) {
			filter := apiclient.DriftFilter{Hosts: hosts, Open: !all}
			for _, class := range classes {
				filter.Classes = append(filter.Classes, cyborg.DriftClass(class))
			}

			return apiclient.Collect(c.client.Drift(ctx, filter, page))
		},
	})
}
