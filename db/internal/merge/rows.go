package merge

import (
	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// This file has the rows of the inventory as a merge reads and writes them.
// Their JSON names are the names of the columns.

// BackendRow is a row of backends.
type BackendRow struct {
	Host     string              `json:"host"`
	Name     string              `json:"name"`
	Driver   string              `json:"driver"`
	Options  Document            `json:"options"`
	State    cyborg.BackendState `json:"state"`
	Error    string              `json:"error"`
	Services []string            `json:"services"`
	Reported bool                `json:"reported"`
}

// DeviceRow is a row of devices.
type DeviceRow struct {
	UUID      uuid.UUID         `json:"uuid"`
	Host      string            `json:"host"`
	Backend   string            `json:"backend"`
	Driver    string            `json:"driver"`
	Identity  string            `json:"identity"`
	Type      cyborg.DeviceType `json:"type"`
	VendorID  string            `json:"vendor_id"`
	ProductID string            `json:"product_id"`
	Vendor    string            `json:"vendor"`
	Model     string            `json:"model"`

	NUMANode        *int     `json:"numa_node"`
	BoardInfo       Document `json:"board_info"`
	ControlPathKind string   `json:"control_path_kind"`
	ControlPathInfo Document `json:"control_path_info"`

	// Fingerprint is what reports have said of the card so far.
	Fingerprint cyborg.Fingerprint `json:"fingerprint"`
	// ReplacedBy describes the other card that is there instead of this one; nil where
	// none was seen.
	ReplacedBy *string `json:"replaced_by"`

	Partitioning Document `json:"partitioning"` // null for none

	ObservedSeq int64           `json:"observed_seq"`
	Presence    cyborg.Presence `json:"presence"`

	// PartitionOperation is read only: the operation that divides the device now.
	PartitionOperation *uuid.UUID `json:"partition_operation"`
}

// DeployableRow is a row of deployables.
type DeployableRow struct {
	UUID         uuid.UUID       `json:"uuid"`
	DeviceUUID   uuid.UUID       `json:"device_uuid"`
	Host         string          `json:"host"`
	Name         string          `json:"name"`
	LocalName    string          `json:"local_name"`
	ProviderUUID uuid.UUID       `json:"provider_uuid"`
	Accelerator  string          `json:"accelerator"`
	Specs        Document        `json:"specs"`
	Attributes   Document        `json:"attributes"`
	BitstreamID  string          `json:"bitstream_id"`
	PendingImage Document        `json:"pending_image"` // null for none
	ProgramSet   string          `json:"program_set"`
	SameHolder   string          `json:"same_holder"`
	Excludes     []string        `json:"excludes"` // never nil
	Conditions   Document        `json:"conditions"`
	Preparation  Document        `json:"preparation"` // null for none
	Cleaning     Document        `json:"cleaning"`    // null for none
	Protected    string          `json:"protected"`
	Presence     cyborg.Presence `json:"presence"`
	FenceReason  *string         `json:"fence_reason"`

	// ImageBoot is the boot in which the deployable's image was last seen; nil
	// where it has none, or while one is being loaded.
	ImageBoot *string `json:"image_boot"`

	Claimed   bool `json:"claimed"`    // read only: an operation works on it
	NovaGives bool `json:"nova_gives"` // read only: it is in the whitelist of Nova

	administrationRow
}

// administrationRow is how a deployable is administered. A merge sets it for
// new deployables, and never changes it.
type administrationRow struct {
	Administration cyborg.Administration `json:"administration"`
	MaintainReason string                `json:"maintain_reason"`
	MaintainBy     string                `json:"maintain_by"`
	MaintainUntil  *string               `json:"maintain_until"`
}

// HandleRow is a row of attach_handles.
type HandleRow struct {
	UUID           uuid.UUID         `json:"uuid"`
	DeployableUUID uuid.UUID         `json:"deployable_uuid"`
	Host           string            `json:"host"`
	Kind           cyborg.HandleKind `json:"kind"`
	Info           Document          `json:"info"`
	Identity       string            `json:"identity"`
	Companions     []string          `json:"companions"` // never nil
	Presence       cyborg.Presence   `json:"presence"`

	// Holder is read only: the holder's kind and id, also those of the last holder
	// of an unconfirmed handle; empty while the handle is free.
	Holder string `json:"holder"`
}

// Tracked is a row together with what is recorded of it, so that only changed
// rows are written.
type Tracked[T any] struct {
	row T
	was *T // nil where the row is new
}

// Row returns the row as it is to be written.
func (t *Tracked[T]) Row() *T { return &t.row }

// Known says that the row was in the database before the merge.
func (t *Tracked[T]) Known() bool { return t.was != nil }

// Recorded returns a tracked row as it was read from the database.
func Recorded[T any](row T) *Tracked[T] { was := row; return &Tracked[T]{row: row, was: &was} }
