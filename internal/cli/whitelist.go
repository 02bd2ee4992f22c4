package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// hostWhitelist is `host whitelist`: it shows the whitelist, or previews a new
// one, asks for consent, and applies it.
func (s *shell) hostWhitelist() *cobra.Command {
	var (
		agreed              consent
		wait                waiting
		none, dryRun, force bool
	)
	cmd := &cobra.Command{
		Use:   "whitelist HOST [ACCELERATOR...]",
		Short: "Say which PCI devices of a host its Nova gives out by itself",
		Long: "Has the host's agent write [pci] device_spec of these accelerators into a drop-in of nova.conf, in place of those that\n" +
			"it has; shows the difference, and asks. Each is named by UUID, name or PCI address, or by its device's UUID, which\n" +
			"means all that is on the device, and may be followed by ,KEY=VALUE: physical_network, resource_class, trait\n" +
			"(repeatable), trusted, remote_managed, managed and live_migratable, as in Nova's device_spec. Only what is inactive\n" +
			"can be given to Nova. Without any, it shows what the whitelist has.",
		Args: takesMore("ACCELERATOR", "HOST"),
	}

	p := s.printer(cmd)
	agreed.addFlags(cmd)
	wait.addFlags(cmd)

	flags := cmd.Flags()
	flags.BoolVar(&none, "none", false, "no device: remove the file")
	flags.BoolVar(&dryRun, "dry-run", false, "only print the difference")
	flags.BoolVar(&force, "force", false, "replace a file that somebody else wrote or changed")

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()

		if none && len(args) > 1 {
			return usageErrorf(cmd, "--none and a device exclude each other")
		}
		devices, err := whitelistDevices(cmd, args[1:])
		if err != nil {
			return err
		}

		client, err := s.connect()
		if err != nil {
			return err
		}

		if len(devices) == 0 && !none {
			return showWhitelist(ctx, client, p, args[0])
		}

		preview, err := client.PreviewWhitelist(ctx, args[0], devices)
		if err != nil {
			return err
		}

		if dryRun && p.objects() {
			return p.document(preview)
		}
		if dryRun {
			return p.write(preview.Diff)
		}

		// The difference goes to standard error with the question, so that standard
		// output has the result only.
		s.write(preview.Diff)
		if err := s.agree(ctx, agreed, whitelistLosses(preview, force)); err != nil {
			return err
		}

		answer, err := client.ApplyWhitelist(ctx, args[0], devices, force, apiclient.Async())
		if err != nil {
			return err
		}

		return s.finish(ctx, p, wait, answer, func(operation *apiclient.Operation) error {
			after := object{{hostKey, args[0]}}
			texts := map[string]string{}
			if operation != nil {
				for _, key := range slices.Sorted(maps.Keys(operation.Result)) {
					after = append(after, member{key, operation.Result[key]})
				}
				texts["notes"] = lines(operation.Result["notes"])
			}

			return printShow(p, after, []string{hostKey, "file", "changed"}, texts)
		})
	}

	return cmd
}

// whitelistLosses describes what applying a whitelist changes on the host, for
// the user to agree to; nil where nothing changes.
func whitelistLosses(preview cyborg.WhitelistPreview, force bool) []string {
	if !preview.Changed {
		return nil
	}

	losses := []string{fmt.Sprintf("nova-compute on %s gets this with its next start", preview.Host)}
	if preview.Foreign != "" && force {
		losses = append(losses, fmt.Sprintf("%s is replaced, although %s", preview.File, preview.Foreign))
	}

	return losses
}

// lines puts the items of a JSON list on a line each.
func lines(list any) string {
	var out []string
	items, _ := list.([]any)
	for _, item := range items {
		out = append(out, fmt.Sprint(item))
	}
	return strings.Join(out, "\n")
}

// showWhitelist prints the whitelist that the records have.
func showWhitelist(ctx context.Context, client *apiclient.Client, p *printer, host string) error {
	devices, err := client.Whitelist(ctx, host)
	if err != nil {
		return err
	}

	var shown []string
	for _, d := range devices {
		shown = append(shown, strings.Join(append([]string{strings.Join(d.Addresses, " "), d.Name}, specWords(d.Spec)...), ", "))
	}

	after := object{{hostKey, host}, {"devices", devices}}
	return printShow(p, after, []string{hostKey, "devices"}, map[string]string{"devices": strings.Join(shown, "\n")})
}

// specFlag is one of the boolean members of a device_spec.
type specFlag struct {
	key  string
	flag func(*cyborg.NovaSpec) **bool
}

// specFlagsOfNova are the boolean members of Nova's device_spec, with where a
// spec keeps them.
func specFlagsOfNova() []specFlag {
	return []specFlag{
		{"trusted", func(s *cyborg.NovaSpec) **bool { return &s.Trusted }},
		{"remote_managed", func(s *cyborg.NovaSpec) **bool { return &s.RemoteManaged }},
		{"managed", func(s *cyborg.NovaSpec) **bool { return &s.Managed }},
		{"live_migratable", func(s *cyborg.NovaSpec) **bool { return &s.LiveMigratable }},
	}
}

// specWords formats a spec as the KEY=VALUE words that whitelistDevices parses.
func specWords(spec cyborg.NovaSpec) []string {
	var out []string

	if spec.PhysicalNetwork != "" {
		out = append(out, "physical_network="+spec.PhysicalNetwork)
	}
	if spec.ResourceClass != "" {
		out = append(out, "resource_class="+spec.ResourceClass)
	}

	for _, trait := range spec.Traits {
		out = append(out, "trait="+trait)
	}

	for _, f := range specFlagsOfNova() {
		if is := *f.flag(&spec); is != nil {
			out = append(out, f.key+"="+strconv.FormatBool(*is))
		}
	}

	return out
}

// whitelistDevices parses arguments of the form DEVICE[,KEY=VALUE...].
func whitelistDevices(cmd *cobra.Command, args []string) ([]apiclient.WhitelistDevice, error) {
	devices := []apiclient.WhitelistDevice{}
	for _, arg := range args {
		parts := strings.Split(arg, ",")
		device := apiclient.WhitelistDevice{Device: parts[0]}

		for _, part := range parts[1:] {
			key, value, ok := strings.Cut(part, "=")
			if !ok || value == "" || !setSpecWord(&device.Spec, key, value) {
				return nil, usageErrorf(cmd, "%q of %s is not KEY=VALUE; KEY is physical_network, resource_class, trait, or one of trusted, remote_managed, managed and live_migratable with yes or no", part, parts[0])
			}
		}

		devices = append(devices, device)
	}

	return devices, nil
}

// setSpecWord sets one KEY=VALUE of a spec, and reports whether the key and the
// value are valid.
func setSpecWord(spec *cyborg.NovaSpec, key, value string) bool {
	switch key {
	case "physical_network":
		spec.PhysicalNetwork = value
		return true
	case "resource_class":
		spec.ResourceClass = value
		return true
	case "trait":
		spec.Traits = append(spec.Traits, value)
		return true
	}

	is, known := map[string]bool{"true": true, "yes": true, "false": false, "no": false}[value]

	for _, f := range specFlagsOfNova() {
		if f.key == key && known {
			*f.flag(spec) = &is
			return true
		}
	}

	return false
}
