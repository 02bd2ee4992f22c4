package fake

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// The limits of a park. Each card has a PCI bus of its own and the first bus of
// a domain stays free, so there are at most 255 cards of a type. A bus has 256
// functions, so a card has at most 256 handles.
const (
	maxCards   = 255
	maxHandles = 256
)

// Group is a number of cards of one type.
type Group struct {
	Type  cyborg.DeviceType
	Count int
}

// Park is the content of a fake host: groups of cards, each type at most once,
// in the order of the types.
type Park []Group

// model is one row of the table of the cards that a park can hold.
type model struct {
	word       string // the type in the text of a park, such as fpga
	kind       cyborg.DeviceType
	name       string
	product    string // PCI product id
	class      string // Placement resource class, as OpenStack Cyborg's drivers report it
	purpose    string
	capability cyborg.JSONObject
	volatile   bool // the programmed image is lost with the power
}

// vendorID is the vendor id that OpenStack Cyborg's fake driver reports.
const vendorID = "abcd"

// models lists the cards that a park can hold. The position in this list gives
// a type its PCI domain, so new types are added at the end only: otherwise the
// cards of existing parks would get other addresses.
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

// ParsePark reads text such as "8xfpga,2xgpu": groups of COUNTxTYPE. The types
// are fpga, gpu, nic, ssd, qat and aichip, each at most once and with 1 to 255
// cards. The error is of kind ErrInvalid and names every mistake.
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

// String returns the text from which ParsePark reads this park.
func (p Park) String() string {
	parts := make([]string, len(p))
	for i, group := range p {
		parts[i] = fmt.Sprintf("%dx%s", group.Count, strings.ToLower(string(group.Type)))
	}

	return strings.Join(parts, ",")
}

// slot is one place in the park and the card in it, as the options describe it.
// It never changes while the driver exists.
type slot struct {
	model
	address cyborg.PCIAddress
	number  int    // among the cards of its type, from 0
	serial  string // of the card that the park has here
	regions []region
	// together says that all regions of the card go to one holder.
	together bool
	// offersWhole says that one region is the whole card.
	offersWhole bool
	// divisible says that the card can be divided: its regions are also all parts that it
	// can have.
	divisible bool
	// activation is what brings an image into effect; empty where it is at once.
	activation cyborg.Activation
	// mediated says that the handles are mediated devices.
	mediated bool
	// preparation is that of all regions; nil where the host prepares nothing.
	preparation *cyborg.Preparation
	// cleaning is that of all regions.
	cleaning *cyborg.Cleaning
}

// region is one part of a card, which is reported as a deployable.
type region struct {
	key      string // in the card's file: r0, r1, …, whole, half0, …
	name     string
	handles  []cyborg.PCIAddress
	with     [][]cyborg.PCIAddress // for each handle: the functions that go with it
	excludes []string              // the names of regions that nobody may have at the same time
}

// fingerprint returns that of the card that is there now.
func (s *slot) fingerprint(card *Card) cyborg.Fingerprint {
	return cyborg.Fingerprint{Model: vendorID + ":" + cmp.Or(card.Product, s.product), Serial: cmp.Or(card.Serial, s.serial)}
}

// setSerial gives the card the serial number that it has on this host: made of the
// names, so that it stays the same over restarts, and when its file is deleted.
func (s *slot) setSerial(host string) {
	sum := sha256.Sum256([]byte(host + " " + s.identity()))
	s.serial = hex.EncodeToString(sum[:6])
}

// checkProduct returns an error of kind ErrInvalid where that is no PCI product id,
// and not empty either.
func checkProduct(product string) error {
	if product == "" || len(product) == 4 && strings.Trim(product, "0123456789abcdef") == "" {
		return nil
	}
	return cyborg.Errorf(cyborg.ErrInvalid, "%q is no product id; write 4 hexadecimal digits, such as fa11", product)
}

// identity returns the card's identity, which is its PCI address.
func (s *slot) identity() string { return s.address.String() }

// addWhole adds the whole card as a further region, which excludes all others. Its
// handle is the function of that number.
func (s *slot) addWhole(function int) {
	whole := region{key: "whole", name: s.reportedName("whole"), handles: []cyborg.PCIAddress{s.function(function)}}
	for _, part := range s.regions {
		whole.excludes = append(whole.excludes, part.name)
	}
	s.regions, s.offersWhole = append(s.regions, whole), true
}

// addCompanions has so many functions go with each handle. They are counted from the
// card's last function, so that the handles keep their addresses.
func (s *slot) addCompanions(count int) {
	next := maxHandles - 1
	for i := range s.regions {
		part := &s.regions[i]
		for range part.handles {
			var with []cyborg.PCIAddress
			for range count {
				with = append(with, s.function(next))
				next--
			}
			part.with = append(part.with, with)
		}
	}
}

// reportedName returns the name under which the region of that key is reported.
func (s *slot) reportedName(key string) string {
	return "fake_" + s.word + "_" + strings.NewReplacer(":", "_", ".", "_").Replace(s.identity()) + "_" + key
}

// function returns the address of a function of the card, by its number.
func (s *slot) function(number int) cyborg.PCIAddress {
	address := s.address
	address.Device, address.Function = uint8(number/8), uint8(number%8) // number < maxHandles
	return address
}

// region returns the part that is reported under that name, or nil.
func (s *slot) region(name string) *region {
	for i := range s.regions {
		if s.regions[i].name == name {
			return &s.regions[i]
		}
	}
	return nil
}

// slots lays the park out on PCI: the domain is given by the type, the bus by
// the card's number in its type (from 1), and the functions of the bus by the
// numbers of the handles. An address depends on nothing else, so the cards of a
// park that grows keep their addresses.
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

				for r := range deployables {
					key := "r" + strconv.Itoa(r)
					part := region{key: key, name: s.reportedName(key)}

					for h := range handles {
						part.handles = append(part.handles, s.function(r*handles+h))
					}

					s.regions = append(s.regions, part)
				}

				slots = append(slots, s)
			}
		}
	}

	return slots
}
