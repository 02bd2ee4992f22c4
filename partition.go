package cyborg

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// OperationPartition divides a device into parts, such as virtual functions or slices of a
// card, or makes it whole again.
const OperationPartition OperationKind = "partition"

// PartitionRequest divides a device anew. Nobody may have anything of it meanwhile.
type PartitionRequest struct {
	Device uuid.UUID `json:"device"`
	// Layout is what is wanted.
	Layout Layout `json:"layout"`
}

// Kind returns OperationPartition.
func (PartitionRequest) Kind() OperationKind { return OperationPartition }

// Layout says into how many parts of each kind a device is divided. It has no zeros: the
// empty one stands for the whole device.
type Layout map[string]int

// ParseLayout reads a layout from words such as "vf=4". The error is of kind ErrInvalid.
func ParseLayout(words []string) (Layout, error) {
	layout := Layout{}
	for _, word := range words {
		kind, number, ok := strings.Cut(word, "=")
		count, err := strconv.Atoi(number)
		if !ok || err != nil || count < 0 {
			return nil, Errorf(ErrInvalid, "%.80q does not say how many parts of which kind; write it as vf=4", word)
		}
		if _, twice := layout[kind]; twice {
			return nil, Errorf(ErrInvalid, "parts of kind %.80q are asked for twice", kind)
		}
		layout[kind] = count
	}
	return layout.Normal(), nil
}

// Normal returns the layout without zeros; it is never nil.
func (l Layout) Normal() Layout {
	out := Layout{}
	for kind, count := range l {
		if count != 0 {
			out[kind] = count
		}
	}
	return out
}

// Equal says that both are the same layout.
func (l Layout) Equal(other Layout) bool { return maps.Equal(l.Normal(), other.Normal()) }

// String says it to people, with the words of ParseLayout: "vf=4", or "whole".
func (l Layout) String() string {
	var words []string
	for _, kind := range slices.Sorted(maps.Keys(l.Normal())) {
		words = append(words, fmt.Sprintf("%s=%d", kind, l[kind]))
	}
	if len(words) == 0 {
		return "whole"
	}
	return strings.Join(words, " ")
}

// Partitioning says how a device can be divided, and how it is.
type Partitioning struct {
	// Parts are the kinds of parts that its driver can make of it.
	Parts []PartKind `json:"parts"`
	// Layout is how it is divided now.
	Layout Layout `json:"layout"`
}

// Is reports whether the device is divided like that. One that cannot be divided, for which p
// is nil, is not.
func (p *Partitioning) Is(layout Layout) bool { return p != nil && p.Layout.Equal(layout) }

// PartKind is a kind of parts of a device.
type PartKind struct {
	// Name is the driver's word for it, such as "vf" or "1g.10gb" (IsPartKind).
	Name string `json:"name"`
	// Most is how many of them the device can have where it has no others.
	Most int `json:"most"`
	// Description says to people what such a part is; it may be empty.
	Description string `json:"description,omitempty"`
}

// MaxParts is how many parts a device can be divided into, and MaxPartKinds how many
// kinds of them its driver may list.
const (
	MaxParts     = 256
	MaxPartKinds = 64
)

// partKindPattern matches the names that NVIDIA, the kernel and SPDK have for parts.
var partKindPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._+-]{0,62}$`)

// IsPartKind says whether the text can be the name of a kind of parts: a letter or digit,
// and then up to 62 letters, digits, dots, underscores, plus and minus signs.
func IsPartKind(text string) bool { return partKindPattern.MatchString(text) }

// Check refuses a layout that the device cannot have whatever the rest of it is like. The
// error is of kind ErrInvalid, or ErrUnsupported where p is nil: such a device cannot be
// divided. Which kinds fit beside each other only its driver knows.
func (p *Partitioning) Check(layout Layout) error {
	if p == nil || len(p.Parts) == 0 {
		return Errorf(ErrUnsupported, "its driver cannot divide this device")
	}

	total := 0
	for _, kind := range slices.Sorted(maps.Keys(layout)) {
		count := layout[kind]
		at := slices.IndexFunc(p.Parts, func(one PartKind) bool { return one.Name == kind })
		switch {
		case count < 0:
			return Errorf(ErrInvalid, "%d parts of kind %.80q are no number of parts", count, kind)
		case count == 0:
			continue
		case at < 0:
			return Errorf(ErrInvalid, "the device has no parts of kind %.80q; it can have %s", kind, p.kinds())
		case count > p.Parts[at].Most:
			return Errorf(ErrInvalid, "%d parts of kind %s are too many: the device can have %d", count, kind, p.Parts[at].Most)
		}
		if total += count; total > MaxParts {
			return Errorf(ErrInvalid, "these are more than %d parts", MaxParts)
		}
	}
	return nil
}

// kinds lists the kinds of parts for a message.
func (p *Partitioning) kinds() string {
	names := make([]string, len(p.Parts))
	for i, kind := range p.Parts {
		names[i] = kind.Name
	}
	return strings.Join(names, ", ")
}

// DeviceTarget is a device that an operation works on as a whole, as its host's agent knows
// it.
type DeviceTarget struct {
	UUID     uuid.UUID `json:"uuid"`
	Backend  string    `json:"backend"`
	Identity string    `json:"identity"`
	// Fingerprint is that of the recorded device: its host refuses another card that is
	// there under the same identity.
	Fingerprint Fingerprint `json:"fingerprint,omitzero"`
	// Layout is how it was divided when the operation began, as the records had it; nil where
	// they did not know, and for an operation that an earlier release has begun.
	Layout Layout `json:"layout,omitzero"` // {} for a whole one
	// Deployables are the driver's names of its parts, as the records had them when the
	// operation began, sorted: a step on one of them that comes later is refused.
	Deployables []string `json:"deployables,omitempty"`
	// Installed are those of them that are in service. What of them is there afterwards was
	// made anew, and is installed again.
	Installed []string `json:"installed,omitempty"`
}

// PartitionWork is what a partition has to do.
type PartitionWork struct {
	Device DeviceTarget `json:"device"`
	Layout Layout       `json:"layout"`
}
