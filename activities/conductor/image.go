package conductor

import (
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/grant"
	"github.com/cyborg-project/cyborg/internal/openstack/glance"
	"github.com/cyborg-project/cyborg/workflows"
)

// Images finds images in OpenStack Glance; *glance.Images implements it.
type Images interface {
	Find(ctx context.Context, query cyborg.GlanceQuery) (glance.Image, error)
}

// FindImage is the activity that finds an image in Glance, checks that it fits
// its target, and permits the host to fetch it.
func (a *Activities) FindImage(ctx context.Context, in workflows.FindImageInput) (workflows.FindImageResult, error) {
	to, err := a.addresseeOf(ctx, in.Operation)
	if err != nil {
		return workflows.FindImageResult{}, err
	}

	steps, err := a.permitFind(ctx, in)
	if err != nil {
		return workflows.FindImageResult{}, workflows.ToFailure(err)
	}

	out, err := a.findImage(ctx, in)
	if err != nil {
		return out, workflows.ToFailure(err)
	}

	out.Grant, err = a.signFound(ctx, in, out, to, steps)
	return out, workflows.ToFailure(err)
}

// permitFind makes sure that the operation is about this image and this
// accelerator: what the host may do with the image is signed next. It returns
// what is signed already.
func (a *Activities) permitFind(ctx context.Context, in workflows.FindImageInput) ([]grant.Step, error) {
	// A workflow of release 0.1 does not say for which steps it is. They get no grant.
	if a.grants.Signer == nil || in.Operation == uuid.Nil || in.JournalID == uuid.Nil {
		return nil, nil
	}

	steps, err := a.permittedSteps(ctx, in.Operation, in.Grant)
	if err != nil {
		return nil, err
	}

	asked := in
	asked.Valid, asked.Grant = 0, ""
	search, err := grant.StepOf(workflows.FindImageActivity, asked)
	if err == nil && !slices.Contains(steps, search) {
		err = cyborg.Errorf(cyborg.ErrForbidden, "operation %s does not load the image %q into accelerator %s",
			in.Operation, cyborg.ShowSource(in.Image.Source), in.Target.Accelerator)
	}
	return steps, err
}

// signFound adds to the steps what the host may do with the image that was found,
// and signs them all.
func (a *Activities) signFound(
	ctx context.Context, in workflows.FindImageInput, out workflows.FindImageResult, to db.Addressee, steps []grant.Step,
) (string, error) {
	if steps == nil {
		return "", nil
	}

	found, err := stepsOf(in.Permitted(out))
	if err != nil {
		return "", err
	}
	return a.sign(ctx, in.Operation, to.Host, to.Agent, to.Assignment, slices.Concat(steps, found))
}

func (a *Activities) findImage(ctx context.Context, in workflows.FindImageInput) (workflows.FindImageResult, error) {
	out := workflows.FindImageResult{Image: in.Image}
	query, err := in.Image.GlanceQuery()
	if err != nil {
		return out, err
	}
	if a.cloud.Images == nil {
		return out, cyborg.Errorf(cyborg.ErrUnsupported, "image %q is in Glance, and no OpenStack is configured", in.Image.Source).
			WithHint("Set openstack.auth_url and its credentials, or give a path on the host or an http(s) URL.")
	}

	target, err := a.store.Accelerator(ctx, in.Target.Accelerator)
	if err != nil {
		return out, err
	}
	image, err := a.cloud.Images.Find(ctx, query)
	if err != nil {
		return out, err
	}

	if err := checkFit(image, target); err != nil {
		return out, err
	}

	out.Image.Source = cyborg.GlanceImage(image.ID).Source
	out.Image.Checksum, out.Size, out.Function = image.Checksum, image.Size, image.Function
	// A device profile may name an image by its accel:bitstream_id instead of its
	// own id. Record the id that was asked for: the next bind of that profile then
	// sees that the image is loaded already.
	out.Image.ID = image.ID.String()
	if query.Function == "" {
		out.Image.ID = query.ID.String()
	}

	name := workflows.ImageName(in.Operation, target.UUID)
	out.Fetch = workflows.ImageFetch(in.Operation, name)
	// An earlier try of this search may have found another image. That one counts.
	url, err := a.store.GrantImage(ctx, runOf(ctx, in.Operation), db.ImageURL{
		Operation: in.Operation, Accelerator: target.UUID, Host: target.Host, Asked: in.Image, Image: out.Image, Size: image.Size, Valid: in.Valid,
	}, name)
	out.Image, out.Size = url.Image, url.Size
	return out, err
}

// regionTrait is the prefix of the trait that names an FPGA's region; the
// vendor and the region's id follow it.
const regionTrait = "CUSTOM_FPGA_REGION_"

// checkFit returns an error of kind ErrImageRejected for an image whose
// properties name another card or another region than the target's. An image
// without such properties fits everything.
func checkFit(image glance.Image, target cyborg.Accelerator) error {
	for _, id := range []struct{ what, wanted, has string }{
		{"vendor", image.VendorID, target.Specs.VendorID}, {"product", image.ProductID, target.Specs.ProductID},
	} {
		if id.wanted != "" && !strings.EqualFold(strings.TrimPrefix(id.wanted, "0x"), id.has) {
			return cyborg.Errorf(cyborg.ErrImageRejected, "image %s is for cards of %s %q, and %s is of %q",
				image.ID, id.what, id.wanted, target.ProviderName, id.has)
		}
	}

	if image.Region == "" {
		return nil
	}

	var regions []string
	for _, attribute := range target.Attributes {
		if region, ok := strings.CutPrefix(attribute.Value, regionTrait); ok && strings.HasPrefix(attribute.Key, "trait") {
			regions = append(regions, strings.TrimPrefix(region, "ID_"))
		}
	}

	if slices.ContainsFunc(regions, func(region string) bool { return sameRegion(region, image.Region) }) {
		return nil
	}

	shown := "shows none"
	if len(regions) > 0 {
		shown = "has " + strings.Join(regions, ", ")
	}

	return cyborg.Errorf(cyborg.ErrImageRejected, "image %s is for region %q, and %s %s", image.ID, image.Region, target.ProviderName, shown).
		WithHint("Choose an image for this region, or correct the image's property.")
}

// sameRegion says whether the rest of a trait, VENDOR_ID or ID alone, names the
// region. A region may be a UUID with hyphens, which traits cannot contain.
func sameRegion(trait, region string) bool {
	_, bare, _ := strings.Cut(trait, "_")
	squeeze := func(text string) string {
		return strings.Map(func(r rune) rune {
			if r == '-' || r == '_' {
				return -1
			}
			return r
		}, strings.ToUpper(text))
	}

	want := squeeze(region)
	return want == squeeze(bare) || want == squeeze(trait)
}
