package cli

import (
	"context"
	"maps"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// acceleratorAdminVerbs are the verbs of `accelerator` for those who look after
// the hardware.
func (s *shell) acceleratorAdminVerbs() []verb {
	return []verb{
		{
			use: "set ACCELERATOR", short: "Change the recorded abilities of an accelerator",
			long: "Changes acc_specs. --capability changes the keys that it names, and no others. It is refused if somebody else has\n" +
				"changed acc_specs in the meantime.",
			examples: []string{"cyborg accelerator set crypto-1 --acc-type crypto --capability memory.gib=16"},
			build:    s.acceleratorSet,
		},
		{
			use: "maintain ACCELERATOR --reason TEXT", short: "Take an accelerator out of use for a while",
			long: "Keeps new work off the accelerator until --until, for the time of --for, or until `cyborg accelerator enable`.\n" +
				"Whoever holds it keeps it.",
			examples: []string{`cyborg accelerator maintain crypto-1 --reason "new fan" --for 2h`},
			build:    maintain(s, accelerators(), (*apiclient.Client).Maintain),
		},
		{
			use: "enable ACCELERATOR", short: "End an accelerator's maintenance",
			build: change(s, accelerators(), (*apiclient.Client).Enable),
		},
	}
}

// acceleratorSet is `accelerator set`.
func (s *shell) acceleratorSet(cmd *cobra.Command) {
	var specs specFlags
	var unset []string

	p := s.printer(cmd)
	specs.addFlags(cmd)
	cmd.Flags().StringArrayVar(&unset, "unset-capability", nil, "remove this top-level key from the capability tree; repeatable")

	before(cmd, func() error {
		if patch := specs.patch; patch.Remote == nil && patch.Remotable == nil && patch.Type == nil && patch.Capability == nil && len(unset) == 0 {
			return usageErrorf(cmd, "nothing to set")
		}
		return nil
	})

	s.run(cmd, func(ctx context.Context, c call) error {
		present, etag, err := c.client.Accelerator(ctx, c.id)
		if err != nil {
			return err
		}

		// The API replaces the capability tree as a whole, so the change is merged into
		// the present tree here. If-Match below makes the API reject the request where
		// somebody else has changed the tree in between.
		patch := specs.patch
		if patch.Capability != nil || len(unset) > 0 {
			patch.Capability = overlay(present.Specs.Capability, patch.Capability)
			for _, key := range unset {
				delete(patch.Capability, key)
			}
		}

		var options []apiclient.Option
		if etag != "" {
			options = append(options, apiclient.IfMatch(etag))
		}

		changed, err := c.client.SetSpecs(ctx, c.id, patch, options...)
		if err != nil {
			return err
		}

		return accelerators().render(p, changed)
	})
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

// maintain builds a verb that takes a thing out of use for a while.
func maintain[T any](s *shell, of thing[T],
	do func(client *apiclient.Client, ctx context.Context, id uuid.UUID, what apiclient.Maintaining, options ...apiclient.Option) (T, error),
) func(cmd *cobra.Command) {
	return func(cmd *cobra.Command) {
		var request apiclient.Maintaining
		change(s, of, func(client *apiclient.Client, ctx context.Context, id uuid.UUID, _ ...apiclient.Option) (T, error) {
			return do(client, ctx, id, request)
		})(cmd)
		addMaintenance(cmd, &request)
	}
}

// addMaintenance adds --reason, --until and --for, which fill the request.
func addMaintenance(cmd *cobra.Command, request *apiclient.Maintaining) {
	var until string
	var length time.Duration

	flags := cmd.Flags()
	flags.StringVar(&request.Reason, "reason", "", "why (required)")
	flags.StringVar(&until, "until", "", "until this time, such as 2026-01-31T18:00:00Z")
	flags.DurationVar(&length, "for", 0, "for this long, such as 2h30m")
	cmd.MarkFlagsMutuallyExclusive("until", "for")

	before(cmd, func() (err error) {
		if strings.TrimSpace(request.Reason) == "" {
			return usageErrorf(cmd, "--reason is missing: others will want to know why")
		}

		if until != "" {
			if request.Until, err = time.Parse(time.RFC3339, until); err != nil {
				return usageErrorf(cmd, "--until %q is not a time such as 2026-01-31T18:00:00Z", until)
			}
		}

		if flags.Changed("for") {
			if length <= 0 {
				return usageErrorf(cmd, "--for %s is not a positive duration", length)
			}
			request.For = length.String()
		}

		return nil
	})
}
