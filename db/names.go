package db

import (
	"github.com/cyborg-project/cyborg/db/internal/feed"
	"github.com/cyborg-project/cyborg/db/internal/ingest"
	"github.com/cyborg-project/cyborg/db/internal/inventory"
	"github.com/cyborg-project/cyborg/db/internal/openstack"
	"github.com/cyborg-project/cyborg/db/internal/operation"
	"github.com/cyborg-project/cyborg/db/internal/records"
)

// Options are the settings of a store; the zero value works.
type Options = records.Options

// A list is read page by page, or as a Listing in an order that the caller
// chooses.
type (
	// Page asks for a part of a list, in the list's own order.
	Page = records.Page
	// Listing asks for a whole list or a part of it, in an order that the caller
	// chooses.
	Listing = records.Listing
	// UUIDRange chooses the UUIDs from First to Last, both included.
	UUIDRange = records.UUIDRange
)

// These types choose and describe accelerators and devices, as the API of
// Cyborg and that of OpenStack list them.
type (
	// AcceleratorFilter chooses accelerators; empty fields choose all.
	AcceleratorFilter = inventory.AcceleratorFilter
	// AcceleratorName has the names of an accelerator: its UUID and its name in the
	// records, and the name that its driver uses on its host.
	AcceleratorName = inventory.AcceleratorName
	// DeviceFilter chooses devices in the same way as AcceleratorFilter does.
	DeviceFilter = inventory.DeviceFilter
	// DeployableFilter chooses deployables; empty fields choose all.
	DeployableFilter = inventory.DeployableFilter
	// DeployableAttribute is one attribute of a deployable, as the API shows it.
	DeployableAttribute = inventory.DeployableAttribute
	// ListedDeployable is one deployable in a list of all of them.
	ListedDeployable = inventory.ListedDeployable
	// ListedDevice is one device in a list of all of them.
	ListedDevice = inventory.ListedDevice
)

// LastSeen says when a host was last heard.
type LastSeen = inventory.LastSeen

// An Ingester merges what many agents send at once.
type (
	// Ingester merges the messages that many agents send at once into few
	// transactions.
	Ingester = ingest.Ingester
	// IngesterOptions configures an Ingester; the zero value works.
	IngesterOptions = ingest.Options
)

// Reports and Heartbeats are what an Ingester writes, as
// IngesterOptions.Flushed is told.
const (
	Reports    = ingest.Reports
	Heartbeats = ingest.Heartbeats
)

// An Adoption has the records of an OpenStack Cyborg, and Adopted what became
// of them.
type (
	// Adoption is what is taken over from the records of another cloud, with the
	// UUIDs that everything has there.
	Adoption = ingest.Adoption
	// AdoptedDevice is a card.
	AdoptedDevice = ingest.AdoptedDevice
	// AdoptedDeployable is an accelerator in service: a part of a card.
	AdoptedDeployable = ingest.AdoptedDeployable
	// AdoptedAttribute is an attribute that somebody set through the API.
	AdoptedAttribute = ingest.AdoptedAttribute
	// AdoptedHandle is an attach handle: what a consumer of an accelerator
	// receives.
	AdoptedHandle = ingest.AdoptedHandle
	// AdoptedARQ is an accelerator request.
	AdoptedARQ = ingest.AdoptedARQ
	// AdoptionKind is the kind of an adopted thing.
	AdoptionKind = ingest.AdoptionKind
	// AdoptionCount counts the things of one kind in an adoption.
	AdoptionCount = ingest.AdoptionCount
	// AdoptionConflict is a thing that cannot be adopted because our records have
	// something else in its place.
	AdoptionConflict = ingest.AdoptionConflict
	// Adopted is the result of an adoption, or of its rehearsal.
	Adopted = ingest.Adopted
)

// What is adopted.
const (
	AdoptDevice     = ingest.AdoptDevice
	AdoptDeployable = ingest.AdoptDeployable
	AdoptHandle     = ingest.AdoptHandle
	AdoptProfile    = ingest.AdoptProfile
	AdoptARQ        = ingest.AdoptARQ
)

// An operation is admitted by an Admission, and listed by an OperationFilter.
type (
	// Admission is what Admit records: an operation and, with it, its claims.
	Admission = operation.Admission
	// Admitted is the answer of Admit.
	Admitted = operation.Admitted
	// OperationFilter chooses operations; empty fields choose all.
	OperationFilter = operation.Filter
)

// What Reconcile settles: operations without a workflow, and attachments about
// which a host and the records disagree.
type (
	// Run is a run of an operation's workflow, as it introduces itself to the
	// records.
	Run = operation.Run
	// Addressee is what the steps of a run carry.
	Addressee = operation.Addressee
	// Orphan is an operation that no workflow runs, as far as the records can tell.
	Orphan = operation.Orphan
	// OperationPlace is a place in the order of admission.
	OperationPlace = operation.Place
	// Disagreement is an attachment about which the journal of a host and the
	// records disagree, with the decision of the records.
	Disagreement = operation.Disagreement
	// Unsettled is an attachment that Reconcile could not settle, and why.
	Unsettled = operation.Unsettled
	// AttachmentPlace is a place in the order in which Disagreements lists: after a
	// handle of a host or, with no handle, after all handles of the host.
	AttachmentPlace = operation.AttachmentPlace
)

// An ImageURL permits one host to fetch one image.
type ImageURL = operation.ImageURL

// ErrOtherARQs refuses a bind that leaves out requests of its instance.
var ErrOtherARQs = operation.ErrOtherARQs

// Accelerator requests and device profiles, as OpenStack's Cyborg has them.
type (
	// ARQFilter chooses accelerator requests; empty fields choose all.
	ARQFilter = openstack.ARQFilter
	// ARQDeletion chooses the accelerator requests to delete.
	ARQDeletion = openstack.ARQDeletion
	// DeletedARQs is the result of a deletion.
	DeletedARQs = openstack.DeletedARQs
	// DeviceProfileFilter chooses device profiles; empty fields choose all.
	DeviceProfileFilter = openstack.DeviceProfileFilter
)

// These types say which instances hold accelerators, and whether Nova still has
// them.
type (
	// HeldInstance is an instance with accelerator requests, as the records have
	// it.
	HeldInstance = openstack.HeldInstance
	// SeenInstance is what Nova has said about an instance that exists.
	SeenInstance = openstack.SeenInstance
	// InstanceDrift is a difference between an instance and its requests.
	InstanceDrift = openstack.InstanceDrift
)

// What Placement should know of a host, and what came of telling it.
type (
	// PlacementHost is what Placement should know of one host, with the marks of
	// what was written there before.
	PlacementHost = openstack.PlacementHost
	// PlacementDeployable is one deployable.
	PlacementDeployable = openstack.PlacementDeployable
	// PlacementOutcome is the result of bringing a host into step.
	PlacementOutcome = openstack.PlacementOutcome
	// PlacementState are the counts that operators watch.
	PlacementState = openstack.PlacementState
	// DriftFilter chooses drift; empty fields choose all.
	DriftFilter = openstack.DriftFilter
)

// An EventFilter chooses events.
type EventFilter = feed.EventFilter

// A Turn is asked for before the database is; see WithTurn.
type Turn = records.Turn
