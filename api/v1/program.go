package v1

import (
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// program loads an image into an accelerator.
func (a *API) program(w http.ResponseWriter, r *http.Request) error {
	id, err := pathUUID(r, "uuid")
	if err != nil {
		return err
	}

	if q := readQuery(r); q.err != nil {
		return q.err
	}

	o, err := a.body(w, r)
	if err != nil {
		return err
	}

	image := readImage(o)
	if err := o.done(); err != nil {
		return err
	}

	return a.operate(w, r, work{
		request: db.Admission{Request: cyborg.ProgramRequest{Accelerator: id, Image: image}},
		body:    o.canonical,
		done:    a.showSubject,
	})
}

var sha256Pattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// readImage reads the property image, which must be given.
func readImage(body *object) cyborg.Image {
	o := body.object("image")
	if o == nil {
		body.missing("image")
		return cyborg.Image{}
	}

	image := cyborg.Image{
		Source: o.name("source", maxSource),
		SHA256: strings.ToLower(o.name("sha256", maxName)),
		ID:     o.name("id", maxName),
	}

	if whole := o.boolean("whole_device"); whole != nil {
		image.WholeDevice = *whole
	}

	if image.SHA256 != "" && !sha256Pattern.MatchString(image.SHA256) {
		o.fail("image.sha256 is %q, not 64 hexadecimal digits", web.Shorten(image.SHA256))
	}

	checkSource(o, image)
	_ = o.done() // body returns the error

	return image
}

// checkSource rejects sources that no host could accept. The agent checks again
// what it is given: it alone knows its configuration.
func checkSource(o *object, image cyborg.Image) {
	scheme, rest, hasScheme := strings.Cut(image.Source, ":")

	switch {
	case image.Source == "":
		o.missing("source")

	case hasScheme && (scheme == "http" || scheme == "https"):
		source, err := url.Parse(image.Source)
		switch {
		case err != nil || source.Host == "":
			o.fail("image.source is %q, which is no URL", web.Shorten(cyborg.ShowSource(image.Source)))
		case source.User != nil:
			o.fail("image.source has a user or password, which everybody could read in the operation")
		case image.SHA256 == "":
			o.fail("image.sha256 is missing; an image from %s needs it", source.Host)
		}

	case image.InGlance():
		if _, err := image.GlanceQuery(); err != nil {
			o.fail("image.source is %q, neither glance:UUID nor glance:function:ID", web.Shorten(cyborg.ShowSource(image.Source)))
		}
		if image.ID != "" {
			o.fail("image.id cannot be set: Cyborg records the id that the image has in Glance")
		}

	default:
		if scheme == "file" {
			image.Source = rest
		}

		if path.IsAbs(image.Source) || strings.Contains("/"+image.Source+"/", "/../") || strings.Contains(image.Source, "://") {
			o.fail("image.source is %q, neither an http or https URL, nor in Glance, nor a path below the host's image_dir", web.Shorten(cyborg.ShowSource(image.Source)))
		}
	}
}
