package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/english"
)

// ofThisType is the help of the flags that ask for a device type.
const ofThisType = "of this type: GPU, FPGA, AICHIP, QAT, NIC, SSD, PCI, or one of an own driver"

// deviceCommand is the noun `device`.
func (s *shell) deviceCommand() *cobra.Command {
	return noun("device", "Physical cards", []verb{
		{
			use: listVerb, short: "List devices",
			examples: []string{"cyborg device list --vendor-id 10de --long", "cyborg device list -f value -c uuid -c layout"},
			build:    s.deviceList,
		},
		{use: "show DEVICE", short: "Show one device with its accelerators", build: show(s, devices())},
		{
			use: "partition DEVICE [PART...]", short: "Divide a device into parts, or make it whole",
			long: "Divides a device into the parts that you name, such as vf=4 for four virtual functions, and into no others; with\n" +
				"--whole it is whole again. `cyborg device show` has the kinds of parts (partitioning). What the device has then are its\n" +
				"accelerators; what it no longer has leaves the records. It is refused while anybody has anything of the device.",
			examples: []string{
				"cyborg device partition 0a1b2c3d vf=4",
				"cyborg device partition 0a1b2c3d 1g.10gb=2 3g.40gb=1 --yes",
				"cyborg device partition 0a1b2c3d --whole",
			},
			build: s.devicePartition,
		},
		{
			use: "disable DEVICE --reason TEXT", short: "Take all accelerators of a device out of use for a while",
			long: "Puts all accelerators of the device into maintenance, or none: new work is kept off them until --until, for the time\n" +
				"of --for, or until `cyborg device enable`. Whoever holds one keeps it.",
			examples: []string{`cyborg device disable 0a1b2c3d --reason "to be replaced" --until 2030-01-31T18:00:00Z`},
			build:    maintain(s, devices(), (*apiclient.Client).MaintainDevice),
		},
		{
			use: "enable DEVICE", short: "End the maintenance of a device's accelerators",
			build: change(s, devices(), (*apiclient.Client).EnableDevice),
		},
		{complete: s.deviceHistory(), examples: []string{"cyborg device history 0a1b2c3d"}},
	}, "devices")
}

// devices is how verbs read and print a device.
func devices() thing[apiclient.Device] {
	return thing[apiclient.Device]{
		read: func(ctx context.Context, c call) (apiclient.Device, error) { return c.client.Device(ctx, c.id) },
		// No filter selects a device, so the events of its host have to do.
		feed: func(ctx context.Context, c call) (apiclient.EventFilter, error) {
			device, err := c.client.Device(ctx, c.id)
			return apiclient.EventFilter{Host: device.Host}, err
		},
		lead:  []string{"uuid", hostKey, "type", "vendor", "model"},
		texts: deviceTexts,
	}
}

// deviceTexts are what a table has in place of a device's lists and objects.
func deviceTexts(device apiclient.Device) map[string]string {
	lines := make([]string, len(device.Accelerators))
	for i, a := range device.Accelerators {
		lines[i] = a.UUID.String() + " " + a.Name + " " + string(a.Status)
	}
	texts := map[string]string{"accelerators": strings.Join(lines, "\n"), "fingerprint": device.Fingerprint.String()}

	if device.Partitioning != nil {
		texts["partitioning"] = partitioningText(device.Partitioning)
	}
	if device.WantedLayout != nil {
		texts["wanted_layout"] = wantedLayoutOf(device)
	}
	return texts
}

// partitioningText says how a device is divided, and has a line for each kind of parts that
// it can have.
func partitioningText(p *cyborg.Partitioning) string {
	lines := []string{p.Layout.String()}
	for _, kind := range p.Parts {
		lines = append(lines, kind.Name+": "+kindText(kind))
	}
	return strings.Join(lines, "\n")
}

// kindText says how many parts of a kind a device can have, and what they are.
func kindText(kind cyborg.PartKind) string {
	text := fmt.Sprintf("%d at most", kind.Most)
	if kind.Description != "" {
		text += ", " + kind.Description
	}
	return text
}

// layoutOf says how a device is divided; "" where it cannot be.
func layoutOf(device apiclient.Device) string {
	if device.Partitioning == nil {
		return ""
	}
	return device.Partitioning.Layout.String()
}

// wantedLayoutOf says how a device is meant to be divided; "" where nobody has said that.
func wantedLayoutOf(device apiclient.Device) string {
	if device.WantedLayout == nil {
		return ""
	}
	return device.WantedLayout.String()
}

// deviceColumns are the columns of `device list`.
func deviceColumns() []column[apiclient.Device] {
	type d = apiclient.Device
	return []column[d]{
		{title: "UUID", key: "uuid", id: true, value: func(x d) any { return x.UUID }},
		{title: hostTitle, key: hostKey, value: func(x d) any { return x.Host }},
		{title: "Type", key: "type", value: func(x d) any { return x.Type }},
		{title: "Vendor", key: "vendor", value: func(x d) any { return x.Vendor }},
		{title: "Model", key: "model", value: func(x d) any { return x.Model }},
		{title: "Identity", key: "identity", value: func(x d) any { return x.Identity }},
		{title: "Presence", key: "presence", value: func(x d) any { return x.Presence }},
		{title: "Layout", key: "layout", value: func(x d) any { return layoutOf(x) }},
		{title: "Wanted Layout", key: "wanted_layout", value: func(x d) any { return wantedLayoutOf(x) }, long: true},
		{title: "Driver", key: "driver", value: func(x d) any { return x.Driver }, long: true},
		{title: "Backend", key: "backend", value: func(x d) any { return x.Backend }, long: true},
		{title: "Vendor ID", key: "vendor_id", value: func(x d) any { return x.VendorID }, long: true},
		{title: "Product ID", key: "product_id", value: func(x d) any { return x.ProductID }, long: true},
		{title: "NUMA Node", key: "numa_node", value: func(x d) any { return x.NUMANode }, long: true},
		{title: "Replaced By", key: "replaced_by", value: func(x d) any { return x.ReplacedBy }, long: true},
	}
}

// deviceList is `device list`.
func (s *shell) deviceList(cmd *cobra.Command) {
	var filter apiclient.DeviceFilter
	var types, vendors []string

	flags := cmd.Flags()
	flags.StringSliceVar(&filter.Hosts, hostKey, nil, "only on this host; repeatable")
	flags.StringSliceVar(&types, "type", nil, "only "+ofThisType+"; repeatable")
	flags.StringSliceVar(&vendors, "vendor-id", nil, "only of this vendor, a PCI id such as 10de; repeatable")

	before(cmd, func() error {
		for _, text := range vendors {
			id, err := pciID(cmd, "vendor-id", text)
			if err != nil {
				return err
			}
			filter.Vendors = append(filter.Vendors, *id)
		}
		return nil
	})

	list(s, cmd, listing[apiclient.Device]{
		columns: deviceColumns(), pages: true, feed: onlyHost(&filter.Hosts),
		read: func(ctx context.Context, c call, page apiclient.Page) ([]apiclient.Device, error) {
			filter.Types = deviceTypes(types)
			return apiclient.Collect(c.client.Devices(ctx, filter, page))
		},
	})
}

// devicePartition is `device partition`.
func (s *shell) devicePartition(cmd *cobra.Command) {
	var whole bool
	var layout cyborg.Layout
	cmd.Flags().BoolVar(&whole, "whole", false, "make it whole again, without parts")

	before(cmd, func() (err error) {
		layout, err = wantedLayout(cmd, cmd.Flags().Args()[1:], whole)
		return err
	})

	s.operate(cmd, work{
		losses: func(ctx context.Context, c call) ([]string, error) { return dividedAway(ctx, c, layout) },
		start: func(ctx context.Context, c call) (apiclient.Answer, error) {
			return c.client.PartitionDevice(ctx, c.id, layout, apiclient.Async())
		},
		done: func(ctx context.Context, p *printer, c call, answer apiclient.Answer) error {
			if answer.Operation == nil && !s.quiet {
				s.sayf("There was nothing to do.")
			}
			return devices().show(ctx, p, c)
		},
	})
}

// wantedLayout reads the layout that was typed. The whole device has to be asked for by
// its flag: words that are missing, such as an unset variable of a script, do not mean it.
func wantedLayout(cmd *cobra.Command, parts []string, whole bool) (cyborg.Layout, error) {
	switch {
	case whole && len(parts) > 0:
		return nil, usageErrorf(cmd, "--whole and parts exclude each other")
	case whole:
		return cyborg.Layout{}, nil
	case len(parts) == 0:
		return nil, usageErrorf(cmd, "say into which parts, such as vf=4, or --whole")
	}

	layout, err := cyborg.ParseLayout(parts)
	switch {
	case err != nil:
		return nil, usageErrorf(cmd, "%s", err)
	case len(layout) == 0:
		return nil, usageErrorf(cmd, "%s asks for no parts at all; --whole makes the device whole", strings.Join(parts, " "))
	}
	for kind := range layout {
		if !cyborg.IsPartKind(kind) {
			return nil, usageErrorf(cmd, "%q is no name of a kind of parts, such as vf", kind)
		}
	}
	return layout, nil
}

// dividedAway lists the accelerators in service that may leave with a new layout. Which
// of them it has as well, only the driver knows. The present layout takes nothing away, and
// a device that cannot be divided is refused.
func dividedAway(ctx context.Context, c call, layout cyborg.Layout) ([]string, error) {
	device, err := c.client.Device(ctx, c.id)
	if err != nil || device.Partitioning == nil || device.Partitioning.Layout.Equal(layout) {
		return nil, err
	}

	var names []string
	for _, a := range device.Accelerators {
		if a.Lifecycle != cyborg.LifecycleInactive {
			names = append(names, a.Name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}

	return []string{fmt.Sprintf("device %s on %s (%s) becomes %s, and these leave the records unless it has them then, too: %s",
		device.Identity, device.Host, layoutOf(device), layout, english.Some(names))}, nil
}
