package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// specFlags are the flags that become the acc_specs of a request.
type specFlags struct {
	patch        cyborg.SpecsPatch
	remote       bool
	remotable    bool
	accType      string
	capabilities []string
}

// addFlags adds the flags of specs that both a wish (create) and a setting
// (update) can have.
func (f *specFlags) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&f.remote, "remote", false, "reached over a network (--remote=false: not)")
	flags.BoolVar(&f.remotable, "remotable", false, "usable from another host (--remotable=false: not)")
	flags.StringVar(&f.accType, "acc-type", "", "what it does, such as crypto")
	allowEmpty(flags, "acc-type") // an empty type clears it
	flags.StringArrayVar(&f.capabilities, "capability", nil, "KEY=VALUE of the capability tree, such as memory.gib=16; repeatable")
}

// specs returns a patch with only those values whose flags were given: an
// absent flag leaves its value as it is.
func (f *specFlags) specs(cmd *cobra.Command) (cyborg.SpecsPatch, error) {
	patch := f.patch
	flags := cmd.Flags()
	if flags.Changed("remote") {
		patch.Remote = &f.remote
	}
	if flags.Changed("remotable") {
		patch.Remotable = &f.remotable
	}
	if flags.Changed("acc-type") {
		patch.Type = &f.accType
	}

	if len(f.capabilities) > 0 {
		tree, err := parseTree(cmd, "capability", f.capabilities)
		if err != nil {
			return patch, err
		}
		patch.Capability = tree
	}

	return patch, nil
}

// acceleratorCreate is `accelerator create`, which provisions an accelerator
// under a name.
func (s *shell) acceleratorCreate() *cobra.Command {
	var specs specFlags
	var pick, host, kind, vendor, product string
	var num int
	var wait waiting

	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Take an accelerator into service under a name",
		Long: "Takes an inactive accelerator into service under NAME: the one that --accelerator names, or else the one that\n" +
			"has NAME already, or else the best that satisfies the wishes.",
		Args: takes("NAME"),
	}

	p := s.printer(cmd)
	wait.addFlags(cmd)
	specs.addFlags(cmd)

	flags := cmd.Flags()
	flags.StringVar(&pick, "accelerator", "", "take this one (UUID or present name)")
	flags.StringVar(&host, hostKey, "", "on this host")
	flags.StringVar(&kind, "device-type", "", "of this type, such as GPU or FPGA")
	flags.StringVar(&vendor, "vendor-id", "", "of this vendor, a PCI id such as 10de")
	flags.StringVar(&product, "product-id", "", "of this product, a PCI id such as 20b0")
	flags.IntVar(&num, "num", 0, "for at least so many consumers")

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		wish, err := specs.specs(cmd)
		if err != nil {
			return err
		}

		// Only flags that were given become wishes: the zero value of a flag is a wish,
		// too.
		if flags.Changed("device-type") {
			wish.DeviceType = new(deviceType(kind))
		}
		if flags.Changed("vendor-id") {
			if wish.VendorID, err = pciID(cmd, "vendor-id", vendor); err != nil {
				return err
			}
		}
		if flags.Changed("product-id") {
			if wish.ProductID, err = pciID(cmd, "product-id", product); err != nil {
				return err
			}
		}
		if flags.Changed("num") {
			wish.Num = &num
		}

		request := apiclient.Provisioning{Name: args[0], Specs: wish, Host: host}
		client, err := s.connect()
		if err != nil {
			return err
		}
		if pick != "" {
			if request.UUID, err = s.accelerator(ctx, client, pick); err != nil {
				return err
			}
		}

		answer, err := client.Provision(ctx, request, apiclient.Async())
		if err != nil {
			return err
		}

		return s.finish(ctx, p, wait, answer, func(operation *apiclient.Operation) error {
			id, err := provisioned(answer, operation)
			if err != nil {
				return err
			}
			return p.acceleratorOf(ctx, client, id)
		})
	}

	return cmd
}

// provisioned returns the accelerator that a provision took. Nobody waited for
// the operation where it is nil; the answer names the accelerator then.
func provisioned(answer apiclient.Answer, operation *apiclient.Operation) (uuid.UUID, error) {
	if operation == nil {
		return answer.Created()
	}
	id, err := uuid.Parse(acceleratorIn(*operation))
	if err != nil {
		return uuid.UUID{}, cyborg.Errorf(cyborg.ErrInternal, "operation %s succeeded and does not say with which accelerator", operation.ID)
	}

	return id, nil
}

// change is a command that runs an operation on one accelerator.
type change struct {
	// shows prints the accelerator at the end in every format, and not only as JSON
	// and YAML.
	shows bool
	// named picks the argument that names the accelerator.
	named func(args []string) string
	// start sends the request.
	start func(ctx context.Context, client *apiclient.Client, id uuid.UUID, args []string) (apiclient.Answer, error)
	// losses lists who loses what, for the user to agree to; it is nil for a
	// command by which nobody ever loses anything.
	losses func(ctx context.Context, client *apiclient.Client, id uuid.UUID) ([]string, error)
}

func first(args []string) string  { return args[0] }
func second(args []string) string { return args[1] }

// operate completes a command that runs an operation: it asks for consent,
// starts the operation, waits as the flags say, and prints the outcome.
func (s *shell) operate(cmd *cobra.Command, c change) *cobra.Command {
	var wait waiting
	var agreed consent

	p := s.printer(cmd)
	wait.addFlags(cmd)
	if c.losses != nil {
		agreed.addFlags(cmd)
	}

	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		client, id, err := s.named(ctx, c.named(args))
		if err != nil {
			return err
		}

		// With --yes the losses need not be read at all.
		if c.losses != nil && !agreed.yes {
			losses, err := c.losses(ctx, client, id)
			if err != nil {
				return err
			}
			if err := s.agree(ctx, agreed, losses); err != nil {
				return err
			}
		}

		answer, err := c.start(ctx, client, id, args)
		if err != nil {
			return err
		}

		return s.finish(ctx, p, wait, answer, func(operation *apiclient.Operation) error {
			if operation == nil && !s.quiet {
				if err := s.reportNoChange(ctx, client, id); err != nil {
					return err
				}
			}

			if !c.shows && !p.objects() {
				return nil
			}

			return p.acceleratorOf(ctx, client, id)
		})
	}

	return cmd
}

// reportNoChange says that there was nothing to do, and who has the
// accelerator: the user may have meant another holder.
func (s *shell) reportNoChange(ctx context.Context, client *apiclient.Client, id uuid.UUID) error {
	a, _, err := client.Accelerator(ctx, id)
	if err != nil {
		return err
	}

	if len(a.Holders) == 0 {
		s.sayf("There was nothing to do.")
		return nil
	}

	var names []string
	for _, holder := range a.Holders {
		names = append(names, fmt.Sprintf("%s %s", holder.Kind, holder.ID))
	}
	s.sayf("There was nothing to do: %s is attached to %s.", a.Name, strings.Join(names, ", "))
	return nil
}

// acceleratorReady is `accelerator ready`.
func (s *shell) acceleratorReady() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ready ACCELERATOR",
		Short: "Take an accelerator into service under its present name",
		Args:  takes("ACCELERATOR"),
	}

	return s.operate(cmd, change{
		shows: true, named: first,
		start: func(ctx context.Context, client *apiclient.Client, id uuid.UUID, _ []string) (apiclient.Answer, error) {
			return client.MakeReady(ctx, id, apiclient.Async())
		},
	})
}

// acceleratorRetire is `accelerator retire`.
func (s *shell) acceleratorRetire() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retire ACCELERATOR",
		Short: "Take an accelerator out of service",
		Long:  "Has its driver uninstall an accelerator that nobody holds. It is inactive then, and keeps its name.",
		Args:  takes("ACCELERATOR"),
	}

	return s.operate(cmd, change{
		shows: true, named: first,
		start: func(ctx context.Context, client *apiclient.Client, id uuid.UUID, _ []string) (apiclient.Answer, error) {
			return client.Retire(ctx, id, apiclient.Async())
		},
	})
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

// acceleratorAttach is `accelerator attach`.
func (s *shell) acceleratorAttach() *cobra.Command {
	var to holderFlags
	cmd := &cobra.Command{
		Use:   "attach ACCELERATOR",
		Short: "Give an accelerator to an instance, a host or a service",
		Long: "Gives a free handle of the accelerator to whoever is named; to its own host where nobody is. On a host its driver\n" +
			"makes the handle usable. An instance or a service gets it as it is: the hypervisor, or the service, does the rest.",
		Args: takes("ACCELERATOR"),
	}

	to.addFlags(cmd, "give it to")

	return s.operate(cmd, change{
		shows: true, named: first,
		start: func(ctx context.Context, client *apiclient.Client, id uuid.UUID, _ []string) (apiclient.Answer, error) {
			return client.Attach(ctx, id, to.holder(), apiclient.Async())
		},
	})
}

// acceleratorDetach is `accelerator detach`.
func (s *shell) acceleratorDetach() *cobra.Command {
	var from holderFlags
	var force bool
	cmd := &cobra.Command{
		Use:   "detach ACCELERATOR",
		Short: "Take an accelerator back",
		Long: "Takes back what whoever is named holds of the accelerator; what anybody holds, where nobody is named.\n" +
			"It is refused while the hardware is really in use. The hardware stays in service.\n\n" +
			"--force frees it in the records where its host cannot take it back: the host is gone, or the device is, or an\n" +
			"earlier try left it in doubt. Nothing is done on the hardware, and nobody gets the accelerator until its host has\n" +
			"been heard and has settled it.",
		Args: takes("ACCELERATOR"),
	}

	from.addFlags(cmd, "only from")
	cmd.Flags().BoolVar(&force, "force", false, "free it in the records, where its host cannot take it back")

	return s.operate(cmd, change{
		named: first,
		start: func(ctx context.Context, client *apiclient.Client, id uuid.UUID, _ []string) (apiclient.Answer, error) {
			if force {
				return client.ForceDetach(ctx, id, from.holder(), apiclient.Async())
			}
			return client.Detach(ctx, id, from.holder(), apiclient.Async())
		},
		losses: func(ctx context.Context, client *apiclient.Client, id uuid.UUID) ([]string, error) {
			var named *cyborg.Holder
			if holder := from.holder(); holder != (cyborg.Holder{}) {
				named = &holder
			}

			if named != nil && !force {
				return nil, nil // a user who types the holder knows who loses it
			}

			a, _, err := client.Accelerator(ctx, id)
			return holdings(a, named), err
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

		line := fmt.Sprintf("%s loses %s of %s", holderText(*h.Holder), h.Identity, a.Name)
		if !h.AttachedAt.IsZero() {
			line += ", which it has since " + timeText(h.AttachedAt)
		}
		lines = append(lines, line)
	}

	return lines
}

// acceleratorProgram is `accelerator program`.
func (s *shell) acceleratorProgram() *cobra.Command {
	var image cyborg.Image
	cmd := &cobra.Command{
		Use:   "program ACCELERATOR IMAGE",
		Short: "Load an image into an accelerator",
		Long: "Loads IMAGE: a path below the host's image directory, an http(s) URL, or an image in Glance (glance:UUID,\n" +
			"glance:function:ID). It is refused while anybody holds anything that the image would disturb. If it fails, the previous image comes back.",
		Args: takes("ACCELERATOR", "IMAGE"),
	}

	flags := cmd.Flags()
	flags.StringVar(&image.SHA256, "sha256", "", "checksum that the image must have; needed for http(s)")
	flags.StringVar(&image.ID, "id", "", "what to record as bitstream id; the checksum where empty")
	flags.BoolVar(&image.WholeDevice, "whole-device", false, "the image is for the whole device and disturbs all its accelerators")

	return s.operate(cmd, change{
		shows: true, named: first,
		start: func(ctx context.Context, client *apiclient.Client, id uuid.UUID, args []string) (apiclient.Answer, error) {
			image.Source = args[1]
			return client.Program(ctx, id, image, apiclient.Async())
		},
		losses: func(ctx context.Context, client *apiclient.Client, id uuid.UUID) ([]string, error) {
			return overwritten(ctx, client, id, image)
		},
	})
}

// overwritten lists the images that a new image replaces. An image of the whole
// device replaces those of all its accelerators. Loading the same image again
// loses nothing.
func overwritten(ctx context.Context, client *apiclient.Client, id uuid.UUID, image cyborg.Image) ([]string, error) {
	a, _, err := client.Accelerator(ctx, id)
	if err != nil {
		return nil, err
	}

	disturbed := []apiclient.Accelerator{a}
	if image.WholeDevice {
		device, err := client.Device(ctx, a.DeviceUUID)
		if err != nil {
			return nil, err
		}
		disturbed = device.Accelerators
	}

	var losses []string
	for _, a := range disturbed {
		if a.BitstreamID != "" && a.BitstreamID != cmp.Or(image.ID, image.SHA256) {
			losses = append(losses, fmt.Sprintf("accelerator %s on %s loses its image %s", a.Name, a.Host, a.BitstreamID))
		}
	}

	return losses, nil
}
