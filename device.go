package cyborg

import (
	"time"

	"github.com/google/uuid"
)

// DeviceType is the class of hardware; the values are those of the OpenStack
// API, and drivers may add more.
type DeviceType string

// The device types of OpenStack Cyborg, and PCI for a function of an unknown
// class.
const (
	DeviceTypeGPU    DeviceType = "GPU"
	DeviceTypeFPGA   DeviceType = "FPGA"
	DeviceTypeAIChip DeviceType = "AICHIP"
	DeviceTypeQAT    DeviceType = "QAT"
	DeviceTypeNIC    DeviceType = "NIC"
	DeviceTypeSSD    DeviceType = "SSD"
	DeviceTypePCI    DeviceType = "PCI"
)

// DeviceTypes returns the types of devices.
func DeviceTypes() []DeviceType {
	return []DeviceType{DeviceTypeGPU, DeviceTypeFPGA, DeviceTypeAIChip, DeviceTypeQAT, DeviceTypeNIC, DeviceTypeSSD, DeviceTypePCI}
}

// HandleKind is the kind of an attach handle.
type HandleKind string

// The attach handle kinds of OpenStack Cyborg, and device nodes.
const (
	HandlePCI     HandleKind = "PCI"      // info: domain, bus, device, function
	HandleMDEV    HandleKind = "MDEV"     // info: asked_type, vgpu_mark
	HandleDEV     HandleKind = "DEV"      // info: path
	HandleTestPCI HandleKind = "TEST_PCI" // as PCI, of a device that does not exist
)

// HolderKind is the kind of a consumer.
type HolderKind string

// The holder kinds.
const (
	HolderInstance HolderKind = "instance" // a virtual machine; id: its UUID
	HolderHost     HolderKind = "host"     // a host's own software; id: the host's name
	HolderService  HolderKind = "service"  // an infrastructure service; id: its name
)

// Holder is who has an attach handle.
type Holder struct {
	Kind HolderKind `json:"kind"`
	ID   string     `json:"id"`
}

// String names the holder for people: "instance 5f5f…".
func (h Holder) String() string { return string(h.Kind) + " " + h.ID }

// Host is a machine with an agent.
type Host struct {
	// Name is the only identity of a host. It is the name that Placement and Nova
	// know (hypervisor_hostname).
	Name         string    `json:"name"`
	BootID       string    `json:"boot_id"`
	Instance     string    `json:"instance,omitempty"`      // of its agent; see agentapi.Report
	Address      string    `json:"agent_address,omitempty"` // from which its agent was last heard
	AgentVersion string    `json:"agent_version"`
	Generation   int64     `json:"generation"` // grows with every change of its inventory
	RegisteredAt time.Time `json:"registered_at"`
	LastSeen     time.Time `json:"last_seen,omitzero"` // zero where its agent was never heard, as after an adoption
	Silent       bool      `json:"silent"`             // no heartbeat for longer than the configured limit
	// Revoked is when the certificates of the host were revoked, by the database's
	// clock; zero where one counts, or would count once it is enrolled.
	Revoked time.Time `json:"revoked,omitzero"`
	// ClockOffset is how many seconds the host's clock was ahead of the database's
	// at the last heartbeat; negative where it was behind, nil where no heartbeat
	// had a time. The clock seems behind by the time that the heartbeat took to
	// arrive.
	ClockOffset *float64  `json:"clock_offset,omitempty"`
	Devices     int       `json:"devices"`
	Backends    []Backend `json:"backends"`
	// Facts are those of the last whole report; nil where it had none.
	Facts *HostFacts `json:"facts,omitempty"`
	// DuplicateAgents are other agents that run under the host's name now. Their
	// reports are refused.
	DuplicateAgents []DuplicateAgent `json:"rivals,omitempty"`
}

// SilentSince returns the end of a sentence about a host whose agent was last
// heard at this time. The zero time and the epoch mean that it was never heard.
func SilentSince(heard time.Time) string {
	if heard.Unix() <= 0 {
		return "silent, and was never heard"
	}
	return "silent since " + heard.UTC().Format(time.RFC3339)
}

// DuplicateAgent is an agent that runs under the name of a host which has
// another agent. It is usually that of a cloned machine whose configuration was
// not changed.
type DuplicateAgent struct {
	Instance     string    `json:"instance"`
	BootID       string    `json:"boot_id"`
	Address      string    `json:"agent_address,omitempty"`
	AgentVersion string    `json:"agent_version"`
	Since        time.Time `json:"since"` // since when it has been refused
	LastSeen     time.Time `json:"last_seen"`
}

// BackendState says how a driver's backend does on its host.
type BackendState string

// The backend states.
const (
	BackendOK       BackendState = "ok"
	BackendFailed   BackendState = "failed"   // its last discovery failed; its devices are left as they were
	BackendDisabled BackendState = "disabled" // uninstalled by an operator
)

// Backend is one named instance of a compiled-in driver on a host, with its own
// options.
type Backend struct {
	Host    string         `json:"host"`
	Name    string         `json:"name"`
	Driver  string         `json:"driver"`
	Options map[string]any `json:"options,omitempty"`
	State   BackendState   `json:"state"`
	Error   string         `json:"error,omitempty"`
	// Services are the acceleration services it offers: install, attach, program,
	// usage, in_use, watch.
	Services []string `json:"services"`
}

// Key identifies the backend in lists: it is the marker after which the next
// page begins.
func (b Backend) Key() string { return b.Host + "/" + b.Name }

// ControlPath is how a device is reached for control.
type ControlPath struct {
	Kind string            `json:"kind"` // "PCI", as in OpenStack
	Info map[string]string `json:"info"`
}

// Device is a physical card.
type Device struct {
	ID          int64       `json:"-"` // the small integer that /v2 exposes as device_id
	UUID        uuid.UUID   `json:"uuid"`
	Host        string      `json:"host"`
	Backend     string      `json:"backend"`
	Driver      string      `json:"driver"`
	Identity    string      `json:"identity"` // stable within the host: serial number or PCI address
	Type        DeviceType  `json:"type"`
	VendorID    string      `json:"vendor_id"`  // four hexadecimal digits, lower case; any text for what is not PCI
	ProductID   string      `json:"product_id"` // likewise
	Vendor      string      `json:"vendor"`     // name, or the id where nobody knows one
	Model       string      `json:"model"`
	NUMANode    *int        `json:"numa_node,omitempty"`
	BoardInfo   JSONObject  `json:"board_info,omitempty"`
	ControlPath ControlPath `json:"control_path"`
	Fingerprint Fingerprint `json:"fingerprint,omitzero"`
	Presence    Presence    `json:"presence"`
	// Partitioning says how the device can be divided, and is; nil where its driver cannot
	// divide it.
	Partitioning *Partitioning `json:"partitioning,omitempty"`
	// WantedLayout is what the last partition that succeeded has made of it; nil where there
	// was none. The device may have lost that since.
	WantedLayout *Layout `json:"wanted_layout,omitempty"`
	// ReplacedBy describes the other card that was seen in the place of this one, which
	// is missing; empty where none was.
	ReplacedBy string    `json:"replaced_by,omitempty"`
	CreatedAt  time.Time `json:"created_at"`
	UpdatedAt  time.Time `json:"updated_at"`
	// Deployables is filled when a device is read with its parts.
	Deployables []Accelerator `json:"accelerators,omitempty"`
}

// Layout returns how the device is divided. One that cannot be divided is whole.
func (d *Device) Layout() Layout {
	if d.Partitioning == nil {
		return Layout{}
	}
	return d.Partitioning.Layout
}

// JSONObject is free-form structured data.
type JSONObject map[string]any

// AttachHandle is what a consumer receives. Holder is nil while it is free.
type AttachHandle struct {
	ID       int64             `json:"-"`
	UUID     uuid.UUID         `json:"uuid"`
	Kind     HandleKind        `json:"kind"`
	Info     map[string]string `json:"info"`
	Identity string            `json:"identity"` // unique within the host, e.g. the PCI address
	Presence Presence          `json:"presence"`
	Holder   *Holder           `json:"holder,omitempty"`
	// Unconfirmed is the former holder of a handle that the host may still have
	// attached: the handle was taken back by force, its request was deleted while the
	// host had it prepared, or the host was forgotten and came back with it. Nobody
	// gets the handle until the host has settled it.
	Unconfirmed *Holder `json:"left,omitempty"`
	// Operation is the operation that took the handle for its holder.
	Operation uuid.UUID `json:"operation_id,omitzero"`
	// AttachedAt is when the attach was confirmed; zero while it is in progress or
	// in doubt.
	AttachedAt time.Time `json:"attached_at,omitzero"`
	// Undone is set while the host that holds the handle has it attached no longer.
	Undone *Undone `json:"undone,omitempty"`
	// With are the PCI addresses of the functions that go with it to its holder.
	With []string `json:"with,omitempty"`
	// Prepared says that its host attaches it for its holder, although that is an
	// instance or a service. Parameters are what was chosen for the holder.
	Prepared   bool              `json:"prepared,omitempty"`
	Parameters map[string]string `json:"parameters,omitempty"`
	// Clean is how it is cleaned after its holder; empty for not at all.
	Clean CleanMethod `json:"clean,omitempty"`
	// Unclean is set while it has still to be cleaned after its last holder. Nobody gets
	// it before that.
	Unclean *Unclean `json:"unclean,omitempty"`
	// Cleaned says how it was cleaned last; nil where it never was.
	Cleaned *Evidence `json:"cleaned,omitempty"`
	// Health is that of the accelerator request that has the handle; empty where
	// nothing is known to be wrong.
	Health ARQHealth `json:"health,omitempty"`
}

// Undone says why a host no longer has an attachment that the records have, and
// since when they know. The host attaches it again as soon as it can.
type Undone struct {
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// Free says that the handle is present and clean, that nobody holds it, and that its
// host has confirmed that nobody has it.
func (h *AttachHandle) Free() bool {
	return h.Presence == PresencePresent && h.Holder == nil && h.Unconfirmed == nil && h.Unclean == nil
}

// Attribute is one fact about a deployable. The key "rc" holds its resource
// class in Placement, keys that begin with "trait" its traits.
type Attribute struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// ProviderUUID is the UUID of a new Placement resource provider of that name:
// uuid3 in the DNS namespace, as upstream Cyborg computes it
// (cyborg/common/placement_client.py). It is stored once and never computed
// again.
func ProviderUUID(deployable string) uuid.UUID {
	return uuid.NewMD5(uuid.NameSpaceDNS, []byte(deployable))
}
