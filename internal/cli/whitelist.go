package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// hostWhitelist is `host whitelist`: it shows the whitelist, or previews a new
// one, asks for consent, and applies it.
func (s *shell) hostWhitelist(cmd *cobra.Command) {
	var agreed consent
	var wait waiting
	var none, dryRun, force bool

	p := s.printer(cmd)
	agreed.addFlags(cmd)
	wait.addFlags(cmd)

	flags := cmd.Flags()
	flags.BoolVar(&none, "none", false, "give Nova no device, and remove the file")
	flags.BoolVar(&dryRun, "dry-run", false, "only print the difference")
	flags.BoolVar(&force, "force", false, "replace a file that somebody else wrote or changed")

	var devices []apiclient.WhitelistDevice
	before(cmd, func() (err error) {
		named := cmd.Flags().Args()[1:]
		if none && len(named) > 0 {
			return usageErrorf(cmd, "--none and a device exclude each other")
		}
		devices, err = whitelistDevices(cmd, named)
		return err
	})

	s.run(cmd, func(ctx context.Context, c call) error {
		host := c.args[0]
		if len(devices) == 0 && !none {
			return showWhitelist(ctx, c.client, p, host)
		}

		preview, err := c.client.PreviewWhitelist(ctx, host, devices)
		switch {
		case err != nil:
			return err
		case dryRun && p.objects():
			return p.document(preview)
		case dryRun:
			return p.write(clean(preview.Diff))
		}

		// The difference goes to standard error with the question, so that standard
		// output has the result only. Its text is the host's.
		s.write(clean(preview.Diff))
		if err := s.agree(ctx, agreed, whitelistLosses(preview, force)); err != nil {
			return err
		}

		answer, err := c.client.ApplyWhitelist(ctx, host, devices, force, apiclient.Async())
		if err != nil {
			return err
		}

		return s.finish(ctx, p, c, wait, answer, work{done: whitelistAfter})
	})
}

// whitelistAfter prints what applying a whitelist did on the host.
func whitelistAfter(_ context.Context, p *printer, c call, answer apiclient.Answer) error {
	texts := map[string]string{}
	if answer.Operation != nil {
		texts["notes"] = lines(answer.Operation.Result["notes"])
	}

	return printShow(p, withResult(object{{hostKey, c.args[0]}}, answer), []string{hostKey, "file", "changed"}, texts)
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
