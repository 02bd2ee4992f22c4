package journal

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// The types below are the file format. They change only by fields that may be
// absent, so that old journals stay readable, and they use no type of another
// package that could change under them.

// StepState is how far a step is.
type StepState string

// The step states.
const (
	Started StepState = "started" // the hardware may have been touched
	Done    StepState = "done"    // the step has ended, and Result is its result
	Undone  StepState = "undone"  // the step was undone and must not begin any more
)

// StepKey identifies a step by its operation and its name in there.
type StepKey struct {
	Operation uuid.UUID `json:"operation"`
	Name      string    `json:"name"`
}

// Step is what is known of a step of an operation.
type Step struct {
	StepKey
	State  StepState `json:"state"`
	BootID string    `json:"boot_id"`
	At     time.Time `json:"at"`
	// Note is what undoing the step needs to know of the state before it.
	Note json.RawMessage `json:"note,omitempty"`
	// Result is what the step returned; set where State is Done.
	Result json.RawMessage `json:"result,omitempty"`
	// Images are the checksums of images that undoing the step needs, which the
	// image cache must keep.
	Images []string `json:"images,omitempty"`
}

// AttachmentState is how certain an attachment is.
type AttachmentState string

// The attachment states.
const (
	Attached AttachmentState = "attached" // the driver has attached the handle
	InDoubt  AttachmentState = "in_doubt" // an attach or detach began, or the hardware no longer shows the attachment
)

// AttachmentKey identifies an attachment. A handle is attached at most once, so
// the handle is enough.
type AttachmentKey struct {
	Backend string `json:"backend"`
	Handle  string `json:"handle"`
}

// compare orders keys by backend, then handle.
func (k AttachmentKey) compare(other AttachmentKey) int {
	return cmp.Or(cmp.Compare(k.Backend, other.Backend), cmp.Compare(k.Handle, other.Handle))
}

// Fingerprint is that of a card, as in cyborg.Fingerprint. It is empty in what
// earlier releases have written: then it is unknown which card an entry is about.
type Fingerprint struct {
	Model  string `json:"model,omitempty"`
	Serial string `json:"serial,omitempty"`
}

// Attachment is a handle that is attached to the host, or is being attached or
// detached.
type Attachment struct {
	Backend    string `json:"backend"`
	Handle     string `json:"handle"`
	Device     string `json:"device"`
	Deployable string `json:"deployable"`
	// Fingerprint is that of the device.
	Fingerprint Fingerprint `json:"fingerprint,omitzero"`
	// Operation is the operation that attached the handle.
	Operation  uuid.UUID       `json:"operation"`
	HolderKind string          `json:"holder_kind"`
	HolderID   string          `json:"holder_id"`
	State      AttachmentState `json:"state"`
	BootID     string          `json:"boot_id"`
	At         time.Time       `json:"at"`
	// HandleUUID is the handle's UUID in the records; zero where an agent of an earlier
	// release has written the entry, or nobody has said it.
	HandleUUID uuid.UUID `json:"handle_uuid,omitzero"`
	// HandedOut is true where the driver has nothing to do for an attachment, so
	// that a boot of the machine does not undo it.
	HandedOut bool `json:"handed_out,omitempty"`
	// Note belongs to the driver, which needs it to detach.
	Note json.RawMessage `json:"note,omitempty"`
}

// Of reports whether the attachment may be one of this card. It is none of another
// card in the place of the one that was attached.
func (a Attachment) Of(card cyborg.Fingerprint) bool {
	return !cyborg.Fingerprint(a.Fingerprint).Other(card)
}

// Key returns the attachment's key.
func (a Attachment) Key() AttachmentKey { return AttachmentKey{Backend: a.Backend, Handle: a.Handle} }

// Cleaning is a handle whose clean has begun and has not ended, by whatever operations.
// Nobody gets the handle before it is clean. No boot ends that.
type Cleaning struct {
	Backend    string `json:"backend"`
	Handle     string `json:"handle"`
	Device     string `json:"device"`
	Deployable string `json:"deployable"`
	// Fingerprint is that of the device.
	Fingerprint Fingerprint `json:"fingerprint,omitzero"`
	// Operation is the one that has begun last to clean it, and Method how.
	Operation uuid.UUID `json:"operation"`
	Method    string    `json:"method"`
	BootID    string    `json:"boot_id"`
	At        time.Time `json:"at"`
	// Note belongs to the driver, which goes on from it.
	Note json.RawMessage `json:"note,omitempty"`
}

// Of reports whether the clean may be one of this card. It is none of another card in
// the place of the one that is to be cleaned.
func (c Cleaning) Of(card cyborg.Fingerprint) bool {
	return !cyborg.Fingerprint(c.Fingerprint).Other(card)
}

// Key returns the key of the handle, which is that of an attachment.
func (c Cleaning) Key() AttachmentKey { return AttachmentKey{Backend: c.Backend, Handle: c.Handle} }

// byHandle orders cleans by their handles.
func byHandle(a, b Cleaning) int { return a.Key().compare(b.Key()) }

// DeviceKey identifies a device.
type DeviceKey struct {
	Backend string `json:"backend"`
	Device  string `json:"device"`
}

// compare orders keys by backend, then device.
func (k DeviceKey) compare(other DeviceKey) int {
	return cmp.Or(cmp.Compare(k.Backend, other.Backend), cmp.Compare(k.Device, other.Device))
}

// Layout is how a device was divided by the last partition of it that has succeeded. A boot
// may undo that.
type Layout struct {
	DeviceKey
	// Fingerprint is that of the device.
	Fingerprint Fingerprint `json:"fingerprint,omitzero"`
	// Wanted says how many parts of each kind the device has; empty for a whole one. It is
	// nil where no partition has succeeded yet, and where this host has reported since that
	// the device is divided otherwise: the records may have given away what is there.
	Wanted map[string]int `json:"wanted"`
	// Operation is the one that has begun last to divide the device.
	Operation uuid.UUID `json:"operation"`
	// BootID is the boot in which the device was last seen to be divided as wanted.
	BootID string    `json:"boot_id"`
	At     time.Time `json:"at"`
	// Note belongs to the driver, whose last one it is. It says nothing of the hardware
	// after the boot that NoteBootID names.
	Note       json.RawMessage `json:"note,omitempty"`
	NoteBootID string          `json:"note_boot_id,omitempty"`
	// Changed is the operation for which the driver has stored a note last, and may so have
	// made the device anew. It is zero in what earlier releases have written.
	Changed uuid.UUID `json:"changed,omitzero"`
}

// ChangedBy reports whether the operation may have made the device anew.
func (l Layout) ChangedBy(operation uuid.UUID) bool {
	if l.Changed == uuid.Nil { // by an earlier release, which kept only the note
		return l.Note != nil && l.Operation == operation
	}
	return l.Changed == operation
}

// Of reports whether the layout may be one of this card.
func (l Layout) Of(card cyborg.Fingerprint) bool {
	return !cyborg.Fingerprint(l.Fingerprint).Other(card)
}

// Undone reports whether the given boot may have undone the layout: the device was not seen
// to be divided like that since.
func (l Layout) Undone(bootID string) bool { return l.Wanted != nil && l.BootID != bootID }

// byDevice orders layouts by their devices.
func byDevice(a, b Layout) int { return a.DeviceKey.compare(b.DeviceKey) }

// RegionKey identifies what one image goes into: the deployables of a device
// with the same program set, or one deployable alone.
type RegionKey struct {
	Backend string `json:"backend"`
	Device  string `json:"device"`
	Region  string `json:"region"`
}

// compare orders keys by backend, device and region.
func (k RegionKey) compare(other RegionKey) int {
	return cmp.Or(cmp.Compare(k.Backend, other.Backend), cmp.Compare(k.Device, other.Device), cmp.Compare(k.Region, other.Region))
}

// Loaded is the image that this agent loaded last into a region.
type Loaded struct {
	RegionKey
	// Fingerprint is that of the device.
	Fingerprint Fingerprint `json:"fingerprint,omitzero"`
	// Deployable is the deployable through which the image was loaded.
	Deployable  string `json:"deployable"`
	SHA256      string `json:"sha256"`
	ImageID     string `json:"image_id,omitempty"`
	WholeDevice bool   `json:"whole_device,omitempty"`
	// BitstreamID is the image id that the region read back, of an image in effect or of one
	// that is pending.
	BitstreamID string    `json:"bitstream_id"`
	Operation   uuid.UUID `json:"operation"`
	At          time.Time `json:"at"`
}

// Of reports whether the image may be in this card.
func (l Loaded) Of(card cyborg.Fingerprint) bool {
	return !cyborg.Fingerprint(l.Fingerprint).Other(card)
}

// byRegion orders images by the region that they fill.
func byRegion(a, b Loaded) int { return a.RegionKey.compare(b.RegionKey) }

// Staged is an image that was brought to the host for an operation.
type Staged struct {
	Operation uuid.UUID `json:"operation"`
	SHA256    string    `json:"sha256"`
	At        time.Time `json:"at"`
}

// Subject is what an assignment number is about: a deployable, or a device as a whole.
// With neither it is the backend itself, and with no backend either, the file of the
// host's Nova whitelist.
type Subject struct {
	Backend    string `json:"backend"`
	Deployable string `json:"deployable"`
	Device     string `json:"device,omitempty"`
}

// DeviceSubject is a device, as the subject of what divides it.
func DeviceSubject(backend, device string) Subject { return Subject{Backend: backend, Device: device} }

// BackendSubject is a backend, as the subject of what configures it.
func BackendSubject(name string) Subject { return Subject{Backend: name} }

// WhitelistSubject is the host's file of Nova's whitelist.
func WhitelistSubject() Subject { return Subject{} }

// String names the subject for a message.
func (s Subject) String() string {
	switch {
	case s.Deployable != "":
		return s.Deployable
	case s.Device != "":
		return "device " + s.Device
	case s.Backend != "":
		return "backend " + s.Backend
	default:
		return "the whitelist of Nova"
	}
}

// compare orders subjects by backend, deployable and device.
func (s Subject) compare(other Subject) int {
	return cmp.Or(cmp.Compare(s.Backend, other.Backend), cmp.Compare(s.Deployable, other.Deployable), cmp.Compare(s.Device, other.Device))
}

// Assigned is the highest assignment number that was seen for a subject.
type Assigned struct {
	Subject
	Number int64 `json:"number"`
}

// Floor is what the conductor says about the numbers that a journal cannot know,
// because it is new: they are above Number, or among those of the operations
// that were open at that moment.
type Floor struct {
	Number int64   `json:"number"`
	Open   []int64 `json:"open,omitempty"`
}

// Position says how far a journal has got: a process that has opened it, and how
// many writes this one has made.
type Position struct {
	Opening uuid.UUID `json:"opening"`
	Writes  int64     `json:"writes"`
	// Told says that a conductor has recorded a position of this process.
	Told bool `json:"told,omitempty"`
}

// Change is one write. It first drops the entries that it names, then puts
// those that it lists, each replacing the entry with the same key.
type Change struct {
	// Sequence reserves the sequence numbers below it.
	Sequence        int64           `json:"sequence,omitempty"`
	DropSteps       []StepKey       `json:"drop_steps,omitempty"`
	Steps           []Step          `json:"steps,omitempty"`
	DropAttachments []AttachmentKey `json:"drop_attachments,omitempty"`
	Attachments     []Attachment    `json:"attachments,omitempty"`
	DropCleanings   []AttachmentKey `json:"drop_cleanings,omitempty"`
	Cleanings       []Cleaning      `json:"cleanings,omitempty"`
	DropLayouts     []DeviceKey     `json:"drop_layouts,omitempty"`
	Layouts         []Layout        `json:"layouts,omitempty"`
	DropLoaded      []RegionKey     `json:"drop_loaded,omitempty"`
	Loaded          []Loaded        `json:"loaded,omitempty"`
	DropStaged      []uuid.UUID     `json:"drop_staged,omitempty"`
	Staged          []Staged        `json:"staged,omitempty"`
	Assigned        []Assigned      `json:"assigned,omitempty"`
	// Floor replaces the one before; nil leaves it.
	DropFloor bool   `json:"drop_floor,omitempty"`
	Floor     *Floor `json:"floor,omitempty"`
	// Position is how far the process that wrote this had got with it.
	Position Position `json:"position,omitzero"`
	// Forgot is the position for which the journal was emptied; see Restart.
	Forgot Position `json:"forgot,omitzero"`
	// Told is that of Position.
	Told bool `json:"-"`
}

// stamp sets the boot id and the time where they are not set. It copies the
// lists first, since they belong to the caller.
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

	c.Cleanings = append([]Cleaning(nil), c.Cleanings...)
	for i := range c.Cleanings {
		g := &c.Cleanings[i]
		g.BootID, g.At = cmp.Or(g.BootID, bootID), orNow(g.At, now)
	}

	c.Layouts = append([]Layout(nil), c.Layouts...)
	for i := range c.Layouts {
		l := &c.Layouts[i]
		l.BootID, l.At = cmp.Or(l.BootID, bootID), orNow(l.At, now)
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

// orNow returns now for a time that is not set.
func orNow(at, now time.Time) time.Time {
	if at.IsZero() {
		return now
	}
	return at
}
