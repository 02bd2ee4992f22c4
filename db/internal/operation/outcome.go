package operation

import (
	"slices"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// own returns the outcome with only what the operation is about. An outcome comes
// by way of Temporal, where others may write. It says what has become of what the
// operation asks for; what that is, the records say themselves.
func (o *running) own(outcome cyborg.Outcome) cyborg.Outcome {
	bitstreams, images := map[uuid.UUID]string{}, map[uuid.UUID]cyborg.Image{}
	for _, load := range o.loads() {
		if bitstream, ok := outcome.Bitstreams[load.Accelerator]; ok {
			bitstreams[load.Accelerator] = bitstream
		}

		if said, ok := outcome.Images[load.Accelerator]; ok {
			images[load.Accelerator] = o.reloadable(load, said.SHA256)
		}
	}
	outcome.Bitstreams, outcome.Images = bitstreams, images

	outcome.Rescued = slices.DeleteFunc(slices.Clone(outcome.Rescued), func(i cyborg.RescuedInstance) bool {
		return !slices.ContainsFunc(o.before.Rescues, func(own cyborg.Rescue) bool {
			return own.Instance == i.Rescue.Instance && own.BootID == i.Rescue.BootID
		})
	})
	return outcome
}

// loads lists the images that the operation loads, as they were asked for.
func (o *running) loads() []cyborg.ImageLoad {
	if h, ok := o.handler.(loading); ok {
		return h.loads(o)
	}
	return nil
}

// reloadable returns an image that was asked for in a form that loads exactly the
// same one later: with its checksum, and by its id in Glance instead of a function,
// which may name another image by then. Its source is empty where the records do
// not know which image was found for the function.
//
// Where no checksum was asked for, it is the one that the host has said to have
// loaded.
func (o *running) reloadable(load cyborg.ImageLoad, sha256 string) cyborg.Image {
	image := load.Image.WithoutQuery()
	if image.SHA256 == "" {
		image.SHA256 = sha256
	}
	if !image.InGlance() {
		return image
	}

	query, err := image.GlanceQuery()
	if err == nil && query.Function != "" {
		query.ID, err = uuid.Parse(o.found[load.Accelerator].ID)
	}
	if err != nil {
		return cyborg.Image{WholeDevice: image.WholeDevice}
	}
	image.Source, image.ID = cyborg.GlanceImage(query.ID).Source, query.ID.String()
	return image
}
