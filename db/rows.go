package db

import (
	"bytes"
	"encoding/json"
	"reflect"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// This file has the rows of the inventory as a merge reads and writes them.
// Their JSON names are the names of the columns.

// document is a JSON value in a canonical form, with sorted keys and without
// spaces, so that two of them can be compared as texts.
type document string

// documentOf converts a value; nil maps and slices become the empty document.
func documentOf(value any, empty document) (document, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return "", err
	}

	out, err := respell(text)
	if out == "null" {
		out = empty
	}

	return out, err
}

// respell brings JSON into the canonical form. Numbers keep their digits:
// through a float64 large ones would lose some.
func respell(text []byte) (document, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return "", err
	}

	out, err := json.Marshal(value)
	return document(out), err
}

// MarshalJSON returns the JSON itself, not a string that contains it.
func (d document) MarshalJSON() ([]byte, error) { return []byte(d), nil }

// UnmarshalJSON brings JSON that PostgreSQL wrote into the canonical form.
func (d *document) UnmarshalJSON(text []byte) error {
	out, err := respell(text)
	*d = out
	return err
}

// backendRow is a row of backends.
type backendRow struct {
	Host     string              `json:"host"`
	Name     string              `json:"name"`
	Driver   string              `json:"driver"`
	Options  document            `json:"options"`
	State    cyborg.BackendState `json:"state"`
	Error    string              `json:"error"`
	Services []string            `json:"services"`
	Reported bool                `json:"reported"`
}

// deviceRow is a row of devices.
type deviceRow struct {
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
	BoardInfo       document `json:"board_info"`
	ControlPathKind string   `json:"control_path_kind"`
	ControlPathInfo document `json:"control_path_info"`

	ObservedSeq int64           `json:"observed_seq"`
	Presence    cyborg.Presence `json:"presence"`
}

// deployableRow is a row of deployables.
type deployableRow struct {
	UUID         uuid.UUID       `json:"uuid"`
	DeviceUUID   uuid.UUID       `json:"device_uuid"`
	Host         string          `json:"host"`
	Name         string          `json:"name"`
	LocalName    string          `json:"local_name"`
	ProviderUUID uuid.UUID       `json:"provider_uuid"`
	Accelerator  string          `json:"accelerator"`
	Specs        document        `json:"specs"`
	Attributes   document        `json:"attributes"`
	BitstreamID  string          `json:"bitstream_id"`
	ProgramSet   string          `json:"program_set"`
	Protected    string          `json:"protected"`
	Presence     cyborg.Presence `json:"presence"`
	FenceReason  *string         `json:"fence_reason"`

	// ImageBoot is the boot in which the deployable's image was last seen; nil
	// where it has none, or while one is being loaded.
	ImageBoot *string `json:"image_boot"`

	Claimed bool `json:"claimed"` // read only: an operation works on it

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

// handleRow is a row of attach_handles.
type handleRow struct {
	UUID           uuid.UUID         `json:"uuid"`
	DeployableUUID uuid.UUID         `json:"deployable_uuid"`
	Host           string            `json:"host"`
	Kind           cyborg.HandleKind `json:"kind"`
	Info           document          `json:"info"`
	Identity       string            `json:"identity"`
	Presence       cyborg.Presence   `json:"presence"`

	// Holder is read only: the holder's kind and id, also those of the last holder
	// of an unconfirmed handle; empty while the handle is free.
	Holder string `json:"holder"`
}

// tracked is a row together with what is recorded of it, so that only changed
// rows are written.
type tracked[T any] struct {
	row T
	was *T // nil where the row is new
}

// recorded returns a tracked row as it was read from the database.
func recorded[T any](row T) *tracked[T] { was := row; return &tracked[T]{row: row, was: &was} }

// pending are the rows of one table that a merge writes.
type pending[T any] struct{ inserts, updates []T }

// add adds the row where it is new or has changed.
func (p *pending[T]) add(t *tracked[T]) {
	switch {
	case t.was == nil:
		p.inserts = append(p.inserts, t.row)
	case !reflect.DeepEqual(t.row, *t.was):
		p.updates = append(p.updates, t.row)
	}
}

// size returns how many rows are to be written.
func (p *pending[T]) size() int { return len(p.inserts) + len(p.updates) }
