package passthrough

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// Spec chooses PCI functions, in the form of an entry of Nova's [pci]
// device_spec: every property that it names must match. As in Nova, a spec with
// a literal address also chooses the virtual functions of the physical function
// there.
type Spec struct {
	vendor, product string // four hexadecimal digits; empty matches any
	class           string // two, four or six hexadecimal digits; empty matches any
	address         addressPattern
	text            string // the spec as JSON text with sorted keys, or "*"
}

// addressPattern matches the four parts of an address: domain, bus, slot and
// function.
type addressPattern struct {
	parts   [4]partPattern
	literal bool // all four parts are literal, so exactly one function matches
}

// partPattern says whether it matches one part of an address, given in
// lower-case hexadecimal digits.
type partPattern func(text string) bool

// anything is the partPattern of a part that is not named.
func anything(string) bool { return true }

// addressPart describes one part of an address: its name in Nova, its width in
// digits and its largest value.
type addressPart struct {
	name  string
	width int
	max   uint64
}

// addressPartTable lists the parts in the order of addressPattern.parts.
var addressPartTable = [4]addressPart{{"domain", 4, 1<<32 - 1}, {"bus", 2, 0xff}, {"slot", 2, 0x1f}, {"function", 1, 7}}

// specKeyTable lists the properties of a spec.
var specKeyTable = []string{"address", "class", "product_id", "vendor_id"}

// ParseSpec reads one spec: a map, its JSON text, or "*" for every function.
// The error is of kind ErrInvalid and names every mistake.
func ParseSpec(value any) (Spec, error) {
	switch value := value.(type) {
	case string:
		return parseSpecText(value)
	case map[string]any:
		return parseSpecMap(value)
	default:
		return Spec{}, cyborg.Errorf(cyborg.ErrInvalid, `%v is no device_spec; write an object such as {"vendor_id": "10de"}, or "*"`, value)
	}
}

// ParseSpecs reads the value of an option: one spec or a list of them. Either may be JSON
// text. The error names all mistakes.
func ParseSpecs(option string, value any) ([]Spec, error) {
	if text, ok := value.(string); ok && strings.HasPrefix(strings.TrimSpace(text), "[") {
		var list []any
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return nil, fmt.Errorf("%s is no JSON: %w", option, err)
		}
		value = list
	}

	var list []any
	switch value := value.(type) {
	case nil:
	case []any:
		list = value
	case []map[string]any:
		for _, object := range value {
			list = append(list, object)
		}
	case []string:
		for _, text := range value {
			list = append(list, text)
		}
	default:
		list = []any{value}
	}

	var specs []Spec
	var mistakes []error
	for i, item := range list {
		spec, err := ParseSpec(item)
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("%s[%d]: %w", option, i, err))
			continue
		}
		specs = append(specs, spec)
	}

	return specs, errors.Join(mistakes...)
}

// parseSpecText reads a spec from its JSON text, or "*".
func parseSpecText(text string) (Spec, error) {
	if strings.TrimSpace(text) == "*" {
		return Spec{address: anyAddress(), text: "*"}, nil
	}

	var object map[string]any
	if err := json.Unmarshal([]byte(text), &object); err != nil || object == nil {
		return Spec{}, cyborg.Errorf(cyborg.ErrInvalid, `%q is no device_spec; write a JSON object such as {"vendor_id": "10de"}, or "*"`, text)
	}

	return parseSpecMap(object)
}

// parseSpecMap reads a spec from its properties.
func parseSpecMap(object map[string]any) (Spec, error) {
	if len(object) == 0 {
		return Spec{}, cyborg.Errorf(cyborg.ErrInvalid, `an empty device_spec chooses nothing in particular; write "*" to choose every function`)
	}

	spec := Spec{address: anyAddress()}
	var mistakes []error
	for _, key := range slices.Sorted(maps.Keys(object)) {
		var err error
		switch value := object[key]; key {
		case "vendor_id":
			spec.vendor, err = parseID(key, value)
		case "product_id":
			spec.product, err = parseID(key, value)
		case "class":
			spec.class, err = parseClass(value)
		case "address":
			spec.address, err = parseAddressPattern(value)
		default:
			err = fmt.Errorf("device_spec has no property %q; it has %s", key, strings.Join(specKeyTable, ", "))
		}

		mistakes = append(mistakes, err)
	}

	if err := errors.Join(mistakes...); err != nil {
		return Spec{}, cyborg.Errorf(cyborg.ErrInvalid, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}

	text, err := json.Marshal(object)
	if err != nil {
		return Spec{}, cyborg.Errorf(cyborg.ErrInvalid, "device_spec: %w", err)
	}

	spec.text = string(text)
	return spec, nil
}

// String returns the spec as JSON text, or "*".
func (s Spec) String() string { return s.text }

// Match says whether the spec chooses the function. The function must be
// complete, as sysfs.Tree returns it.
func (s Spec) Match(f sysfs.Function) bool {
	if s.vendor != "" && s.vendor != f.Vendor || s.product != "" && s.product != f.Product ||
		!strings.HasPrefix(f.Class.String(), s.class) {
		return false
	}

	return s.address.match(f.Address) || s.address.literal && f.PF != nil && s.address.match(*f.PF)
}

// parseID reads a vendor or product id: four hexadecimal digits, or "*" for
// any, which it returns as "".
func parseID(key string, value any) (string, error) {
	text, err := idText(value)
	if err != nil || text == "*" {
		return "", err
	}

	text = strings.ToLower(strings.TrimPrefix(text, "0x"))
	if len(text) != 4 || !isHex(text) {
		return "", fmt.Errorf("%s is %q; write four hexadecimal digits, such as \"10de\", or \"*\"", key, value)
	}

	return text, nil
}

// parseClass reads a class code or its first digits, or "*" for any, which it
// returns as "".
func parseClass(value any) (string, error) {
	text, err := idText(value)
	if err != nil || text == "*" {
		return "", err
	}

	text = strings.ToLower(strings.TrimPrefix(text, "0x"))
	if n := len(text); n != 2 && n != 4 && n != 6 || !isHex(text) {
		return "", fmt.Errorf("class is %q; write two, four or six hexadecimal digits, such as \"0302\", or \"*\"", value)
	}

	return text, nil
}

// idText returns the text of a value. An unquoted 8086 in YAML is a number, and
// its digits are what was meant. An unquoted 0302 is an octal number whose
// digits are lost, so numbers below 1000 are rejected.
func idText(value any) (string, error) {
	switch value := value.(type) {
	case string:
		return strings.TrimSpace(value), nil
	case int, int64, uint64, float64, json.Number:
		text := fmt.Sprint(value)
		if number, err := strconv.Atoi(text); err == nil && number >= 1000 && number <= 9999 {
			return text, nil
		}
		return "", fmt.Errorf("%v is a number; put quotes around it, such as \"0302\"", value)
	default:
		return "", fmt.Errorf("%v is no text; write it as \"10de\"", value)
	}
}

// anyAddress matches every address.
func anyAddress() addressPattern {
	return addressPattern{parts: [4]partPattern{anything, anything, anything, anything}}
}

// match says whether all four parts of the address match.
func (p addressPattern) match(a cyborg.PCIAddress) bool {
	texts := [4]string{
		fmt.Sprintf("%04x", a.Domain), fmt.Sprintf("%02x", a.Bus), fmt.Sprintf("%02x", a.Device), strconv.FormatUint(uint64(a.Function), 16),
	}

	for i, part := range p.parts {
		if !part(texts[i]) {
			return false
		}
	}

	return true
}

// parseAddressPattern reads an address with globs, or an object with a regular
// expression for each part.
func parseAddressPattern(value any) (addressPattern, error) {
	switch value := value.(type) {
	case string:
		return parseGlobs(value)
	case map[string]any:
		return parseExpressions(value)
	default:
		return addressPattern{}, fmt.Errorf("address is %v; write it as \"0000:3b:*.*\" or as an object with domain, bus, slot, function", value)
	}
}

// parseGlobs reads domain:bus:slot.function. Each part may contain * and ?. As
// in Nova, parts may be missing at the front, and the function at the end; a
// missing part matches anything.
func parseGlobs(text string) (addressPattern, error) {
	front, function, _ := strings.Cut(text, ".")
	fields := strings.Split(front, ":")
	if len(fields) > 3 {
		return addressPattern{}, fmt.Errorf("address %q has too many parts; write it as \"0000:3b:*.*\"", text)
	}

	// The missing parts at the front become empty texts, which match anything.
	all := append(make([]string, 3-len(fields)), append(fields, function)...)

	pattern := addressPattern{literal: true}

	for i, part := range all {
		match, literal, err := parseGlob(i, strings.ToLower(strings.TrimSpace(part)))
		if err != nil {
			return addressPattern{}, fmt.Errorf("address %q: %w", text, err)
		}
		pattern.parts[i] = match
		pattern.literal = pattern.literal && literal
	}

	return pattern, nil
}

// parseGlob reads the part with that index; literal says that it names exactly
// one value.
func parseGlob(i int, text string) (match partPattern, literal bool, err error) {
	part := addressPartTable[i]
	if text == "" || text == "*" {
		return anything, false, nil
	}

	if strings.ContainsAny(text, "*?") {
		if !isHex(strings.NewReplacer("*", "0", "?", "0").Replace(text)) {
			return nil, false, fmt.Errorf("%s is %q; a glob has hexadecimal digits, * and ?", part.name, text)
		}
		expression := "^" + strings.NewReplacer("*", ".*", "?", ".").Replace(text) + "$"
		return regexp.MustCompile(expression).MatchString, false, nil
	}

	value, err := strconv.ParseUint(text, 16, 64)
	if err != nil || value > part.max {
		return nil, false, fmt.Errorf("%s is %q; write a hexadecimal number up to %x, or *", part.name, text, part.max)
	}

	wanted := fmt.Sprintf("%0*x", part.width, value)
	return func(text string) bool { return text == wanted }, true, nil
}

// parseExpressions reads a regular expression for each part. As in Nova, which
// uses Python's re.match, an expression need only match from the beginning of
// the part. A missing part matches anything.
func parseExpressions(object map[string]any) (addressPattern, error) {
	pattern := anyAddress()
	var mistakes []error

	for _, key := range slices.Sorted(maps.Keys(object)) {
		i := slices.IndexFunc(addressPartTable[:], func(p addressPart) bool { return p.name == key })
		if i < 0 {
			mistakes = append(mistakes, fmt.Errorf("address has no part %q; it has domain, bus, slot, function", key))
			continue
		}

		text, ok := object[key].(string)
		if !ok {
			mistakes = append(mistakes, fmt.Errorf("address.%s is %v; write a regular expression in quotes", key, object[key]))
			continue
		}

		expression, err := regexp.Compile("^(?:" + text + ")")
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("address.%s is %q, which is no regular expression (RE2): %w", key, text, err))
			continue
		}

		pattern.parts[i] = expression.MatchString
	}

	return pattern, errors.Join(mistakes...)
}

// isHex says whether the text has only lower-case hexadecimal digits, and at
// least one.
func isHex(text string) bool {
	return text != "" && strings.Trim(text, "0123456789abcdef") == ""
}
