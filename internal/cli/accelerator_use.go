package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// acceleratorUseVerbs are the verbs of `accelerator` by which accelerators come
// into service, are handed out, and leave.
func (s *shell) acceleratorUseVerbs() []verb {
	return []verb{
		{
			use: "create NAME", short: "Take an accelerator into service under a name",
			long: "Takes an inactive accelerator into service under NAME: the one that --accelerator names, or else the one that\n" +
				"has the name already, or else the best one that fits the flags.",
			examples: []string{
				"cyborg accelerator create crypto-1 --device-type FPGA --acc-type crypto",
				"cyborg accelerator create gpu-1 --host compute-1 --vendor-id 10de --capability memory.gib=16",
				"cyborg accelerator create gpu-2 --accelerator 0a1b2c3d    # that very one",
			},
			build: s.acceleratorCreate,
		},
		{
			use: "ready ACCELERATOR", short: "Take an accelerator into service under its current name",
			build: s.acceleratorOperation((*apiclient.Client).MakeReady),
		},
		{
			use: "retire ACCELERATOR", short: "Take an accelerator out of service",
			long:  "Has its driver uninstall an accelerator that nobody holds. It becomes inactive, and keeps its name.",
			build: s.acceleratorOperation((*apiclient.Client).Retire),
		},

		{
			use: "attach ACCELERATOR", short: "Give an accelerator to an instance, a host or a service",
			long: "Gives a free handle of the accelerator to the holder that you name, or else to its own host. On a host, its driver\n" +
				"makes the handle usable. An instance or a service gets it as it is: the hypervisor, or the service, does the rest.\n" +
				"Where `accelerator show` has a preparation, the driver prepares the handle for them, too; with --parameter you choose\n" +
				"how. It chooses what you leave out.",
			examples: []string{
				"cyborg accelerator attach crypto-1                                                   # to its own host",
				"cyborg accelerator attach crypto-1 --instance 5f5f5f5f-0000-4000-8000-00000000000f",
				"cyborg accelerator attach crypto-1 --service ovs --no-wait",
				"cyborg accelerator attach nic-1 --service ovs --parameter mac=52:54:00:12:34:56 --parameter vlan=5",
			},
			build: s.acceleratorAttach,
		},
		{
			use: "detach ACCELERATOR", short: "Take an accelerator back",
			long: "Takes back the handles of the holder that you name, or else of all holders. It is refused while the hardware is really\n" +
				"in use. The hardware stays in service.\n\n" +
				"--force frees it in the records if its host cannot take it back: the host or the device is gone, or an earlier\n" +
				"attempt left it in doubt. Nothing is done on the hardware, and nobody gets the accelerator until its host has\n" +
				"reported and settled it.",
			examples: []string{
				"cyborg accelerator detach crypto-1 --instance 5f5f5f5f-0000-4000-8000-00000000000f",
				"cyborg accelerator detach crypto-1 --yes            # from whoever has it",
				"cyborg accelerator detach crypto-1 --force --yes    # its host will not come back",
			},
			build: s.acceleratorDetach,
		},
		{
			use: "clean ACCELERATOR", short: "Clean what the last holders of an accelerator left on it",
			long: "Has its host clean now what is unclean. Nobody gets that before it is clean. Cyborg cleans by itself, and tries again\n" +
				"where it failed; so this is for after you have removed the cause. With --method it cleans more than is needed.\n\n" +
				"--declare says that it is clean without its host, such as after a wipe by hand, and why. Nothing is done on the\n" +
				"hardware: if it is not clean, its next holder finds what the last one left. History and `show` keep the reason.",
			examples: []string{
				"cyborg accelerator clean ssd-1",
				"cyborg accelerator clean ssd-1 --method scrub",
				`cyborg accelerator clean ssd-1 --declare "wiped by hand, ticket 12"`,
			},
			build: s.acceleratorClean,
		},
		{
			use: "program ACCELERATOR IMAGE", short: "Load an image into an accelerator",
			long: "Loads IMAGE: a path below the host's image directory, an http(s) URL, or an image in Glance (glance:UUID,\n" +
				"glance:function:ID). It is refused while anybody holds an accelerator that the image would disturb. If it fails, the\n" +
				"previous image is loaded again. Some images take effect only after a reboot or a power cycle of the host; `show` says so.",
			examples: []string{
				"cyborg accelerator program crypto-1 afu/aes.gbs",
				"cyborg accelerator program crypto-1 glance:5b7a31d2-6a0c-4a6b-9d33-6a58a2f0c1de --yes",
				"cyborg accelerator program crypto-1 https://images.example.org/aes.gbs --sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
			},
			build: s.acceleratorProgram,
		},
	}
}

// specFlags are the flags that become the acc_specs of a request.
type specFlags struct {
	// patch has only those values whose flags were given: an absent flag leaves its
	// value as it is.
	patch cyborg.SpecsPatch
}

// addFlags adds the flags of specs that both a request (create) and a
// setting (set) can have.
func (f *specFlags) addFlags(cmd *cobra.Command) {
	var remote, remotable bool
	var accType string
	var capabilities []string

	flags := cmd.Flags()
	flags.BoolVar(&remote, "remote", false, "it is reached over a network; --remote=false: it is not")
	flags.BoolVar(&remotable, "remotable", false, "it can be used from another host; --remotable=false: it cannot")
	flags.StringVar(&accType, "acc-type", "", "what it does, such as crypto")
	allowEmpty(flags, "acc-type") // an empty type clears it
	flags.StringArrayVar(&capabilities, "capability", nil, "KEY=VALUE of the capability tree, such as memory.gib=16; repeatable")

	before(cmd, func() (err error) {
		f.patch.Remote = given(flags, "remote", &remote)
		f.patch.Remotable = given(flags, "remotable", &remotable)
		f.patch.Type = given(flags, "acc-type", &accType)
		if len(capabilities) > 0 {
			f.patch.Capability, err = parseTree(cmd, "capability", capabilities)
		}
		return err
	})
}

// given returns the value of a flag that was given, and nil for another: the
// zero value of a flag can be asked for, too.
func given[T any](flags *pflag.FlagSet, name string, value *T) *T {
	if !flags.Changed(name) {
		return nil
	}
	return value
}

// acceleratorCreate is `accelerator create`, which provisions an accelerator
// under a name.
func (s *shell) acceleratorCreate(cmd *cobra.Command) {
	var specs specFlags
	var pick, host, kind, vendor, product string
	var num int

	specs.addFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&pick, "accelerator", "", "take this accelerator (UUID or current name)")
	flags.StringVar(&host, hostKey, "", "on this host")
	flags.StringVar(&kind, "device-type", "", ofThisType)
	flags.StringVar(&vendor, "vendor-id", "", "of this vendor, a PCI id such as 10de")
	flags.StringVar(&product, "product-id", "", "of this product, a PCI id such as 20b0")
	flags.IntVar(&num, "num", 0, "for at least this many consumers")

	before(cmd, func() (err error) {
		wanted := &specs.patch
		wanted.Num = given(flags, "num", &num)
		wanted.DeviceType = given(flags, "device-type", new(deviceType(kind)))
		if flags.Changed("vendor-id") {
			if wanted.VendorID, err = pciID(cmd, "vendor-id", vendor); err != nil {
				return err
			}
		}
		if flags.Changed("product-id") {
			wanted.ProductID, err = pciID(cmd, "product-id", product)
		}

		return err
	})

	s.operate(cmd, work{
		start: func(ctx context.Context, c call) (answer apiclient.Answer, err error) {
			request := apiclient.Provisioning{Name: c.args[0], Specs: specs.patch, Host: host}
			if pick != "" {
				if request.UUID, err = s.accelerator(ctx, c.client, pick); err != nil {
					return answer, err
				}
			}

			return c.client.Provision(ctx, request, apiclient.Async())
		},
		done: func(ctx context.Context, p *printer, c call, answer apiclient.Answer) (err error) {
			if c.id, err = provisioned(answer); err != nil {
				return err
			}
			return accelerators().show(ctx, p, c)
		},
	})
}

// provisioned returns the accelerator that a provision took. Without an
// operation, the answer itself names the accelerator.
func provisioned(answer apiclient.Answer) (uuid.UUID, error) {
	if answer.Operation == nil {
		return answer.Created()
	}
	id, err := uuid.Parse(answer.Operation.Accelerator())
	if err != nil {
		return uuid.UUID{}, cyborg.Errorf(cyborg.ErrInternal, "operation %s succeeded and does not say with which accelerator", answer.Operation.ID)
	}

	return id, nil
}

// acceleratorOperation builds a verb whose operation on an accelerator has no
// flags of its own.
func (s *shell) acceleratorOperation(start method[apiclient.Answer]) func(cmd *cobra.Command) {
	return func(cmd *cobra.Command) {
		s.operate(cmd, work{
			start: func(ctx context.Context, c call) (apiclient.Answer, error) {
				return start(c.client, ctx, c.id, apiclient.Async())
			},
			done: s.acceleratorAfter,
		})
	}
}

// acceleratorAfter prints an accelerator after an operation on it.
func (s *shell) acceleratorAfter(ctx context.Context, p *printer, c call, answer apiclient.Answer) error {
	if err := s.reportNoChange(ctx, c, answer); err != nil {
		return err
	}
	return accelerators().show(ctx, p, c)
}

// reportNoChange says where there was nothing to do, and who has the
// accelerator: the user may have meant another holder.
func (s *shell) reportNoChange(ctx context.Context, c call, answer apiclient.Answer) error {
	if answer.Operation != nil || s.quiet {
		return nil
	}

	a, _, err := c.client.Accelerator(ctx, c.id)
	if err != nil {
		return err
	}

	if len(a.Holders) == 0 {
		s.sayf("There was nothing to do.")
		return nil
	}

	var names []string
	for _, holder := range a.Holders {
		names = append(names, holder.String())
	}
	s.sayf("There was nothing to do: %s is attached to %s.", a.Name, strings.Join(names, ", "))
	return nil
}

// holderFlags name the present or future holder of a handle.
type holderFlags struct{ instance, host, service string }

// addFlags adds a flag for each kind of holder. The preposition starts their
// help: "give it to" or "only from".
func (f *holderFlags) addFlags(cmd *cobra.Command, preposition string) {
	flags := cmd.Flags()
	flags.StringVar(&f.instance, "instance", "", preposition+" this instance, a virtual machine (UUID)")
	flags.StringVar(&f.host, "host", "", preposition+" this host")
	flags.StringVar(&f.service, "service", "", preposition+" this infrastructure service, such as ovs")
	cmd.MarkFlagsMutuallyExclusive("instance", "host", "service")
}

// holder returns the holder that the flags name, or the zero Holder where none
// was given.
func (f *holderFlags) holder() cyborg.Holder {
	switch {
	case f.instance != "":
		return cyborg.Holder{Kind: cyborg.HolderInstance, ID: f.instance}
	case f.host != "":
		return cyborg.Holder{Kind: cyborg.HolderHost, ID: f.host}
	case f.service != "":
		return cyborg.Holder{Kind: cyborg.HolderService, ID: f.service}
	}

	return cyborg.Holder{}
}

// parameterFlags choose parameters of a handle.
type parameterFlags struct{ chosen map[string]string }

func (f *parameterFlags) addFlags(cmd *cobra.Command) {
	const name = "parameter"
	var settings []string
	cmd.Flags().StringArrayVar(&settings, name, nil, "NAME=VALUE of what the accelerator takes, such as vlan=5; repeatable")

	before(cmd, func() (err error) {
		f.chosen, err = parseParameters(cmd, name, settings)
		return err
	})
}

// acceleratorAttach is `accelerator attach`.
func (s *shell) acceleratorAttach(cmd *cobra.Command) {
	var to holderFlags
	var parameters parameterFlags
	to.addFlags(cmd, "give it to")
	parameters.addFlags(cmd)

	s.operate(cmd, work{
		start: func(ctx context.Context, c call) (apiclient.Answer, error) {
			return c.client.AttachWith(ctx, c.id, to.holder(), parameters.chosen, apiclient.Async())
		},
		done: s.acceleratorAfter,
	})
}

// acceleratorDetach is `accelerator detach`.
func (s *shell) acceleratorDetach(cmd *cobra.Command) {
	var from holderFlags
	var force bool
	from.addFlags(cmd, "only from")
	cmd.Flags().BoolVar(&force, "force", false, "free it in the records if its host cannot take it back")

	s.operate(cmd, work{
		losses: func(ctx context.Context, c call) ([]string, error) {
			var named *cyborg.Holder
			if holder := from.holder(); holder != (cyborg.Holder{}) {
				named = &holder
			}

			if named != nil && !force {
				return nil, nil // a user who types the holder knows who loses it
			}

			a, _, err := c.client.Accelerator(ctx, c.id)
			return holdings(a, named), err
		},
		start: func(ctx context.Context, c call) (apiclient.Answer, error) {
			if force {
				return c.client.ForceDetach(ctx, c.id, from.holder(), apiclient.Async())
			}
			return c.client.Detach(ctx, c.id, from.holder(), apiclient.Async())
		},
		// Only programs get the accelerator: people have seen that it was taken back.
		done: func(ctx context.Context, p *printer, c call, answer apiclient.Answer) error {
			if err := s.reportNoChange(ctx, c, answer); err != nil || !p.objects() {
				return err
			}
			return accelerators().show(ctx, p, c)
		},
	})
}

// holdings lists what a holder loses of an accelerator, or what all its holders
// lose where holder is nil.
func holdings(a apiclient.Accelerator, holder *cyborg.Holder) []string {
	var lines []string
	for _, h := range a.Handles {
		if h.Holder == nil || (holder != nil && *h.Holder != *holder) {
			continue
		}

		line := fmt.Sprintf("%s loses %s of %s", h.Holder.String(), h.Identity, a.Name)
		if !h.AttachedAt.IsZero() {
			line += ", which it has since " + timeText(h.AttachedAt)
		}
		lines = append(lines, line)
	}

	return lines
}

// acceleratorClean is `accelerator clean`.
func (s *shell) acceleratorClean(cmd *cobra.Command) {
	var what apiclient.Cleaning
	var method string
	flags := cmd.Flags()
	flags.StringVar(&method, "method", "", "clean at least so: reset, or scrub, which removes what is stored, too")
	flags.StringVar(&what.Declared, "declare", "", "it is clean without its host, for this reason")
	cmd.MarkFlagsMutuallyExclusive("method", "declare")

	before(cmd, func() error {
		what.Method = cyborg.CleanMethod(strings.ToLower(method))
		if methods := cyborg.CleanMethods(); method != "" && !slices.Contains(methods, what.Method) {
			return usageErrorf(cmd, "--method %q is none of %s", method, strings.Join(asTexts(methods), ", "))
		}
		if flags.Changed("declare") && strings.TrimSpace(what.Declared) == "" {
			return usageErrorf(cmd, "--declare is empty: others will want to know why")
		}
		return nil
	})

	s.operate(cmd, work{
		start: func(ctx context.Context, c call) (apiclient.Answer, error) {
			return c.client.Clean(ctx, c.id, what, apiclient.Async())
		},
		done: s.acceleratorAfter,
	})
}

// acceleratorProgram is `accelerator program`.
func (s *shell) acceleratorProgram(cmd *cobra.Command) {
	var image cyborg.Image
	flags := cmd.Flags()
	flags.StringVar(&image.SHA256, "sha256", "", "checksum that the image must have; required for http(s)")
	flags.StringVar(&image.ID, "id", "", "bitstream id to record (default: the checksum)")
	flags.BoolVar(&image.WholeDevice, "whole-device", false, "the image is for the whole device and disturbs all its accelerators")

	s.operate(cmd, work{
		losses: func(ctx context.Context, c call) ([]string, error) { return overwritten(ctx, c, image) },
		start: func(ctx context.Context, c call) (apiclient.Answer, error) {
			image.Source = c.args[1]
			return c.client.Program(ctx, c.id, image, apiclient.Async())
		},
		done: func(ctx context.Context, p *printer, c call, answer apiclient.Answer) error {
			s.reportPending(answer)
			return s.acceleratorAfter(ctx, p, c, answer)
		},
	})
}

// reportPending says where the image that a program has loaded does not take effect yet.
func (s *shell) reportPending(answer apiclient.Answer) {
	if answer.Operation == nil || s.quiet {
		return
	}
	if until, ok := answer.Operation.Result["pending"].(string); ok {
		s.sayf("The image was loaded. It takes effect %s.", cyborg.Activation(until).Text(answer.Operation.Host))
	}
}

// overwritten lists the images that a new image replaces. An image of the whole
// device replaces those of all its accelerators. Loading the same image again
// loses nothing.
func overwritten(ctx context.Context, c call, image cyborg.Image) ([]string, error) {
	a, _, err := c.client.Accelerator(ctx, c.id)
	if err != nil {
		return nil, err
	}

	disturbed := []apiclient.Accelerator{a}
	if image.WholeDevice {
		device, err := c.client.Device(ctx, a.DeviceUUID)
		if err != nil {
			return nil, err
		}
		disturbed = device.Accelerators
	}

	var losses []string
	for _, a := range disturbed {
		if last := a.LoadedLast(); last != "" && last != cmp.Or(image.ID, image.SHA256) {
			losses = append(losses, fmt.Sprintf("accelerator %s on %s loses its image %s", a.Name, a.Host, last))
		}
	}

	return losses, nil
}
