package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// acceleratorCommand is the noun `accelerator`.
func (s *shell) acceleratorCommand() *cobra.Command {
	return noun("accelerator", "List, take into service, program, attach and detach accelerators", s.acceleratorVerbs(), "accelerators", "acc")
}

// acceleratorVerbs are the verbs of `accelerator`.
func (s *shell) acceleratorVerbs() []verb {
	return slices.Concat(s.acceleratorReadVerbs(), s.acceleratorUseVerbs(), s.acceleratorAdminVerbs())
}

// acceleratorReadVerbs are the verbs of `accelerator` that only read.
func (s *shell) acceleratorReadVerbs() []verb {
	return []verb{
		{
			use: listVerb, short: "List accelerators",
			examples: []string{
				"cyborg accelerator list --status ready --device-type FPGA",
				"cyborg accelerator list -f value -c uuid -c name --sort host,name:desc",
				"cyborg accelerator list --host compute-1 --long --watch=2s",
				"cyborg accelerator list --near crypto-1 --status ready    # the nearest on its host first",
				"cyborg accelerator list --near 1 --host compute-1         # nearest to NUMA node 1",
			},
			build: s.acceleratorList,
		},
		{
			use: "show ACCELERATOR", short: "Show one accelerator",
			examples: []string{"cyborg accelerator show crypto-1 -f json"},
			build:    show(s, accelerators()),
		},
		{
			complete: s.acceleratorHistory(),
			examples: []string{
				"cyborg accelerator history crypto-1",
				"cyborg accelerator history crypto-1 --events -f json",
			},
		},
		{
			use: "usage ACCELERATOR", short: "Ask its host how an accelerator is used right now",
			build: s.acceleratorUsage,
		},
	}
}

// accelerators is how verbs read and print an accelerator.
func accelerators() thing[apiclient.Accelerator] {
	return thing[apiclient.Accelerator]{
		read: func(ctx context.Context, c call) (apiclient.Accelerator, error) {
			accelerator, _, err := c.client.Accelerator(ctx, c.id)
			return accelerator, err
		},
		feed: func(_ context.Context, c call) (apiclient.EventFilter, error) {
			return apiclient.EventFilter{Accelerator: c.id}, nil
		},
		lead:  []string{"uuid", nameKey, "status", hostKey, "device_type", "holders"},
		texts: acceleratorTexts,
	}
}

// acceleratorTexts are what a table has in place of an accelerator's lists and
// objects.
func acceleratorTexts(a apiclient.Accelerator) map[string]string {
	texts := map[string]string{
		"holders":        holdersText(a.Holders),
		"attach_handles": handlesText(a.Handles),
		"attributes":     attributesText(a.Attributes),
	}

	if len(a.Conditions) > 0 {
		texts["conditions"] = conditionsText(a.Conditions)
	}
	if a.PendingImage != nil {
		texts["pending_image"] = pendingImageText(a)
	}
	if len(a.HeldTogether) > 0 {
		texts["held_together"] = othersText(a.HeldTogether)
	}
	if len(a.Excludes) > 0 {
		texts["excludes"] = strings.Join(a.Excludes, "\n")
	}
	if len(a.ExcludedBy) > 0 {
		texts["excluded_by"] = othersText(a.ExcludedBy)
	}
	if a.Preparation != nil {
		texts["preparation"] = preparationText(a.Preparation)
	}
	if a.Cleaning != nil {
		texts["cleaning"] = cleaningText(a.Cleaning)
	}
	if a.Maintenance != nil {
		texts["maintenance"] = maintenanceText(a.Maintenance)
	}
	if a.Claim != nil {
		texts["operation"] = fmt.Sprintf("%s %s", a.Claim.Kind, a.Claim.Operation)
	}

	return texts
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
		{title: "NUMA Node", key: "numa_node", value: func(x a) any { return x.NUMANode }, long: true},
		{title: "Vendor ID", key: "vendor_id", value: func(x a) any { return x.Specs.VendorID }, long: true},
		{title: "Product ID", key: "product_id", value: func(x a) any { return x.Specs.ProductID }, long: true},
		{title: "Bitstream ID", key: "bitstream_id", value: func(x a) any { return x.BitstreamID }, long: true},
		{title: "Protected", key: "protected", value: func(x a) any { return x.Protected }, long: true},
		{title: "Why", key: "why", value: func(x a) any { return why(x) }, long: true},
	}
}

// acceleratorList is `accelerator list`.
func (s *shell) acceleratorList(cmd *cobra.Command) {
	var filter apiclient.AcceleratorFilter
	var types, statuses []string

	flags := cmd.Flags()
	flags.StringSliceVar(&filter.Names, nameKey, nil, "only of this name; repeatable")
	flags.StringSliceVar(&filter.Hosts, hostKey, nil, "only on this host; repeatable")
	flags.StringSliceVar(&filter.Drivers, "driver", nil, "only of this driver; repeatable")
	flags.StringSliceVar(&types, "device-type", nil, "only "+ofThisType+"; repeatable")
	flags.StringSliceVar(&statuses, "status", nil, "only in this status, such as ready; repeatable")
	near := flags.String("near", "", "only on the host of this accelerator, or NUMA node or PCI address of --host, and the nearest first")

	distance := column[apiclient.Accelerator]{
		title: "NUMA Distance", key: "numa_distance", value: func(a apiclient.Accelerator) any { return a.NUMADistance },
		named: true, asked: func() bool { return *near != "" },
	}
	list(s, cmd, listing[apiclient.Accelerator]{
		columns: append(acceleratorColumns(), distance), pages: true, feed: onlyHost(&filter.Hosts),
		read: func(ctx context.Context, c call, page apiclient.Page) (_ []apiclient.Accelerator, err error) {
			if filter.Near, err = s.near(ctx, c.client, *near); err != nil {
				return nil, err
			}
			filter.DeviceTypes, filter.Statuses = deviceTypes(types), asWords[cyborg.Status](statuses)
			return apiclient.Collect(c.client.Accelerators(ctx, filter, page))
		},
	})
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
	if c := cyborg.Unready(a.Conditions); c != nil && a.Presence == cyborg.PresencePresent {
		reasons = append(reasons, c.Text())
	}
	if h := uncleanHandle(a); h != nil && a.Status == cyborg.StatusUnclean {
		reasons = append(reasons, uncleanText(h.Unclean))
	}
	if len(a.Holders) == 0 && len(a.HeldTogether) > 0 {
		first := &a.HeldTogether[0]
		reasons = append(reasons, fmt.Sprintf("goes to one holder with %s, which %s", first.Name, first.Taken()))
	}
	if len(a.ExcludedBy) > 0 {
		first := &a.ExcludedBy[0]
		reasons = append(reasons, fmt.Sprintf("excluded by %s, which %s", first.Name, first.Taken()))
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

// conditionsText says what the driver says, a line for each condition.
func conditionsText(conditions []cyborg.Condition) string {
	lines := make([]string, len(conditions))
	for i, c := range conditions {
		lines[i] = fmt.Sprintf("%s (%s) since %s", c.Code, c.Level, timeText(c.Since))
		if c.Message != "" {
			lines[i] += ": " + c.Message
		}
	}
	return strings.Join(lines, "\n")
}

// pendingImageText says which image comes next, and after what.
func pendingImageText(a apiclient.Accelerator) string {
	return fmt.Sprintf("%s %s", a.PendingImage.BitstreamID, a.PendingImage.Until.Text(a.Host))
}

// preparationText has a line for each parameter: which values it takes, and what it is
// for.
func preparationText(p *cyborg.Preparation) string {
	if len(p.Parameters) == 0 {
		return "its host prepares its handles"
	}

	lines := make([]string, len(p.Parameters))
	for i, parameter := range p.Parameters {
		lines[i] = fmt.Sprintf("%s (%s)", parameter.Name, parameter.Takes())
		if parameter.Help != "" {
			lines[i] += ": " + parameter.Help
		}
	}
	return strings.Join(lines, "\n")
}

// cleaningText says how handles can be cleaned, and how they always are.
func cleaningText(c *cyborg.Cleaning) string {
	text := strings.Join(asTexts(c.Methods), ", ")
	if c.After != "" {
		text += fmt.Sprintf("; %s after every holder", c.After)
	}
	return text
}

// uncleanHandle returns the handle that has to be cleaned for the longest time; nil where
// none has.
func uncleanHandle(a apiclient.Accelerator) *cyborg.AttachHandle {
	var longest *cyborg.AttachHandle
	for i := range a.Handles {
		if h := &a.Handles[i]; h.Unclean != nil && (longest == nil || h.Unclean.Since.Before(longest.Unclean.Since)) {
			longest = h
		}
	}
	return longest
}

// uncleanText says what has to be done to a handle before somebody gets it.
func uncleanText(u *cyborg.Unclean) string {
	return fmt.Sprintf("to be cleaned (%s) since %s", u.Method, timeText(u.Since))
}

// evidenceText says how a handle was cleaned last.
func evidenceText(e *cyborg.Evidence) string {
	if e.Method == "" {
		return fmt.Sprintf("declared clean at %s: %s", timeText(e.At), e.Declared)
	}

	text := fmt.Sprintf("cleaned at %s by %s", timeText(e.At), e.Method)
	if e.Tool != "" {
		text += ", with " + e.Tool
	}
	if e.ReadBack != "" {
		text += "; read back: " + e.ReadBack
	}
	return text
}

// othersText has a line for each of these accelerators, with who has it.
func othersText(held []cyborg.OtherHeld) string {
	lines := make([]string, len(held))
	for i := range held {
		lines[i] = fmt.Sprintf("%s, which %s", held[i].Name, held[i].Taken())
	}
	return strings.Join(lines, "\n")
}

// holdersText has a line for each holder.
func holdersText(holders []cyborg.Holder) string {
	lines := make([]string, len(holders))
	for i, h := range holders {
		lines[i] = h.String()
	}
	return strings.Join(lines, "\n")
}

// handlesText has one or two lines for each attach handle: its kind and identity, what goes with
// it, who has it, how it was prepared, how it is cleaned, and what is wrong with it.
func handlesText(handles []cyborg.AttachHandle) string {
	lines := make([]string, len(handles))
	for i, h := range handles {
		state := heldText(h) + preparedText(h)
		if h.Unconfirmed != nil && h.Unclean != nil {
			state += fmt.Sprintf(" (%s)", uncleanText(h.Unclean))
		}
		if h.Clean != "" {
			state += fmt.Sprintf(" (%s after its holder)", h.Clean)
		}
		if h.Presence == cyborg.PresenceMissing {
			state += " (missing)"
		}
		if h.Undone != nil {
			state += fmt.Sprintf(" (%s, since %s)", h.Undone.Reason, timeText(h.Undone.Since))
		}
		if h.Health != "" {
			state += fmt.Sprintf(" (%s)", h.Health)
		}

		name := h.Identity
		if len(h.With) > 0 {
			name += " with " + strings.Join(h.With, ", ")
		}
		lines[i] = fmt.Sprintf("%s %s: %s", h.Kind, name, state)
		if h.Cleaned != nil {
			lines[i] += "\n  " + evidenceText(h.Cleaned)
		}
	}

	return strings.Join(lines, "\n")
}

// heldText says who has a handle, or still has it on its host, or what has to be done
// before somebody gets it.
func heldText(h cyborg.AttachHandle) string {
	switch {
	case h.Unconfirmed != nil:
		return fmt.Sprintf("left by %s, its host has still to take it back", h.Unconfirmed)
	case h.Holder == nil && h.Unclean != nil:
		return uncleanText(h.Unclean)
	case h.Holder == nil:
		return "free"
	case h.AttachedAt.IsZero(): // its attach has not ended
		return "taken for " + h.Holder.String()
	}
	return fmt.Sprintf("held by %s since %s", h.Holder, timeText(h.AttachedAt))
}

// preparedText says how a handle is prepared for its holder, in parentheses; "" where
// there is nothing to say. While its attach has not ended, nobody knows whether it is.
func preparedText(h cyborg.AttachHandle) string {
	var texts []string
	switch {
	case h.Prepared && h.Holder != nil && h.AttachedAt.IsZero():
		texts = append(texts, "to be prepared")
	case h.Prepared:
		texts = append(texts, "prepared")
	}
	if len(h.Parameters) > 0 {
		texts = append(texts, "with "+cyborg.ParametersText(h.Parameters))
	}

	if len(texts) == 0 {
		return ""
	}
	return " (" + strings.Join(texts, " ") + ")"
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

// asTexts converts words of the domain to texts.
func asTexts[S ~string](words []S) []string {
	texts := make([]string, len(words))
	for i, word := range words {
		texts[i] = string(word)
	}
	return texts
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
