package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// ofThisType is the help of the flags that ask for a device type.
const ofThisType = "of this type: GPU, FPGA, AICHIP, QAT, NIC, SSD, PCI, or one of an own driver"

// deviceCommand is the noun `device`.
func (s *shell) deviceCommand() *cobra.Command {
	return noun("device", "Physical cards", []verb{
		{
			use: listVerb, short: "List devices",
			examples: []string{"cyborg device list --vendor-id 10de --long"},
			build:    s.deviceList,
		},
		{use: "show DEVICE", short: "Show one device with its accelerators", build: show(s, devices())},
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
		lead: []string{"uuid", hostKey, "type", "vendor", "model"},
		texts: func(device apiclient.Device) map[string]string {
			lines := make([]string, len(device.Accelerators))
			for i, a := range device.Accelerators {
				lines[i] = a.UUID.String() + " " + a.Name + " " + string(a.Status)
			}
			return map[string]string{"accelerators": strings.Join(lines, "\n"), "fingerprint": device.Fingerprint.String()}
		},
	}
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
