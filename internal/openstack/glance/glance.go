// Package glance finds and opens images in OpenStack's Glance, with the server's own credentials: hosts have none. It must
// not import the API, the store or a workflow.
package glance

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/images"
	"github.com/gophercloud/gophercloud/v2/pagination"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/imagesource"
	"github.com/cyborg-project/cyborg/internal/openstack"
)

// Session gives clients of the cloud's services. *openstack.Session does.
type Session interface {
	Service(ctx context.Context, serviceType string) (*gophercloud.ServiceClient, error)
}

// Options say which images are taken.
type Options struct {
	// Max is the largest image, in bytes.
	Max int64
	// AllowMD5 takes images that Glance has no better checksum of.
	AllowMD5 bool
}

// Images are those of a cloud's Glance.
type Images struct {
	session Session
	options Options
}

// New returns the images of the session's cloud; nothing is asked of it yet.
func New(session Session, options Options) *Images { return &Images{session, options} }

// Image is what Glance says of an image.
type Image struct {
	ID       uuid.UUID
	Checksum cyborg.Checksum
	Size     int64 // bytes
	// Function is what the image makes of an accelerator, and Region what it must be loaded into; empty where nobody said.
	Function, Region string
	// VendorID and ProductID are those of the cards that it is for; empty where nobody said.
	VendorID, ProductID string
}

// The properties of an image. Those with accel: and the others are the same; upstream's specification of bitstreams' metadata
// (cyborg-fpga-bitstream-spec) has the latter.
const (
	bitstreamProperty = "accel:bitstream_id"
	functionProperty  = "accel:function_id"
	vendorProperty    = "accel:vendor_id"
	productProperty   = "accel:product_id"
	regionProperty    = "accel:region_id"
	regionUUID        = "region_uuid"
)

// service is Glance's type in the catalog.
const service = "image"

// client is one for the version 2 of the API, whether the catalog says that or only where Glance is.
func (g *Images) client(ctx context.Context) (*gophercloud.ServiceClient, error) {
	client, err := g.session.Service(ctx, service)
	if err != nil {
		return nil, openstack.Explain(service, err)
	}
	client.ResourceBase = strings.TrimSuffix(client.Endpoint, "v2/") + "v2/"
	return client, nil
}

// Find finds an image: by its id, else by its property accel:bitstream_id, or by its accel:function_id. Errors: ErrNotFound;
// Invalid where there are several; ErrImageRejected for one without content or without a checksum to verify; ErrTooLarge;
// Unavailable where Glance or Keystone do not answer, do not let us in, or have to do with something else just now.
func (g *Images) Find(ctx context.Context, query cyborg.GlanceQuery) (Image, error) {
	client, err := g.client(ctx)
	if err != nil {
		return Image{}, err
	}
	var found *images.Image
	if query.Function != "" {
		found, err = only(ctx, client, functionProperty, query.Function)
	} else {
		found, err = images.Get(ctx, client, query.ID.String()).Extract()
		if gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
			found, err = only(ctx, client, bitstreamProperty, query.ID.String())
		}
	}
	if err != nil {
		return Image{}, explain(err)
	}
	return g.read(found)
}

// explain says what went wrong of a question. Nothing of ours can be in conflict, or too large, where we only read: Glance, or
// what stands before it, has to do with something else (the image is being saved, moved or replaced), and that passes.
func explain(err error) error {
	explained := openstack.Explain(service, err)
	if kind := cyborg.ErrorKindOf(explained); kind == cyborg.ErrChanged || kind == cyborg.ErrTooLarge {
		return cyborg.Errorf(cyborg.ErrUnavailable, "%w", explained)
	}
	return explained
}

// only returns the one image that has the property.
func only(ctx context.Context, client *gophercloud.ServiceClient, property, value string) (*images.Image, error) {
	var found []images.Image
	err := images.List(client, having{property, value}).EachPage(ctx, func(_ context.Context, page pagination.Page) (bool, error) {
		some, err := images.ExtractImages(page)
		found = append(found, some...)
		return len(found) < 2, err
	})
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, cyborg.Errorf(cyborg.ErrNotFound, "Glance shows us no active image with %s %q%s", property, value, alsoID(property)).
			WithHint("Set the property of one image, and let the server's own user see it (visibility, members).")
	case len(found) > 1:
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "Glance has several images with %s %q, among them %s and %s",
			property, value, found[0].ID, found[1].ID).WithHint("Name one by its id, or take the property from the others.")
	}
	return &found[0], nil
}

func alsoID(property string) string {
	if property == bitstreamProperty {
		return ", and none with that id"
	}
	return ""
}

// having is the query for active images with a property.
type having struct{ property, value string }

// ToImageListQuery makes the query.
func (h having) ToImageListQuery() (string, error) {
	return "?" + url.Values{h.property: {h.value}, "status": {string(images.ImageStatusActive)}, "limit": {"2"}}.Encode(), nil
}

// read takes what counts, and refuses what could not be loaded.
func (g *Images) read(found *images.Image) (Image, error) {
	id, err := uuid.Parse(found.ID)
	if err != nil {
		return Image{}, cyborg.Errorf(cyborg.ErrUnavailable, "Glance answered with an image of id %q, which is no UUID", cyborg.Sanitize(found.ID, 80))
	}
	text := func(property string) string {
		value, _ := found.Properties[property].(string)
		return value
	}
	image := Image{
		ID: id, Size: found.SizeBytes, Function: text(functionProperty), Region: text(regionProperty),
		VendorID: text(vendorProperty), ProductID: text(productProperty),
	}
	if image.Region == "" {
		image.Region = text(regionUUID)
	}
	switch {
	case found.Status != images.ImageStatusActive:
		return image, cyborg.Errorf(cyborg.ErrImageRejected, "image %s is %s in Glance, not active", id, found.Status).
			WithHint("Upload its content, or activate it.")
	case image.Size <= 0:
		return image, cyborg.Errorf(cyborg.ErrImageRejected, "image %s is empty", id)
	case image.Size > g.options.Max:
		return image, cyborg.Errorf(cyborg.ErrTooLarge, "image %s has %d bytes, more than %d", id, image.Size, g.options.Max).
			WithHint("The operator sets the limit with images.max.")
	}
	image.Checksum, err = g.checksum(found, text("os_hash_algo"), text("os_hash_value"))
	return image, err
}

// checksum is the best one that Glance has.
func (g *Images) checksum(found *images.Image, algorithm, value string) (cyborg.Checksum, error) {
	sum := cyborg.MakeChecksum(algorithm, value)
	if algorithm == "" || value == "" {
		sum = cyborg.MakeChecksum("md5", found.Checksum)
	}
	if sum.Algorithm() == "md5" && (!g.options.AllowMD5 || sum.Value() == "") {
		return "", cyborg.Errorf(cyborg.ErrImageRejected, "Glance has no checksum of image %s that can be trusted (os_hash_algo, os_hash_value)", found.ID).
			WithHint("Upload it again with a Glance that hashes images, or set glance.allow_md5 if an MD5 is enough.")
	}
	if _, err := sum.Hash(); err != nil {
		return "", cyborg.Errorf(cyborg.ErrImageRejected, "the content of image %s cannot be verified: %w", found.ID, err)
	}
	return sum, nil
}

// Open returns an image of that size from offset (bytes) on. The caller closes the reader; nothing of it may be taken for
// the image before its checksum is verified. Errors: ErrNotFound; Invalid for an offset beyond the end, and for an image that is
// not in Glance; ErrImageRejected where Glance has another size now; Unavailable for what may pass.
func (g *Images) Open(ctx context.Context, image cyborg.Image, size, offset int64) (io.ReadCloser, error) {
	query, err := image.GlanceQuery()
	if err != nil {
		return nil, err
	}
	client, err := g.client(ctx)
	if err != nil {
		return nil, err
	}
	headers := map[string]string{"Accept": "application/octet-stream", "Accept-Encoding": "identity"}
	if offset > 0 {
		headers["Range"] = fmt.Sprintf("bytes=%d-", offset)
	}
	answer, err := client.Get(ctx, client.ServiceURL("images", query.ID.String(), "file"), nil, &gophercloud.RequestOpts{
		MoreHeaders: headers, KeepResponseBody: true,
		OkCodes: []int{http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable},
	})
	if err != nil {
		return nil, explain(err)
	}
	content, all, err := imagesource.Content(answer, offset, math.MaxInt64)
	if err == nil && all >= 0 && all != size {
		err = cyborg.Errorf(cyborg.ErrImageRejected, "image %s has %d bytes now, and had %d", query.ID, all, size)
	}
	if err != nil {
		_ = answer.Body.Close() // the error says more
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(content, size-offset), answer.Body}, nil
}
