package cli

import (
	"context"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/commandline"
)

// driftColumns are the columns of `drift list`.
func driftColumns() []column[apiclient.Drift] {
	type d = apiclient.Drift
	return []column[d]{
		{title: hostTitle, key: hostKey, id: true, value: func(x d) any { return x.Host }},
		{title: "Class", key: "class", id: true, value: func(x d) any { return x.Class }},
		{title: "Resource Provider", key: "resource_provider", value: func(x d) any { return x.Name }},
		{title: "Instance", key: "instance_uuid", id: true, value: func(x d) any { return x.Instance }, text: instanceText},
		{title: "Detail", key: "detail", value: func(x d) any { return x.Detail }},
		{title: "Found At", key: "found_at", value: func(x d) any { return x.FoundAt }},
		{title: "Repaired At", key: "repaired_at", value: func(x d) any { return x.RepairedAt }, text: func(x d) string { return timeText(x.RepairedAt) }},
		{title: "Last Found At", key: "last_found_at", value: func(x d) any { return x.LastAt }, long: true},
		{title: "Resource Provider UUID", key: "resource_provider_uuid", id: true, value: func(x d) any { return x.Provider }, text: providerText, long: true},
	}
}

// providerText shows no resource provider as an empty cell, and not as a UUID
// of zeros.
func providerText(d apiclient.Drift) string {
	if d.Provider == uuid.Nil {
		return ""
	}
	return d.Provider.String()
}

// instanceText shows no instance as an empty cell.
func instanceText(d apiclient.Drift) string {
	if d.Instance == uuid.Nil {
		return ""
	}
	return d.Instance.String()
}

// driftCommand is `drift` with its only verb, `list`.
func (s *shell) driftCommand() *cobra.Command {
	var (
		hosts   []string
		classes []string
		all     bool
	)
	cmd := &cobra.Command{
		Use: listVerb, Short: "List in what OpenStack Placement, Nova, or the file of a host's whitelist and the records differ", Args: takes(),
		Long: "Lists what Placement, Nova, or the file of a host's whitelist has otherwise than the records, and is not repaired. With --all, also what was repaired.",
	}

	cmd.Flags().StringSliceVar(&hosts, hostKey, nil, "only on this host; repeatable")
	cmd.Flags().StringSliceVar(&classes, "class", nil, "only of this class; repeatable")
	cmd.Flags().BoolVar(&all, "all", false, "also what was repaired")

	return commandline.Noun("drift", "What OpenStack has otherwise", list(s, cmd, listing[apiclient.Drift]{
		columns: driftColumns(), pages: true,
		read: func(ctx context.Context, client *apiclient.Client, page apiclient.Page) ([]apiclient.Drift, error) {
			filter := apiclient.DriftFilter{Hosts: hosts, Open: !all}
			for _, class := range classes {
				filter.Classes = append(filter.Classes, cyborg.DriftClass(class))
			}

			return apiclient.Collect(client.Drift(ctx, filter, page))
		},
		feed: func() apiclient.EventFilter { return onlyHost(hosts) },
	}))
}
