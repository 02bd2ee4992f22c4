package journal

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// The types below are on disk. They only grow, by fields that may be absent, and use none of another package that could
// change them.

// StepState says how far a step is.
type StepState string

// The step states.
const (
	Started StepState = "started" // the hardware may have been touched
	Done    StepState = "done"    // and Result is what came of it
	Undone  StepState = "undone"  // it must not begin any more
)

// StepKey names a step of an operation.
type StepKey struct {
	Operation uuid.UUID `json:"operation"`
	Name      string    `json:"name"`
}

// Step is a step of an operation.
type Step struct {
	StepKey
	State  StepState `json:"state"`
	BootID string    `json:"boot_id"`
	At     time.Time `json:"at"`
	// Note is what undoing the step needs to know of the time before it.
	Note json.RawMessage `json:"note,omitempty"`
	// Result is what the step returned.
	Result json.RawMessage `json:"result,omitempty"`
	// Images are the checksums of images that undoing the step needs.
	Images []string `json:"images,omitempty"`
}

// AttachmentState says how an attachment is.
type AttachmentState string

// The attachment states.
const (
	Attached AttachmentState = "attached"
	InDoubt  AttachmentState = "in_doubt" // being attached or detached
)

// AttachmentKey names an attachment: a handle is attached at most once.
type AttachmentKey struct {
	Backend string `json:"backend"`
	Handle  string `json:"handle"`
}

func (k AttachmentKey) compare(other AttachmentKey) int {
	return cmp.Or(cmp.Compare(k.Backend, other.Backend), cmp.Compare(k.Handle, other.Handle))
}

// Attachment is a handle that was, or is being, attached to the host.
type Attachment struct {
	Backend    string          `json:"backend"`
	Handle     string          `json:"handle"`
	Device     string          `json:"device"`
	Deployable string          `json:"deployable"`
	Operation  uuid.UUID       `json:"operation"` // that attached it
	HolderKind string          `json:"holder_kind"`
	HolderID   string          `json:"holder_id"`
	State      AttachmentState `json:"state"`
	BootID     string          `json:"boot_id"`
	At         time.Time       `json:"at"`
	// HandedOut says that the driver has nothing to do for an attachment, so that no boot undoes it.
	HandedOut bool `json:"handed_out,omitempty"`
	// Note is the driver's own, for the way back.
	Note json.RawMessage `json:"note,omitempty"`
}

// Key is the attachment's name.
func (a Attachment) Key() AttachmentKey { return AttachmentKey{Backend: a.Backend, Handle: a.Handle} }

// RegionKey names what one image goes into: the deployables of a device with the same program set, or a deployable alone.
type RegionKey struct {
	Backend string `json:"backend"`
	Device  string `json:"device"`
	Region  string `json:"region"`
}

func (k RegionKey) compare(other RegionKey) int {
	return cmp.Or(cmp.Compare(k.Backend, other.Backend), cmp.Compare(k.Device, other.Device), cmp.Compare(k.Region, other.Region))
}

// Loaded is the image that this agent loaded last into a region.
type Loaded struct {
	RegionKey
	// Deployable is the one that it was loaded through.
	Deployable  string    `json:"deployable"`
	SHA256      string    `json:"sha256"`
	ImageID     string    `json:"image_id,omitempty"`
	WholeDevice bool      `json:"whole_device,omitempty"`
	BitstreamID string    `json:"bitstream_id"` // as read back from the region
	Operation   uuid.UUID `json:"operation"`
	At          time.Time `json:"at"`
}

// Staged is an image that was brought to the host for an operation.
type Staged struct {
	Operation uuid.UUID `json:"operation"`
	SHA256    string    `json:"sha256"`
	At        time.Time `json:"at"`
}

// Change is what one write does: it puts what it lists, replacing what has the same key, after it drops what it names.
type Change struct {
	// Sequence reserves the numbers below it.
	Sequence        int64           `json:"sequence,omitempty"`
	DropSteps       []StepKey       `json:"drop_steps,omitempty"`
	Steps           []Step          `json:"steps,omitempty"`
	DropAttachments []AttachmentKey `json:"drop_attachments,omitempty"`
	Attachments     []Attachment    `json:"attachments,omitempty"`
	DropLoaded      []RegionKey     `json:"drop_loaded,omitempty"`
	Loaded          []Loaded        `json:"loaded,omitempty"`
	DropStaged      []uuid.UUID     `json:"drop_staged,omitempty"`
	Staged          []Staged        `json:"staged,omitempty"`
}

// stamp fills in the boot id and the time where they are not set. The lists are the caller's, so they are copied.
func (c *Change) stamp(bootID string, now time.Time) {
	now = now.UTC()
	c.Steps = append([]Step(nil), c.Steps...)
	for i := range c.Steps {
		s := &c.Steps[i]
		s.BootID, s.At = cmp.Or(s.BootID, bootID), orNow(s.At, now)
	}
	c.Attachments = append([]Attachment(nil), c.Attachments...)
	for i := range c.Attachments {
		a := &c.Attachments[i]
		a.BootID, a.At = cmp.Or(a.BootID, bootID), orNow(a.At, now)
	}
	c.Loaded = append([]Loaded(nil), c.Loaded...)
	for i := range c.Loaded {
		c.Loaded[i].At = orNow(c.Loaded[i].At, now)
	}
	c.Staged = append([]Staged(nil), c.Staged...)
	for i := range c.Staged {
		c.Staged[i].At = orNow(c.Staged[i].At, now)
	}
}

func orNow(at, now time.Time) time.Time {
	if at.IsZero() {
		return now
	}
	return at
}
