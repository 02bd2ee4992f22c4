package db

import (
	"bytes"
	"encoding/json"
	"reflect"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// The rows of the inventory, as a merge reads and writes them. Their JSON names are the columns'.

// document is a JSON value in one spelling, so that two of them can be compared: keys sorted, no spaces.
type document string

// documentOf spells a value; nil maps and slices become the empty document.
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

// MarshalJSON puts the value itself into the JSON around it.
func (d document) MarshalJSON() ([]byte, error) { return []byte(d), nil }

// UnmarshalJSON respells what the database wrote.
func (d *document) UnmarshalJSON(text []byte) error {
	out, err := respell(text)
	*d = out
	return err
}

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

type deviceRow struct {
	UUID            uuid.UUID         `json:"uuid"`
	Host            string            `json:"host"`
	Backend         string            `json:"backend"`
	Driver          string            `json:"driver"`
	Identity        string            `json:"identity"`
	Type            cyborg.DeviceType `json:"type"`
	VendorID        string            `json:"vendor_id"`
	ProductID       string            `json:"product_id"`
	Vendor          string            `json:"vendor"`
	Model           string            `json:"model"`
	NUMANode        *int              `json:"numa_node"`
	BoardInfo       document          `json:"board_info"`
	ControlPathKind string            `json:"control_path_kind"`
	ControlPathInfo document          `json:"control_path_info"`
	ObservedSeq     int64             `json:"observed_seq"`
	Presence        cyborg.Presence   `json:"presence"`
}

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
	ImageBoot    *string         `json:"image_boot"` // in which its image was looked at; nil where it has none, or one is being loaded
	Claimed      bool            `json:"claimed"`    // read only

	administrationRow
}

// administrationRow is how a deployable is administered. A merge gives it to what is new, and never changes it.
type administrationRow struct {
	Administration cyborg.Administration `json:"administration"`
	MaintainReason string                `json:"maintain_reason"`
	MaintainBy     string                `json:"maintain_by"`
	MaintainUntil  *string               `json:"maintain_until"`
}

type handleRow struct {
	UUID           uuid.UUID         `json:"uuid"`
	DeployableUUID uuid.UUID         `json:"deployable_uuid"`
	Host           string            `json:"host"`
	Kind           cyborg.HandleKind `json:"kind"`
	Info           document          `json:"info"`
	Identity       string            `json:"identity"`
	Presence       cyborg.Presence   `json:"presence"`
	Holder         string            `json:"holder"` // read only; also one that it was left with; empty while it is free
}

// tracked is a row with what was recorded of it, so that only differences are written.
type tracked[T any] struct {
	row T
	was *T // nil where the row is new
}

func recorded[T any](row T) *tracked[T] { was := row; return &tracked[T]{row: row, was: &was} }

// pending is what a merge writes of one table.
type pending[T any] struct{ inserts, updates []T }

func (p *pending[T]) add(t *tracked[T]) {
	switch {
	case t.was == nil:
		p.inserts = append(p.inserts, t.row)
	case !reflect.DeepEqual(t.row, *t.was):
		p.updates = append(p.updates, t.row)
	}
}

func (p *pending[T]) size() int { return len(p.inserts) + len(p.updates) }
