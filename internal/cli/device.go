package cli

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/commandline"
)

// deviceCommand is the noun `device` with its verbs.
func (s *shell) deviceCommand() *cobra.Command {
	cmd := commandline.Noun("device", "Physical cards", s.deviceList(), s.deviceShow(),
		s.deviceDisable(), s.deviceEnable(), s.deviceHistory())
	cmd.Aliases = []string{"devices"}
	return cmd
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
	}
}

// deviceList is `device list`.
func (s *shell) deviceList() *cobra.Command {
	var filter apiclient.DeviceFilter
	var types, vendors []string
	cmd := &cobra.Command{Use: listVerb, Short: "List devices", Args: takes()}

	flags := cmd.Flags()
	flags.StringSliceVar(&filter.Hosts, hostKey, nil, "only on this host; repeatable")
	flags.StringSliceVar(&types, "type", nil, "only of this type, such as GPU or FPGA; repeatable")
	flags.StringSliceVar(&vendors, "vendor-id", nil, "only of this vendor, a PCI id such as 10de; repeatable")

	return list(s, cmd, listing[apiclient.Device]{
		columns: deviceColumns(), pages: true,
		feed: func() apiclient.EventFilter { return onlyHost(filter.Hosts) },
		read: func(ctx context.Context, client *apiclient.Client, page apiclient.Page) ([]apiclient.Device, error) {
			filter.Types, filter.Vendors = deviceTypes(types), nil

			for _, text := range vendors {
				id, err := pciID(cmd, "vendor-id", text)
				if err != nil {
					return nil, err
				}
				filter.Vendors = append(filter.Vendors, *id)
			}

			return apiclient.Collect(client.Devices(ctx, filter, page))
		},
	})
}

// deviceShow is `device show`.
func (s *shell) deviceShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show DEVICE", Short: "Show one device with its accelerators", Args: takes("DEVICE")}
	p := s.printer(cmd)
	p.addWatch(cmd)

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, id, err := s.namedDevice(cmd.Context(), args[0])
		if err != nil {
			return err
		}

		// The device is read first for its host, whose events the watch follows.
		device, err := client.Device(cmd.Context(), id)
		if err != nil {
			return err
		}

		return p.show(cmd.Context(), client, apiclient.EventFilter{Host: device.Host}, func(ctx context.Context) error {
			device, err := client.Device(ctx, id)
			if err != nil {
				return err
			}
			return p.device(device)
		})
	}

	return cmd
}

// namedDevice connects to the API and finds the device that an argument names.
func (s *shell) namedDevice(ctx context.Context, name string) (*apiclient.Client, uuid.UUID, error) {
	client, err := s.connect()
	if err != nil {
		return nil, uuid.Nil, err
	}

	id, err := s.device(ctx, client, name)
	return client, id, err
}

// device prints one device with a line for each accelerator.
func (p *printer) device(device apiclient.Device) error {
	lines := make([]string, len(device.Accelerators))
	for i, a := range device.Accelerators {
		lines[i] = a.UUID.String() + " " + a.Name + " " + string(a.Status)
	}

	return printShow(p, device, []string{"uuid", hostKey, "type", "vendor", "model"}, map[string]string{"accelerators": strings.Join(lines, "\n")})
}

// deviceDisable is `device disable`.
func (s *shell) deviceDisable() *cobra.Command {
	var flags maintenance
	cmd := &cobra.Command{
		Use:   "disable DEVICE --reason TEXT",
		Short: "Take all accelerators of a device out of use for a while",
		Long: "Puts all accelerators of the device into maintenance, or none: new work is kept off them until --until, for the time\n" +
			"of --for, or until `cyborg device enable`. Who holds one keeps it.",
		Args: takes("DEVICE"),
	}
	p := s.printer(cmd)
	flags.addFlags(cmd)

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request, err := flags.read(cmd)
		if err != nil {
			return err
		}

		client, id, err := s.namedDevice(cmd.Context(), args[0])
		if err != nil {
			return err
		}

		changed, err := client.MaintainDevice(cmd.Context(), id, request)
		if err != nil {
			return err
		}

		return p.device(changed)
	}

	return cmd
}

// deviceEnable is `device enable`.
func (s *shell) deviceEnable() *cobra.Command {
	cmd := &cobra.Command{Use: "enable DEVICE", Short: "End the maintenance of a device's accelerators", Args: takes("DEVICE")}
	p := s.printer(cmd)

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, id, err := s.namedDevice(cmd.Context(), args[0])
		if err != nil {
			return err
		}

		changed, err := client.EnableDevice(cmd.Context(), id)
		if err != nil {
			return err
		}

		return p.device(changed)
	}

	return cmd
}
