package conductor

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/openstack/glance"
	"github.com/cyborg-project/cyborg/workflows"
)

// Images finds images. *glance.Images does.
type Images interface {
	Find(ctx context.Context, query cyborg.GlanceQuery) (glance.Image, error)
}

// FindImage finds an image in Glance, makes sure that it fits what it is to go into, and makes the URL from which its host
// may fetch it. A later try makes another URL, and the one before is void.
func (a *Activities) FindImage(ctx context.Context, in workflows.FindImageInput) (workflows.FindImageResult, error) {
	out, err := a.findImage(ctx, in)
	return out, workflows.ToFailure(err)
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
	if err := fits(image, target); err != nil {
		return out, err
	}
	out.Image.Source = cyborg.GlanceImage(image.ID).Source
	out.Image.Checksum, out.Size, out.Function = image.Checksum, image.Size, image.Function
	// What a profile asks for by its accel:bitstream_id is found under the same id later, and not loaded again.
	if out.Image.ID = image.ID.String(); query.Function == "" {
		out.Image.ID = query.ID.String()
	}
	secret := rand.Text()
	out.Fetch = workflows.ImageFetch(in.Operation, secret)
	return out, a.store.GrantImage(ctx, db.ImageURL{
		Operation: in.Operation, Accelerator: target.UUID, Host: target.Host, Image: out.Image, Size: image.Size, Valid: in.Valid,
	}, secret)
}

// regionTrait begins the trait of a region of an FPGA; behind it stand the vendor and the region's id.
const regionTrait = "CUSTOM_FPGA_REGION_"

// fits refuses an image that says that it is for another card, or for another region.
func fits(image glance.Image, target cyborg.Accelerator) error {
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

// sameRegion compares the end of a trait, VENDOR_ID, with a region's id, which may be a UUID with hyphens.
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
