package cyborg

import (
	"strings"
	"time"

	"github.com/google/uuid"
)

// EventAxis is what about its subject an event has changed. For each subject
// and axis, an event begins at the value at which the one before it ended. Some
// axes are finer: AxisHolder and AxisUnclean count for each handle by itself, and the
// drift of instances for each instance (Data has the handle or the instance).
type EventAxis string

// The axes. Triggers of the database write the events, so each of these is a
// word of a trigger, too. docs/data.md says what each axis has as its values.
const (
	AxisAccelerator    EventAxis = "accelerator"    // to which accelerator a handle belongs
	AxisAdministration EventAxis = "administration" // whether an operator has taken an accelerator out of use
	AxisAttributes     EventAxis = "attributes"     // what an operator has set beside the reported attributes
	AxisBackend        EventAxis = "backend"        // which backend shows a device
	AxisBitstream      EventAxis = "bitstream"      // the image that an accelerator shows
	AxisBoot           EventAxis = "boot"           // the boot of a host
	AxisCancel         EventAxis = "cancel"         // somebody has asked an operation to stop, and whether its run had missed that
	AxisClaim          EventAxis = "claim"          // the operation that works on an accelerator
	AxisConditions     EventAxis = "conditions"     // what the driver of an accelerator says about it
	AxisDevice         EventAxis = "device"         // to which device an accelerator belongs
	AxisDriver         EventAxis = "driver"         // the driver of a backend
	AxisExcludes       EventAxis = "excludes"       // what nobody may have while somebody has an accelerator, as its driver names it
	AxisFence          EventAxis = "fence"          // why new work is kept off an accelerator
	AxisHealth         EventAxis = "health"         // what a boot of the host has cost
	AxisHolder         EventAxis = "holder"         // who has a handle of an accelerator
	AxisIdentity       EventAxis = "identity"       // whether a host's agent may have certificates of the servers' authority
	AxisInstallation   EventAxis = "installation"   // whether an accelerator that left service has still to be uninstalled
	AxisJournal        EventAxis = "journal"        // a host's journal was lost, or is an old copy
	AxisLayout         EventAxis = "layout"         // into which parts a device is divided
	AxisLifecycle      EventAxis = "lifecycle"      // how far an accelerator is taken into service
	AxisName           EventAxis = "name"           // the name of an accelerator or a device profile
	AxisNovaWhitelist  EventAxis = "nova_whitelist" // whether Nova itself gives out an accelerator
	AxisOptions        EventAxis = "options"        // the options of a backend
	AxisPendingImage   EventAxis = "pending_image"  // the image that an accelerator has loaded and does not show yet
	AxisPresence       EventAxis = "presence"       // whether a host shows a device, an accelerator or a handle
	AxisProject        EventAxis = "project"        // the owner of an accelerator request
	AxisProtected      EventAxis = "protected"      // why an accelerator must not be touched
	AxisReplacedBy     EventAxis = "replaced_by"    // which other card is in the place of a device
	AxisReported       EventAxis = "reported"       // the specs and attributes as the driver reports them
	AxisSameHolder     EventAxis = "same_holder"    // with which others an accelerator goes to one holder
	AxisSettled        EventAxis = "settled"        // what Reconcile has had a host correct
	AxisSpecs          EventAxis = "specs"          // what an operator has set beside the reported specs
	AxisState          EventAxis = "state"          // the state of a backend, an operation or an accelerator request
	AxisSteps          EventAxis = "steps"          // the steps of an operation
	AxisStrayRun       EventAxis = "stray_run"      // the run that Reconcile terminates because an operation is not its
	AxisUnclean        EventAxis = "unclean"        // how a handle of an accelerator has to be cleaned before somebody gets it
	AxisUndone         EventAxis = "undone"         // why a host does not have a handle attached that the records have attached there
)

// EventAxes returns every axis except those of drift: each class of drift has
// an axis of its own (DriftClass.Axis).
func EventAxes() []EventAxis {
	return []EventAxis{
		AxisAccelerator, AxisAdministration, AxisAttributes, AxisBackend, AxisBitstream, AxisBoot, AxisCancel, AxisClaim, AxisConditions, AxisDevice,
		AxisDriver, AxisExcludes, AxisFence, AxisHealth, AxisHolder, AxisIdentity, AxisInstallation, AxisJournal, AxisLayout, AxisLifecycle, AxisName,
		AxisNovaWhitelist, AxisOptions, AxisPendingImage, AxisPresence, AxisProject, AxisProtected, AxisReplacedBy, AxisReported, AxisSameHolder,
		AxisSettled, AxisSpecs, AxisState, AxisSteps, AxisStrayRun, AxisUnclean, AxisUndone,
	}
}

// driftAxisPrefix is how the axis of each class of drift begins.
const driftAxisPrefix = "drift_"

// Axis returns the axis of the events about differences of this class. A value
// describes the difference in words; it is empty while there is no difference.
func (c DriftClass) Axis() EventAxis { return EventAxis(driftAxisPrefix + string(c)) }

// Drift returns the class of drift that the axis belongs to; ok is false for
// any other axis.
func (a EventAxis) Drift() (class DriftClass, ok bool) {
	text, ok := strings.CutPrefix(string(a), driftAxisPrefix)
	return DriftClass(text), ok
}

// Event is one recorded change of one subject. Its Cursor gives its place in
// the feed.
type Event struct {
	Cursor    Cursor     `json:"cursor"`
	Subject   Subject    `json:"subject"`
	Host      string     `json:"host,omitempty"`
	Axis      EventAxis  `json:"axis"`
	From      string     `json:"from"`
	To        string     `json:"to"`
	Operation uuid.UUID  `json:"operation_id,omitzero"`
	Actor     string     `json:"actor,omitempty"`
	RequestID string     `json:"request_id,omitempty"`
	Data      JSONObject `json:"data,omitempty"`
	Time      time.Time  `json:"time"`
}
