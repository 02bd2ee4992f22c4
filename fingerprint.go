package cyborg

import (
	"cmp"
	"strings"
)

// Fingerprint tells a card from any other that may be put into its place. The
// zero value says that nothing is known of the card, as by agents of release 0.1.
type Fingerprint struct {
	// Model is what cards of one model have in common, and what neither their use nor
	// an image changes: of a PCI function the ids and the subsystem's ids,
	// "10de:20b0 10de:134f".
	Model string `json:"model,omitempty"`
	// Serial is what no other card of the model has, such as the device serial number
	// of a PCI function (PCI Express Base Specification, 7.9.3); empty where the card
	// has none, or where it could not be read.
	Serial string `json:"serial,omitempty"`
}

// Other says that the two are fingerprints of different cards. What one of them
// does not say makes no difference: a serial number cannot be read at all times.
func (f Fingerprint) Other(of Fingerprint) bool {
	differ := func(a, b string) bool { return a != "" && b != "" && a != b }
	return differ(f.Model, of.Model) || differ(f.Serial, of.Serial)
}

// Learn returns the fingerprint of a card of which this was known before and which
// was now seen as the given one.
func (f Fingerprint) Learn(seen Fingerprint) Fingerprint {
	return Fingerprint{Model: cmp.Or(seen.Model, f.Model), Serial: cmp.Or(seen.Serial, f.Serial)}
}

// String describes the card for people: "10de:20b0 10de:134f, serial 48-b0-2d-ff-ff-12-34-56".
func (f Fingerprint) String() string {
	var parts []string
	if f.Model != "" {
		parts = append(parts, f.Model)
	}
	if f.Serial != "" {
		parts = append(parts, "serial "+f.Serial)
	}
	return strings.Join(parts, ", ")
}
