package merge

import (
	"unicode/utf8"

	"github.com/cyborg-project/cyborg"
)

// What is recorded of a device is in everybody's lists, so that one host must not
// fill them. A part of which something is larger stays as it was recorded, and is left
// out where it is not recorded yet.
const (
	longestText     = 255     // in characters
	largestDocument = 8 << 10 // in bytes of JSON
)

// reported is something of a report that has texts and documents of its own.
type reported struct {
	backend, what, name string
	recorded            bool // before
}

// fate says what becomes of a part that is too large.
func (p reported) fate() string {
	if p.recorded {
		return "stays as it was"
	}
	return "is left out"
}

// tooLarge complains about the first text that is too long.
func (v *Inventory) tooLarge(p reported, texts ...string) bool {
	for _, text := range texts {
		if utf8.RuneCountInString(text) > longestText {
			v.complain(p.backend, "%s %s %s: %.80q has more than %d characters", p.what, p.name, p.fate(), text, longestText)
			return true
		}
	}
	return false
}

// tooLargeDocument complains about the first document that is too large.
func (v *Inventory) tooLargeDocument(p reported, documents ...Document) bool {
	for _, document := range documents {
		if len(document) > largestDocument {
			v.complain(p.backend, "%s %s %s: %.80q has more than %d bytes", p.what, p.name, p.fate(), document, largestDocument)
			return true
		}
	}
	return false
}

// deviceTexts are the texts of a device that a driver chooses.
func deviceTexts(r *cyborg.DeviceReport) []string {
	return []string{string(r.Type), r.VendorID, r.ProductID, r.Vendor, r.Model, r.ControlPath.Kind, r.Fingerprint.Model, r.Fingerprint.Serial}
}
