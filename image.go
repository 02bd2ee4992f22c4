package cyborg

import (
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Image says where a bitstream comes from, and how to verify it.
type Image struct {
	// Source is a path below the host's image directory ("file:path" or plain), an
	// http(s) URL, or an image in Glance ("glance:UUID", "glance:function:ID").
	Source string `json:"source"`
	// SHA256 is the expected checksum, 64 hexadecimal digits; required for http(s).
	SHA256 string `json:"sha256,omitempty"`
	// Checksum is the one that Glance has for the image. The conductor sets it; it
	// is no part of a request.
	Checksum Checksum `json:"checksum,omitempty"`
	// ID is recorded as the bitstream id; where it is empty, SHA256 is.
	ID string `json:"id,omitempty"`
	// WholeDevice programs the whole device and so disturbs all its deployables.
	WholeDevice bool `json:"whole_device,omitempty"`
}

// ShowSource returns the source of an image as it may be shown and logged. The
// query of a URL may be a signature with which everybody can fetch the image,
// and its user information a password, so neither is in the result.
func ShowSource(source string) string {
	scheme, rest, ok := strings.Cut(source, schemeEnd)
	if !ok {
		return source
	}

	// A password may have any of these characters, though it should not: then it
	// is not where a URL has it. What could be a part of one is not shown.
	shown, hidden := rest, ""
	if end := strings.IndexAny(rest, "?#"); end >= 0 {
		shown, hidden = rest[:end], rest[end:]
	}

	authority, path, slash := strings.Cut(shown, "/")
	port := authority[strings.LastIndex(authority, ":")+1:]
	_, err := strconv.ParseUint(port, 10, 16)
	odd := port != authority && err != nil && !strings.HasSuffix(authority, "]")

	switch {
	case strings.Contains(path, "@"), strings.HasPrefix(authority, "…@"): // the latter is shown already
		shown = "…" + shown[strings.LastIndex(shown, "@"):]
	case strings.Contains(authority, "@"):
		shown = authority[strings.LastIndex(authority, "@")+1:]
		if slash && path != "" {
			shown += "/" + path
		}
	case odd && strings.Contains(hidden, "@"):
		return scheme + "://…"
	}

	if strings.HasPrefix(hidden, "?") {
		shown += hiddenQuery
	}

	return scheme + schemeEnd + shown
}

const (
	schemeEnd = "://"
	// hiddenQuery stands for the query of a URL that is shown.
	hiddenQuery = "?…"
)

// WithoutQuery returns the image without the query of its URL, as it may be
// stored and sent to a host. Nothing else of the source is lost, unlike where it
// is shown: a request with a user or password was refused.
func (i Image) WithoutQuery() Image {
	if strings.Contains(i.Source, schemeEnd) {
		source, _, _ := strings.Cut(i.Source, "#")
		source, _, query := strings.Cut(source, "?")
		if query {
			source += hiddenQuery
		}
		i.Source = source
	}
	return i
}

// QueryHidden says that the source is a URL without its query, and that its
// query is not known any more. The image can only be loaded where a host still has
// it.
func (i Image) QueryHidden() bool {
	return strings.Contains(i.Source, schemeEnd) && strings.HasSuffix(i.Source, hiddenQuery)
}

const (
	glanceScheme   = "glance:"
	glanceFunction = "function:"
)

// GlanceImage names the image in Glance with this id, or otherwise the one
// whose property accel:bitstream_id has this value.
func GlanceImage(id uuid.UUID) Image { return Image{Source: glanceScheme + id.String()} }

// GlanceFunction names the only image in Glance whose property
// accel:function_id has this value.
func GlanceFunction(id string) Image { return Image{Source: glanceScheme + glanceFunction + id} }

// GlanceQuery is what to look for in Glance: an id, or a function where the id
// is zero.
type GlanceQuery struct {
	ID       uuid.UUID
	Function string
}

// InGlance says whether the image is in Glance.
func (i Image) InGlance() bool { return strings.HasPrefix(i.Source, glanceScheme) }

// GlanceQuery parses the source of an image in Glance. The error is of kind
// ErrInvalid and quotes the source.
func (i Image) GlanceQuery() (GlanceQuery, error) {
	text, ok := strings.CutPrefix(i.Source, glanceScheme)

	if function, is := strings.CutPrefix(text, glanceFunction); is && ok {
		if IsName(function) {
			return GlanceQuery{Function: function}, nil
		}
	} else if id, err := uuid.Parse(text); ok && err == nil && len(text) == len(uuid.Nil.String()) && id != uuid.Nil {
		return GlanceQuery{ID: id}, nil
	}

	return GlanceQuery{}, Errorf(ErrInvalid, "the image source %q is neither glance:UUID nor glance:function:ID", Sanitize(i.Source, 200))
}
