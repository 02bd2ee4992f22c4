package cli

import (
	"maps"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// acceleratorSet is `accelerator set`.
func (s *shell) acceleratorSet() *cobra.Command {
	var specs specFlags
	var unset []string
	cmd := &cobra.Command{
		Use:   "set ACCELERATOR",
		Short: "Change what is recorded of an accelerator's abilities",
		Long: "Changes acc_specs. Keys of --capability are laid over the present tree. It is refused where somebody else\n" +
			"changed them since this command read them.",
		Args: takes("ACCELERATOR"),
	}

	p := s.printer(cmd)
	specs.addFlags(cmd)
	cmd.Flags().StringArrayVar(&unset, "unset-capability", nil, "take this top-level key out of the capability tree; repeatable")

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()

		patch, err := specs.specs(cmd)
		if err != nil {
			return err
		}
		if patch.Remote == nil && patch.Remotable == nil && patch.Type == nil && patch.Capability == nil && len(unset) == 0 {
			return usageErrorf(cmd, "nothing to set")
		}

		client, id, err := s.named(ctx, args[0])
		if err != nil {
			return err
		}

		present, etag, err := client.Accelerator(ctx, id)
		if err != nil {
			return err
		}

		// The API replaces the capability tree as a whole, so the change is merged into
		// the present tree here. If-Match below makes the API reject the request where
		// somebody else has changed the tree in between.
		if patch.Capability != nil || len(unset) > 0 {
			tree := cyborg.JSONObject(overlay(present.Specs.Capability, patch.Capability))
			for _, key := range unset {
				delete(tree, key)
			}
			patch.Capability = tree
		}

		var options []apiclient.Option
		if etag != "" {
			options = append(options, apiclient.IfMatch(etag))
		}

		changed, err := client.SetSpecs(ctx, id, patch, options...)
		if err != nil {
			return err
		}

		return p.accelerator(changed)
	}

	return cmd
}

// overlay merges one tree into a copy of another, leaf by leaf.
func overlay(base, over map[string]any) map[string]any {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]any{}
	}

	for key, value := range over {
		branch, ok := value.(map[string]any)
		below, okBelow := out[key].(map[string]any)
		if ok && okBelow {
			value = overlay(below, branch)
		}
		out[key] = value
	}

	return out
}

// maintenance holds the flags of commands that take something out of use for a
// while.
type maintenance struct {
	reason, until string
	length        time.Duration
}

// addFlags adds --reason, --until and --for.
func (m *maintenance) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&m.reason, "reason", "", "why (required)")
	flags.StringVar(&m.until, "until", "", "till this moment, such as 2026-01-31T18:00:00Z")
	flags.DurationVar(&m.length, "for", 0, "for so long, such as 2h30m")
	cmd.MarkFlagsMutuallyExclusive("until", "for")
}

// read checks the flags and returns the request.
func (m *maintenance) read(cmd *cobra.Command) (request apiclient.Maintaining, err error) {
	request.Reason = m.reason
	if strings.TrimSpace(m.reason) == "" {
		return request, usageErrorf(cmd, "--reason is missing; whoever meets this accelerator will want to know why")
	}

	if m.until != "" {
		if request.Until, err = time.Parse(time.RFC3339, m.until); err != nil {
			return request, usageErrorf(cmd, "--until %q is not a moment such as 2026-01-31T18:00:00Z", m.until)
		}
	}

	if cmd.Flags().Changed("for") {
		if m.length <= 0 {
			return request, usageErrorf(cmd, "--for %s is not a time ahead", m.length)
		}
		request.For = m.length.String()
	}

	return request, nil
}

// acceleratorMaintain is `accelerator maintain`.
func (s *shell) acceleratorMaintain() *cobra.Command {
	var flags maintenance
	cmd := &cobra.Command{
		Use:   "maintain ACCELERATOR --reason TEXT",
		Short: "Take an accelerator out of use for a while",
		Long: "New work is kept off the accelerator until --until, for the time of --for, or until `cyborg accelerator enable`.\n" +
			"Who holds it keeps it.",
		Args: takes("ACCELERATOR"),
	}

	p := s.printer(cmd)
	flags.addFlags(cmd)

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		request, err := flags.read(cmd)
		if err != nil {
			return err
		}

		client, id, err := s.named(cmd.Context(), args[0])
		if err != nil {
			return err
		}

		changed, err := client.Maintain(cmd.Context(), id, request)
		if err != nil {
			return err
		}

		return p.accelerator(changed)
	}

	return cmd
}

// acceleratorEnable is `accelerator enable`.
func (s *shell) acceleratorEnable() *cobra.Command {
	cmd := &cobra.Command{Use: "enable ACCELERATOR", Short: "End an accelerator's maintenance", Args: takes("ACCELERATOR")}

	p := s.printer(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, id, err := s.named(cmd.Context(), args[0])
		if err != nil {
			return err
		}

		changed, err := client.Enable(cmd.Context(), id)
		if err != nil {
			return err
		}

		return p.accelerator(changed)
	}

	return cmd
}
