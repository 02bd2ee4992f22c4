package cyborg

import (
	"encoding/json"
	"fmt"
	"strings"
)

// HostFacts describe a machine: what hardly changes while it is up. Its agent finds
// them out when it starts. What it could not find out is empty.
type HostFacts struct {
	// Memory is what the kernel can use of the machine's memory, in bytes.
	Memory  int64       `json:"memory,omitempty"`
	Product HostProduct `json:"product,omitzero"`
	// NUMANodes are in the order of their ids.
	NUMANodes []NUMANode `json:"numa_nodes,omitempty"`
}

// HostProduct is what the machine's firmware calls it. Its serial number is not among
// that: only root can read it on the host, and here it would be for all readers.
type HostProduct struct {
	Vendor string `json:"vendor,omitempty"`
	Name   string `json:"name,omitempty"`
	Family string `json:"family,omitempty"`
}

// String is the product in one line; empty where nothing is known.
func (p HostProduct) String() string {
	text := strings.TrimSpace(p.Vendor + " " + p.Name)
	if p.Family != "" && p.Family != p.Name {
		text = strings.TrimSpace(text + " (" + p.Family + ")")
	}
	return text
}

// NUMANode is a group of CPUs with memory that is near to them; one of the two may be
// missing.
type NUMANode struct {
	ID      int    `json:"id"`
	CPUs    int    `json:"cpus"`               // how many are online
	CPUList string `json:"cpu_list,omitempty"` // which ones, as the kernel writes it: 0-15,32-47
	Memory  int64  `json:"memory"`             // what the kernel can use, in bytes
	// Distances are those to all nodes of the host, in the same order: 10 to itself, and
	// more the farther away the other one is.
	Distances []int `json:"distances"`
}

// What the facts of one host may have at most: several times what a large machine has.
const (
	MaxNUMANodes = 128

	maxNUMANodeID   = 1<<16 - 1
	maxNodeCPUs     = 1 << 16
	maxHostMemory   = 1 << 60
	maxNUMADistance = 255 // the kernel has a byte for it
	largestFacts    = 64 << 10
)

// localDistance is the distance of a NUMA node to itself, by the ACPI specification.
const localDistance = 10

// Distance returns how far a NUMA node is from another one. It is unknown between two
// nodes of which the facts do not tell it; f may be nil. A node is always near to itself.
func (f *HostFacts) Distance(from, to int) (distance int, known bool) {
	if f != nil {
		for _, node := range f.NUMANodes {
			for i, other := range f.NUMANodes {
				if node.ID == from && other.ID == to && i < len(node.Distances) {
					return node.Distances[i], true
				}
			}
		}
	}
	return localDistance, from == to
}

// Check refuses facts that no machine has, and those that are too large to be recorded.
// The error is of kind ErrInvalid.
func (f *HostFacts) Check() error {
	bad := func(format string, args ...any) error {
		return Errorf(ErrInvalid, "the facts of the host are wrong: %s", fmt.Sprintf(format, args...))
	}

	if f.Memory < 0 || f.Memory > maxHostMemory {
		return bad("%d bytes of memory", f.Memory)
	}
	for _, text := range []string{f.Product.Vendor, f.Product.Name, f.Product.Family} {
		if text != "" && !IsName(text) {
			return bad("%.80q of the product has a control character, or more than %d characters", text, longestName)
		}
	}
	if len(f.NUMANodes) > MaxNUMANodes {
		return bad("%d NUMA nodes are more than %d", len(f.NUMANodes), MaxNUMANodes)
	}

	last := -1
	for _, node := range f.NUMANodes {
		switch {
		case node.ID <= last || node.ID > maxNUMANodeID:
			return bad("NUMA node %d comes after %d", node.ID, last)
		case node.CPUs < 0 || node.CPUs > maxNodeCPUs:
			return bad("NUMA node %d has %d CPUs", node.ID, node.CPUs)
		case strings.Trim(node.CPUList, "0123456789,-") != "":
			return bad("NUMA node %d has the CPUs %.80q", node.ID, node.CPUList)
		case node.Memory < 0 || node.Memory > maxHostMemory:
			return bad("NUMA node %d has %d bytes of memory", node.ID, node.Memory)
		case len(node.Distances) != len(f.NUMANodes):
			return bad("NUMA node %d has %d distances to %d nodes", node.ID, len(node.Distances), len(f.NUMANodes))
		}

		for _, distance := range node.Distances {
			if distance < 1 || distance > maxNUMADistance {
				return bad("NUMA node %d has the distance %d", node.ID, distance)
			}
		}
		last = node.ID
	}

	text, err := json.Marshal(f)
	if err != nil {
		return bad("%v", err)
	}
	if len(text) > largestFacts {
		return bad("they have %d bytes, more than %d", len(text), largestFacts)
	}
	return nil
}
