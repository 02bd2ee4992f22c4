package cyborg

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// SpecsPatch is a partial Specs: a wish that an accelerator must satisfy, or a
// change of its specs. A nil field wishes and changes nothing.
type SpecsPatch struct {
	Remote     *bool       `json:"remote,omitempty"`
	Remotable  *bool       `json:"remotable,omitempty"`
	Num        *int        `json:"num,omitempty"`
	DeviceType *DeviceType `json:"device_type,omitempty"`
	Type       *string     `json:"acc_type,omitempty"`
	Capability JSONObject  `json:"acc_capability,omitempty"`
	VendorID   *string     `json:"vendor_id,omitempty"`
	ProductID  *string     `json:"product_id,omitempty"`
}

// Mismatches returns a phrase for each point in which the specs do not satisfy
// the wish. Num and the numbers in the capability tree must be at least as
// large as wished; all other given values must be equal. The capability tree
// may have further leaves.
func (s Specs) Mismatches(want SpecsPatch) []string {
	var out []string
	differ := func(name string, want, have any) {
		out = append(out, fmt.Sprintf("%s is %v, not %v", name, have, want))
	}

	if want.Remote != nil && *want.Remote != s.Remote {
		differ("remote", *want.Remote, s.Remote)
	}
	if want.Remotable != nil && *want.Remotable != s.Remotable {
		differ("remotable", *want.Remotable, s.Remotable)
	}

	if want.Num != nil && *want.Num > s.Num {
		out = append(out, fmt.Sprintf("num is %d, less than %d", s.Num, *want.Num))
	}

	if want.DeviceType != nil && *want.DeviceType != s.DeviceType {
		differ("device_type", *want.DeviceType, s.DeviceType)
	}

	if want.Type != nil && *want.Type != s.Type {
		differ("acc_type", fmt.Sprintf("%q", *want.Type), fmt.Sprintf("%q", s.Type))
	}

	if want.VendorID != nil && *want.VendorID != s.VendorID {
		differ("vendor_id", *want.VendorID, s.VendorID)
	}
	if want.ProductID != nil && *want.ProductID != s.ProductID {
		differ("product_id", *want.ProductID, s.ProductID)
	}

	return append(out, treeMismatches("acc_capability", map[string]any(want.Capability), map[string]any(s.Capability))...)
}

// treeMismatches compares a wished capability tree, or a leaf of one, with what
// the accelerator has.
func treeMismatches(path string, want, have any) []string {
	if wantTree, ok := want.(map[string]any); ok {
		haveTree, _ := have.(map[string]any)
		var out []string

		for _, key := range slices.Sorted(maps.Keys(wantTree)) {
			value, ok := haveTree[key]
			if !ok {
				out = append(out, fmt.Sprintf("%s.%s is absent", path, key))
				continue
			}

			out = append(out, treeMismatches(path+"."+key, wantTree[key], value)...)
		}

		return out
	}

	wantNumber, okWant := asNumber(want)
	haveNumber, okHave := asNumber(have)

	switch {
	case okWant && okHave && haveNumber < wantNumber:
		return []string{fmt.Sprintf("%s is %v, less than %v", path, have, want)}
	case okWant && okHave, reflect.DeepEqual(want, have):
		return nil
	}

	return []string{fmt.Sprintf("%s is %v, not %v", path, have, want)}
}

// asNumber returns the value of a number, whether it comes from JSON or from Go
// code.
func asNumber(v any) (float64, bool) {
	switch n := v.(type) {
	case float64:
		return n, true
	case int:
		return float64(n), true
	case int64:
		return float64(n), true
	}
	return 0, false
}

// With returns the specs with an operator's change laid over them. The values
// of the hardware (num, device_type, vendor_id, product_id) may be repeated but
// not changed: that is an error of kind ErrInvalid with the property and both
// values.
func (s Specs) With(change SpecsPatch) (Specs, error) {
	fixed := func(name string, want, have any) error {
		return Errorf(ErrInvalid, "acc_specs.%s cannot be set to %v: the hardware says %v", name, want, have).
			WithHint("Leave %s out, or repeat the present value.", name)
	}

	switch {
	case change.Num != nil && *change.Num != s.Num:
		return s, fixed("num", *change.Num, s.Num)
	case change.DeviceType != nil && *change.DeviceType != s.DeviceType:
		return s, fixed("device_type", *change.DeviceType, s.DeviceType)
	case change.VendorID != nil && *change.VendorID != s.VendorID:
		return s, fixed("vendor_id", *change.VendorID, s.VendorID)
	case change.ProductID != nil && *change.ProductID != s.ProductID:
		return s, fixed("product_id", *change.ProductID, s.ProductID)
	}

	if change.Remote != nil {
		s.Remote = *change.Remote
	}
	if change.Remotable != nil {
		s.Remotable = *change.Remotable
	}
	if change.Type != nil {
		s.Type = *change.Type
	}
	if change.Capability != nil {
		s.Capability = change.Capability
	}
	return s, nil
}
