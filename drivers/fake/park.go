package fake

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// The limits of a park. A card has a PCI bus of its own, so 255 buses bound the cards of a type, and the 256 functions
// of a bus bound the handles of a card.
const (
	maxCards   = 255
	maxHandles = 256
)

// Group is a number of cards of one type.
type Group struct {
	Type  cyborg.DeviceType
	Count int
}

// Park is what stands in a fake host: groups of cards, each type at most once, in the order of the types.
type Park []Group

// model is one row of the table of what a park can hold.
type model struct {
	word       string // as in a park's text
	kind       cyborg.DeviceType
	name       string
	product    string // PCI product id
	class      string // Placement resource class, as OpenStack Cyborg's drivers report it
	purpose    string
	capability cyborg.JSONObject
	volatile   bool // what was programmed is lost with the power
}

// vendorID is the one of OpenStack Cyborg's fake driver.
const vendorID = "abcd"

// models lists what a park can hold. The place in this list gives a type its PCI domain, so it only grows at its end.
func models() []model {
	return []model{
		{
			word: "fpga", kind: cyborg.DeviceTypeFPGA, name: "Fake FPGA", product: "fa01", class: "FPGA",
			purpose: "reconfigurable", capability: cyborg.JSONObject{"logic_cells": 1150000}, volatile: true,
		},
		{
			word: "gpu", kind: cyborg.DeviceTypeGPU, name: "Fake GPU", product: "fa02", class: "PGPU",
			purpose: "compute", capability: cyborg.JSONObject{"memory_mib": 40960},
		},
		{
			word: "nic", kind: cyborg.DeviceTypeNIC, name: "Fake SmartNIC", product: "fa03", class: "CUSTOM_NIC",
			purpose: "network", capability: cyborg.JSONObject{"speed_mbps": 100000},
		},
		{
			word: "ssd", kind: cyborg.DeviceTypeSSD, name: "Fake SSD", product: "fa04", class: "CUSTOM_SSD",
			purpose: "storage", capability: cyborg.JSONObject{"size_gib": 3840},
		},
		{
			word: "qat", kind: cyborg.DeviceTypeQAT, name: "Fake QAT", product: "fa05", class: "CUSTOM_QAT",
			purpose: "crypto", capability: cyborg.JSONObject{"symmetric": true, "compression": true},
		},
		{
			word: "aichip", kind: cyborg.DeviceTypeAIChip, name: "Fake AI chip", product: "fa06", class: "CUSTOM_AICHIP",
			purpose: "inference", capability: cyborg.JSONObject{"int8_tops": 256},
		},
	}
}

// ParsePark reads text such as "8xfpga,2xgpu": groups of COUNTxTYPE, with the types fpga, gpu, nic, ssd, qat and
// aichip, each at most once, with 1 to 255 cards. The error is of kind ErrInvalid and names every mistake.
func ParsePark(text string) (Park, error) {
	const form = "write it as 8xfpga,2xgpu"
	if strings.TrimSpace(text) == "" {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "a fake park of nothing; %s", form)
	}
	all := models()
	words := make([]string, len(all))
	for i, m := range all {
		words[i] = m.word
	}
	counts := make([]int, len(all))
	var mistakes []string
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		number, word, ok := strings.Cut(strings.ToLower(part), "x")
		if !ok {
			mistakes = append(mistakes, fmt.Sprintf("%q is not COUNTxTYPE; %s", part, form))
			continue
		}
		count, err := strconv.Atoi(number)
		if err != nil || count < 1 || count > maxCards {
			mistakes = append(mistakes, fmt.Sprintf("%q asks for %q cards; a park has 1 to %d of a type", part, number, maxCards))
		}
		which := slices.Index(words, word)
		switch {
		case which < 0:
			mistakes = append(mistakes, fmt.Sprintf("%q: there is no type %q; the types are %s", part, word, strings.Join(words, ", ")))
		case counts[which] != 0:
			mistakes = append(mistakes, fmt.Sprintf("%q: %s is there twice; write one number", part, word))
		default:
			counts[which] = count
		}
	}
	if len(mistakes) > 0 {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "fake park %q: %s", text, strings.Join(mistakes, "; "))
	}
	var park Park
	for i, count := range counts {
		if count > 0 {
			park = append(park, Group{Type: all[i].kind, Count: count})
		}
	}
	return park, nil
}

// String is the text that ParsePark reads.
func (p Park) String() string {
	parts := make([]string, len(p))
	for i, group := range p {
		parts[i] = fmt.Sprintf("%dx%s", group.Count, strings.ToLower(string(group.Type)))
	}
	return strings.Join(parts, ",")
}

// slot is a place in the park and what stands in it, as configuration says: nothing here changes while the agent runs.
type slot struct {
	model
	address cyborg.PCIAddress
	number  int // among its type, from 0
	regions []region
}

// region is a deployable of a card.
type region struct {
	key     string // in the card's file: r0, r1, …
	name    string
	handles []cyborg.PCIAddress
}

func (s *slot) identity() string { return s.address.String() }

// region finds a deployable by the name it is reported under.
func (s *slot) region(name string) *region {
	for i := range s.regions {
		if s.regions[i].name == name {
			return &s.regions[i]
		}
	}
	return nil
}

// slots lays a park out on PCI. Addresses depend on nothing but a card's type and number, so growing a park leaves the
// others as they are: domain + place of the type, bus 1 + number, function number k of the bus for the handle k.
func (p Park) slots(domain uint32, deployables, handles int) []*slot {
	var slots []*slot
	for place, m := range models() {
		for _, group := range p {
			if group.Type != m.kind {
				continue
			}
			for number := range group.Count {
				s := &slot{model: m, number: number}
				s.address = cyborg.PCIAddress{Domain: domain + uint32(place), Bus: uint8(1 + number)} // number < maxCards
				safe := strings.NewReplacer(":", "_", ".", "_").Replace(s.identity())
				for r := range deployables {
					key := "r" + strconv.Itoa(r)
					part := region{key: key, name: "fake_" + m.word + "_" + safe + "_" + key}
					for h := range handles {
						function := s.address
						k := r*handles + h // < maxHandles
						function.Device, function.Function = uint8(k/8), uint8(k%8)
						part.handles = append(part.handles, function)
					}
					s.regions = append(s.regions, part)
				}
				slots = append(slots, s)
			}
		}
	}
	return slots
}
