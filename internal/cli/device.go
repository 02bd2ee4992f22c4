package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

func (s *shell) deviceCommand() *cobra.Command {
	cmd := s.noun("device", "Physical cards", s.deviceList(), s.deviceShow())
	cmd.Aliases = []string{"devices"}
	return cmd
}

func deviceColumns() []column[apiclient.Device] {
	type d = apiclient.Device
	return []column[d]{
		{title: "UUID", key: "uuid", value: func(x d) any { return x.UUID }},
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

func (s *shell) deviceList() *cobra.Command {
	var filter apiclient.DeviceFilter
	var types []string
	var page pageFlags
	var long bool
	cmd := &cobra.Command{Use: listVerb, Short: "List devices", Args: takes()}
	p := s.printer(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&filter.Hosts, hostKey, nil, "only on this host; repeatable")
	flags.StringSliceVar(&types, "type", nil, "only of this type, such as GPU or FPGA; repeatable")
	flags.StringSliceVar(&filter.Vendors, "vendor-id", nil, "only of this vendor, such as 10de; repeatable")
	flags.BoolVar(&long, "long", false, "more columns")
	page.addFlags(cmd, 0)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		filter.Types = asWords[cyborg.DeviceType](types)
		client, err := s.connect()
		if err != nil {
			return err
		}
		items, err := apiclient.Collect(client.Devices(cmd.Context(), filter, page.page()))
		if err != nil {
			return err
		}
		return printList(p, items, deviceColumns(), long)
	}
	return cmd
}

func (s *shell) deviceShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show DEVICE", Short: "Show one device with its accelerators", Args: takes("DEVICE")}
	p := s.printer(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, err := s.connect()
		if err != nil {
			return err
		}
		id, err := s.device(cmd.Context(), client, args[0])
		if err != nil {
			return err
		}
		device, err := client.Device(cmd.Context(), id)
		if err != nil {
			return err
		}
		lines := make([]string, len(device.Accelerators))
		for i, a := range device.Accelerators {
			lines[i] = a.UUID.String() + " " + a.Name + " " + string(a.Status)
		}
		return printShow(p, device, []string{"uuid", hostKey, "type", "vendor", "model"}, map[string]string{"accelerators": strings.Join(lines, "\n")})
	}
	return cmd
}
