package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/commandline"
)

// acceleratorCommand is the noun `accelerator` with its verbs.
func (s *shell) acceleratorCommand() *cobra.Command {
	cmd := commandline.Noun("accelerator", "What can be handed out: list, take into service, program, attach, detach",
		s.acceleratorList(), s.acceleratorShow(), s.acceleratorCreate(), s.acceleratorReady(), s.acceleratorRetire(), s.acceleratorSet(),
		s.acceleratorAttach(), s.acceleratorDetach(), s.acceleratorProgram(),
		s.acceleratorMaintain(), s.acceleratorEnable(), s.acceleratorHistory(), s.acceleratorUsage())
	cmd.Aliases = []string{"accelerators", "acc"}
	return cmd
}

// acceleratorColumns are the columns of `accelerator list`.
func acceleratorColumns() []column[apiclient.Accelerator] {
	type a = apiclient.Accelerator
	return []column[a]{
		{title: "UUID", key: "uuid", id: true, value: func(x a) any { return x.UUID }},
		{title: nameTitle, key: nameKey, value: func(x a) any { return x.Name }},
		{title: hostTitle, key: hostKey, value: func(x a) any { return x.Host }},
		{title: "Device Type", key: "device_type", value: func(x a) any { return x.DeviceType }},
		{title: "Status", key: "status", value: func(x a) any { return x.Status }},
		{title: "Holders", key: "holders", value: func(x a) any { return x.Holders }, text: func(x a) string { return holdersText(x.Holders) }},
		{title: "Acc Type", key: "acc_type", value: func(x a) any { return x.Specs.Type }, long: true},
		{title: "Num", key: "num", value: func(x a) any { return x.Specs.Num }, long: true},
		{title: "Driver", key: "driver", value: func(x a) any { return x.Driver }, long: true},
		{title: "Backend", key: "backend", value: func(x a) any { return x.Backend }, long: true},
		{title: "Vendor ID", key: "vendor_id", value: func(x a) any { return x.Specs.VendorID }, long: true},
		{title: "Product ID", key: "product_id", value: func(x a) any { return x.Specs.ProductID }, long: true},
		{title: "Bitstream ID", key: "bitstream_id", value: func(x a) any { return x.BitstreamID }, long: true},
		{title: "Protected", key: "protected", value: func(x a) any { return x.Protected }, long: true},
		{title: "Why", key: "why", value: func(x a) any { return why(x) }, long: true},
	}
}

// acceleratorList is `accelerator list`.
func (s *shell) acceleratorList() *cobra.Command {
	var filter apiclient.AcceleratorFilter
	var types, statuses []string
	cmd := &cobra.Command{Use: listVerb, Short: "List accelerators", Args: takes()}

	flags := cmd.Flags()
	flags.StringSliceVar(&filter.Names, nameKey, nil, "only of this name; repeatable")
	flags.StringSliceVar(&filter.Hosts, hostKey, nil, "only on this host; repeatable")
	flags.StringSliceVar(&filter.Drivers, "driver", nil, "only of this driver; repeatable")
	flags.StringSliceVar(&types, "device-type", nil, "only of this type, such as GPU or FPGA; repeatable")
	flags.StringSliceVar(&statuses, "status", nil, "only in this status, such as ready; repeatable")

	return list(s, cmd, listing[apiclient.Accelerator]{
		columns: acceleratorColumns(), pages: true,
		feed: func() apiclient.EventFilter { return onlyHost(filter.Hosts) },
		read: func(ctx context.Context, client *apiclient.Client, page apiclient.Page) ([]apiclient.Accelerator, error) {
			filter.DeviceTypes, filter.Statuses = deviceTypes(types), asWords[cyborg.Status](statuses)
			return apiclient.Collect(client.Accelerators(ctx, filter, page))
		},
	})
}

// acceleratorShow is `accelerator show`.
func (s *shell) acceleratorShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show ACCELERATOR", Short: "Show one accelerator", Args: takes("ACCELERATOR")}
	p := s.printer(cmd)
	p.addWatch(cmd)

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, id, err := s.named(cmd.Context(), args[0])
		if err != nil {
			return err
		}

		return p.show(cmd.Context(), client, apiclient.EventFilter{Accelerator: id}, func(ctx context.Context) error {
			return p.acceleratorOf(ctx, client, id)
		})
	}

	return cmd
}

// named connects to the API and finds the accelerator that an argument names.
func (s *shell) named(ctx context.Context, name string) (*apiclient.Client, uuid.UUID, error) {
	client, err := s.connect()
	if err != nil {
		return nil, uuid.Nil, err
	}

	id, err := s.accelerator(ctx, client, name)
	return client, id, err
}

// acceleratorOf reads an accelerator and prints its present state.
func (p *printer) acceleratorOf(ctx context.Context, client *apiclient.Client, id uuid.UUID) error {
	accelerator, _, err := client.Accelerator(ctx, id)
	if err != nil {
		return err
	}
	return p.accelerator(accelerator)
}

// accelerator prints one accelerator.
func (p *printer) accelerator(a apiclient.Accelerator) error {
	texts := map[string]string{
		"holders":        holdersText(a.Holders),
		"attach_handles": handlesText(a.Handles),
		"attributes":     attributesText(a.Attributes),
	}

	if a.Maintenance != nil {
		texts["maintenance"] = maintenanceText(a.Maintenance)
	}
	if a.Claim != nil {
		texts["operation"] = fmt.Sprintf("%s %s", a.Claim.Kind, a.Claim.Operation)
	}

	return printShow(p, a, []string{"uuid", nameKey, "status", hostKey, "device_type", "holders"}, texts)
}

// why returns the reasons for which an accelerator is not available, as far as
// its status alone does not give them.
func why(a apiclient.Accelerator) string {
	var reasons []string
	if a.Reason != "" {
		reasons = append(reasons, a.Reason)
	}
	if a.Maintenance != nil {
		reasons = append(reasons, maintenanceText(a.Maintenance))
	}
	if a.Fence != nil {
		reasons = append(reasons, "fenced: "+a.Fence.Reason)
	}

	return strings.Join(reasons, "; ")
}

// maintenanceText is the reason of a maintenance, with who began it and its
// end.
func maintenanceText(m *cyborg.Maintenance) string {
	text := fmt.Sprintf("%s (by %s)", m.Reason, m.By)
	if !m.Until.IsZero() {
		text += " until " + timeText(m.Until)
	}
	return text
}

// holdersText has a line for each holder.
func holdersText(holders []cyborg.Holder) string {
	lines := make([]string, len(holders))
	for i, h := range holders {
		lines[i] = holderText(h)
	}
	return strings.Join(lines, "\n")
}

func holderText(h cyborg.Holder) string { return string(h.Kind) + " " + h.ID }

// handlesText has a line for each attach handle: its kind and identity, who has
// it, and what is wrong with it.
func handlesText(handles []cyborg.AttachHandle) string {
	lines := make([]string, len(handles))
	for i, h := range handles {
		state := "free"

		switch {
		// A handle without AttachedAt is reserved: its attach has not finished.
		case h.Holder != nil && h.AttachedAt.IsZero():
			state = "taken for " + holderText(*h.Holder)
		case h.Holder != nil:
			state = fmt.Sprintf("held by %s since %s", holderText(*h.Holder), timeText(h.AttachedAt))
		}

		if h.Presence == cyborg.PresenceMissing {
			state += " (missing)"
		}
		if h.Health != "" {
			state += fmt.Sprintf(" (%s)", h.Health)
		}

		lines[i] = fmt.Sprintf("%s %s: %s", h.Kind, h.Identity, state)
	}

	return strings.Join(lines, "\n")
}

func attributesText(attributes []cyborg.Attribute) string {
	lines := make([]string, len(attributes))
	for i, a := range attributes {
		lines[i] = a.Key + "=" + a.Value
	}
	return strings.Join(lines, "\n")
}

// asWords converts texts to words of the domain, which are all in lower case.
func asWords[S ~string](texts []string) []S {
	words := make([]S, len(texts))
	for i, text := range texts {
		words[i] = S(strings.ToLower(text))
	}
	return words
}

// deviceType converts a text to a device type, which is always in upper case.
func deviceType(text string) cyborg.DeviceType { return cyborg.DeviceType(strings.ToUpper(text)) }

// deviceTypes converts each text to a device type.
func deviceTypes(texts []string) []cyborg.DeviceType {
	types := make([]cyborg.DeviceType, len(texts))
	for i, text := range texts {
		types[i] = deviceType(text)
	}
	return types
}
