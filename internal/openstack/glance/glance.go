// Package glance finds and opens images in OpenStack's Glance with the server's
// own credentials, because hosts have none. It must not import the API, the
// store or a workflow.
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

// Session makes clients of the cloud's services; *openstack.Session implements
// it.
type Session interface {
	Service(ctx context.Context, serviceType string) (*gophercloud.ServiceClient, error)
}

// Options limit which images are accepted.
type Options struct {
	// Max is the largest image, in bytes.
	Max int64
	// AllowMD5 accepts images for which Glance has no better checksum.
	AllowMD5 bool
}

// Images are the images in a cloud's Glance.
type Images struct {
	session Session
	options Options
}

// New returns the images of the session's cloud. It sends nothing yet.
func New(session Session, options Options) *Images { return &Images{session, options} }

// Image is what Glance has about an image.
type Image struct {
	ID       uuid.UUID
	Checksum cyborg.Checksum
	Size     int64 // bytes

	// Function is what the image turns an accelerator into, and Region the region
	// it must be loaded into; empty if not set.
	Function, Region string
	// VendorID and ProductID are those of the cards that the image is for; empty if
	// not set.
	VendorID, ProductID string
}

// The properties of an image. regionUUID means the same as regionProperty; it
// is the name in upstream's specification of bitstream metadata
// (cyborg-fpga-bitstream-spec).
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

// client returns a client of version 2 of the Image API. The endpoint in the
// catalog may or may not have the version in it.
func (g *Images) client(ctx context.Context) (*gophercloud.ServiceClient, error) {
	client, err := g.session.Service(ctx, service)
	if err != nil {
		return nil, openstack.Explain(service, err)
	}

	client.ResourceBase = strings.TrimSuffix(client.Endpoint, "v2/") + "v2/"
	return client, nil
}

// Find finds an image by its id, or by its property accel:bitstream_id, or by
// its accel:function_id. Errors: ErrNotFound; ErrInvalid if there are several;
// ErrImageRejected for an image without content or without a checksum to
// verify; ErrTooLarge; ErrUnavailable if Glance or Keystone do not answer,
// refuse our user, or are busy with the image.
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

// explain explains the error of a request. A read can neither conflict with
// anything of ours nor be too large. If Glance, or a proxy in front of it,
// answers so, it is busy with something else, such as saving, moving or
// replacing the image. That passes, so the error becomes ErrUnavailable, which
// callers retry.
func explain(err error) error {
	explained := openstack.Explain(service, err)
	if kind := cyborg.ErrorKindOf(explained); kind == cyborg.ErrChanged || kind == cyborg.ErrTooLarge {
		return cyborg.Errorf(cyborg.ErrUnavailable, "%w", explained)
	}
	return explained
}

// only returns the one image that has the property. Two are enough to know that
// it is not the only one.
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
			property, value, found[0].ID, found[1].ID).WithHint("Name one by its id, or remove the property from the others.")
	}

	return &found[0], nil
}

// alsoID completes the error for a bitstream id, which was looked up as an
// image id before.
func alsoID(property string) string {
	if property == bitstreamProperty {
		return ", and none with that id"
	}
	return ""
}

// having is the query for active images with a property. It implements
// images.ListOptsBuilder.
type having struct{ property, value string }

// ToImageListQuery returns the query.
func (h having) ToImageListQuery() (string, error) {
	return "?" + url.Values{h.property: {h.value}, "status": {string(images.ImageStatusActive)}, "limit": {"2"}}.Encode(), nil
}

// read converts Glance's image, and rejects one that could not be loaded into
// an accelerator.
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

// checksum returns the best checksum that Glance has. An MD5 is accepted only
// if the operator has allowed it.
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

// Open returns the content of an image from offset (bytes) on. size is the size
// that the image is known to have. The caller closes the reader, and must not
// trust the content before its checksum is verified. Errors: ErrNotFound;
// ErrInvalid for an offset beyond the end, and for an image that is not in
// Glance; ErrImageRejected if Glance has another size now; ErrUnavailable for
// what may pass.
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
		_ = answer.Body.Close() // the error that led here says more than one of Close
		return nil, err
	}

	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(content, size-offset), answer.Body}, nil
}
