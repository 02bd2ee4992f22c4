package cli

import (
	"context"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// specFlags are the flags of acc_specs.
type specFlags struct {
	patch        cyborg.SpecsPatch
	remote       bool
	remotable    bool
	accType      string
	capabilities []string
}

// addFlags adds what an operator may wish for as well as set.
func (f *specFlags) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&f.remote, "remote", false, "reached over a network (--remote=false: not)")
	flags.BoolVar(&f.remotable, "remotable", false, "usable from another host (--remotable=false: not)")
	flags.StringVar(&f.accType, "acc-type", "", "what it does, such as crypto")
	allowEmpty(flags, "acc-type") // a type that is none
	flags.StringArrayVar(&f.capabilities, "capability", nil, "KEY=VALUE of the capability tree, such as memory.gib=16; repeatable")
}

// specs is the patch of the flags that were given.
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

func (s *shell) acceleratorCreate() *cobra.Command {
	var specs specFlags
	var pick, host, deviceType, vendor, product string
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
	flags.StringVar(&deviceType, "device-type", "", "of this type, such as GPU or FPGA")
	flags.StringVar(&vendor, "vendor-id", "", "of this vendor, such as 10de")
	flags.StringVar(&product, "product-id", "", "of this product")
	flags.IntVar(&num, "num", 0, "for at least so many consumers")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		wish, err := specs.specs(cmd)
		if err != nil {
			return err
		}
		if flags.Changed("device-type") {
			kind := cyborg.DeviceType(deviceType)
			wish.DeviceType = &kind
		}
		if flags.Changed("vendor-id") {
			wish.VendorID = &vendor
		}
		if flags.Changed("product-id") {
			wish.ProductID = &product
		}
		if flags.Changed("num") {
			wish.Num = &num
		}
		what := apiclient.Provisioning{Name: args[0], Specs: wish, Host: host}
		client, err := s.connect()
		if err != nil {
			return err
		}
		if pick != "" {
			if what.UUID, err = s.accelerator(ctx, client, pick); err != nil {
				return err
			}
		}
		answer, err := client.Provision(ctx, what, apiclient.Async())
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

// provisioned is which accelerator a provision took.
func provisioned(answer apiclient.Answer, operation *apiclient.Operation) (uuid.UUID, error) {
	if operation == nil {
		return answer.Created()
	}
	id, err := uuid.Parse(subject(*operation, cyborg.SubjectAccelerator))
	if err != nil {
		return uuid.UUID{}, cyborg.Errorf(cyborg.Internal, "operation %s succeeded and does not say with which accelerator", operation.ID)
	}
	return id, nil
}

// operate makes a verb that runs an operation on one accelerator and then prints the accelerator, if it shows it.
func (s *shell) operate(cmd *cobra.Command, shows bool, start func(context.Context, *apiclient.Client, uuid.UUID, []string) (apiclient.Answer, error)) *cobra.Command {
	var wait waiting
	p := s.printer(cmd)
	wait.addFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		client, id, err := s.named(ctx, args[0])
		if err != nil {
			return err
		}
		answer, err := start(ctx, client, id, args[1:])
		if err != nil {
			return err
		}
		return s.finish(ctx, p, wait, answer, func(operation *apiclient.Operation) error {
			if operation == nil && !s.quiet {
				s.sayf("There was nothing to do.")
			}
			if !shows && !p.objects() {
				return nil
			}
			return p.acceleratorOf(ctx, client, id)
		})
	}
	return cmd
}

func (s *shell) acceleratorReady() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ready ACCELERATOR",
		Short: "Take an accelerator into service under its present name",
		Args:  takes("ACCELERATOR"),
	}
	return s.operate(cmd, true, func(ctx context.Context, client *apiclient.Client, id uuid.UUID, _ []string) (apiclient.Answer, error) {
		return client.MakeReady(ctx, id, apiclient.Async())
	})
}

// holderFlags name who holds, or is to hold, a handle.
type holderFlags struct{ instance, host, service string }

// addFlags adds a flag for each kind of holder; the preposition says which way the accelerator goes.
func (f *holderFlags) addFlags(cmd *cobra.Command, preposition string) {
	flags := cmd.Flags()
	flags.StringVar(&f.instance, "instance", "", preposition+" this virtual machine (UUID)")
	flags.StringVar(&f.host, "host", "", preposition+" this host")
	flags.StringVar(&f.service, "service", "", preposition+" this infrastructure service, such as ovs")
	cmd.MarkFlagsMutuallyExclusive("instance", "host", "service")
}

// holder is the one that was named, or the zero Holder.
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

func (s *shell) acceleratorAttach() *cobra.Command {
	var to holderFlags
	cmd := &cobra.Command{
		Use:   "attach ACCELERATOR",
		Short: "Give an accelerator to a virtual machine, a host or a service",
		Long: "Gives a free handle of the accelerator to whoever is named; to its own host where nobody is. On a host its driver\n" +
			"makes the handle usable. An instance or a service gets it as it is: the hypervisor, or the service, does the rest.",
		Args: takes("ACCELERATOR"),
	}
	to.addFlags(cmd, "give it to")
	return s.operate(cmd, true, func(ctx context.Context, client *apiclient.Client, id uuid.UUID, _ []string) (apiclient.Answer, error) {
		return client.Attach(ctx, id, to.holder(), apiclient.Async())
	})
}

func (s *shell) acceleratorDetach() *cobra.Command {
	var from holderFlags
	cmd := &cobra.Command{
		Use:   "detach ACCELERATOR",
		Short: "Take an accelerator back",
		Long: "Takes back what whoever is named holds of the accelerator; what anybody holds, where nobody is named.\n" +
			"It is refused while the hardware is really in use. The hardware stays in service.",
		Args: takes("ACCELERATOR"),
	}
	from.addFlags(cmd, "only from")
	return s.operate(cmd, false, func(ctx context.Context, client *apiclient.Client, id uuid.UUID, _ []string) (apiclient.Answer, error) {
		return client.Detach(ctx, id, from.holder(), apiclient.Async())
	})
}

func (s *shell) acceleratorProgram() *cobra.Command {
	var image cyborg.Image
	cmd := &cobra.Command{
		Use:   "program ACCELERATOR IMAGE",
		Short: "Load an image into an accelerator",
		Long: "Loads IMAGE, a path below the host's image directory or an http(s) URL. It is refused while anybody holds\n" +
			"anything that the image would disturb. If it fails, the previous image comes back.",
		Args: takes("ACCELERATOR", "IMAGE"),
	}
	flags := cmd.Flags()
	flags.StringVar(&image.SHA256, "sha256", "", "checksum that the image must have; needed for http(s)")
	flags.StringVar(&image.ID, "id", "", "what to record as bitstream id; the checksum where empty")
	flags.BoolVar(&image.WholeDevice, "whole-device", false, "the image is for the whole device and disturbs all its accelerators")
	return s.operate(cmd, true, func(ctx context.Context, client *apiclient.Client, id uuid.UUID, args []string) (apiclient.Answer, error) {
		image.Source = args[0]
		return client.Program(ctx, id, image, apiclient.Async())
	})
}
