package pci

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/passthrough"
)

// The properties of a row, besides those of a device_spec.
const (
	propertyName   = "name"
	propertyLike   = "like"
	propertyType   = "type"
	propertyClass  = "resource_class"
	propertyTraits = "traits"
)

// specPropertyTable has those that say which functions a row is about.
var specPropertyTable = []string{"address", "class", "product_id", "vendor_id"}

// propertyTable has all of a row.
var propertyTable = []string{"address", "class", propertyLike, propertyName, "product_id", propertyClass, propertyTraits, propertyType, "vendor_id"}

var (
	rowNamePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)

	// classPattern and traitPattern match what Placement takes of others
	// (placement/schemas/resource_class.py and trait.py), and the standard classes of what a
	// PCI function can be.
	classPattern = regexp.MustCompile(`^(CUSTOM_[A-Z0-9_]{1,248}|PGPU|FPGA)$`)
	traitPattern = regexp.MustCompile(`^[A-Z0-9_]{1,255}$`)
)

// allProfiles stands for all profiles of the table that are not in the list before.
const allProfiles = "*"

// parseRows reads the option: a list of names of profiles and of rows, or its JSON text. Of
// several that match a function, the first counts. The error names all mistakes.
func parseRows(value any) ([]row, error) {
	list, err := listOf(value)
	if err != nil {
		return nil, err
	}

	var rows []row
	var mistakes []error
	for i, item := range list {
		if item == allProfiles {
			rows = append(rows, slices.DeleteFunc(builtinRows(), func(r row) bool { return named(rows, r.name) })...)
			continue
		}
		parsed, err := parseRow(item)
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("%s[%d]: %w", optionProfiles, i, err))
			continue
		}
		if named(rows, parsed.name) {
			mistakes = append(mistakes, fmt.Errorf("%s[%d]: a profile %q comes before; give this one another %s", optionProfiles, i, parsed.name, propertyName))
		}
		rows = append(rows, parsed)
	}
	return rows, errors.Join(mistakes...)
}

// named says whether one of the rows has this name.
func named(rows []row, name string) bool {
	return slices.ContainsFunc(rows, func(r row) bool { return r.name == name })
}

// listOf returns the items of the option.
func listOf(value any) ([]any, error) {
	switch value := value.(type) {
	case []any:
		return value, nil
	case []string:
		list := make([]any, len(value))
		for i, text := range value {
			list[i] = text
		}
		return list, nil
	case []map[string]any:
		list := make([]any, len(value))
		for i, object := range value {
			list[i] = object
		}
		return list, nil
	case map[string]any:
		return []any{value}, nil
	case string:
		text := strings.TrimSpace(value)
		if !strings.HasPrefix(text, "[") && !strings.HasPrefix(text, "{") {
			return []any{value}, nil
		}
		var decoded any
		if err := json.Unmarshal([]byte(text), &decoded); err != nil {
			return nil, fmt.Errorf("%s is no JSON: %w", optionProfiles, err)
		}
		return listOf(decoded)
	default:
		return nil, fmt.Errorf("%s is %v; write a list of profiles, such as [%q]", optionProfiles, value, profileNames()[0])
	}
}

// parseRow reads the name of a profile, or a row.
func parseRow(item any) (row, error) {
	switch item := item.(type) {
	case string:
		p, err := profileNamed(item)
		return row{profile: p}, err
	case map[string]any:
		return parseObject(item)
	default:
		return row{}, fmt.Errorf("%v is no profile; write the name of one, or an object", item)
	}
}

// parseObject reads a row.
func parseObject(object map[string]any) (row, error) {
	var r row
	var mistakes []error
	note := func(err error) { mistakes = append(mistakes, err) }

	for _, key := range slices.Sorted(maps.Keys(object)) {
		if !slices.Contains(propertyTable, key) {
			note(fmt.Errorf("a profile has no property %q; it has %s", key, strings.Join(propertyTable, ", ")))
		}
	}

	like, err := optionalText(object, propertyLike)
	note(err)
	if like != "" {
		r.profile, err = profileNamed(like)
		note(err)
	}

	name, err := optionalText(object, propertyName)
	note(err)
	switch {
	case err != nil:
	case name == "" && like == "":
		note(fmt.Errorf("%s is missing; write a name for the profile, or the one that it is %s", propertyName, propertyLike))
	case name != "" && !rowNamePattern.MatchString(name):
		note(fmt.Errorf("%s is %.80q; write small letters, digits, and _ . -", propertyName, name))
	case name != "":
		r.name = name
	}

	r.spec, err = parseSpec(object)
	note(err)
	if r.spec == nil && like == "" && err == nil {
		note(fmt.Errorf("it does not say which functions it is about; write %s, or %s", strings.Join(specPropertyTable, ", "), propertyLike))
	}

	note(r.override(object))
	return r, errors.Join(mistakes...)
}

// parseSpec reads which functions a row is about; nil where it does not say.
func parseSpec(object map[string]any) (*passthrough.Spec, error) {
	given := map[string]any{}
	for _, key := range specPropertyTable {
		if value, ok := object[key]; ok {
			given[key] = value
		}
	}
	if len(given) == 0 {
		return nil, nil //nolint:nilnil // no spec is not an error
	}

	spec, err := passthrough.ParseSpec(given)
	return &spec, err
}

// override reads what a row says of its functions. What it does not say is that of the profile
// that it is like.
func (r *row) override(object map[string]any) error {
	var mistakes []error
	deviceType, err := optionalText(object, propertyType)
	mistakes = append(mistakes, err)
	switch {
	case deviceType != "" && !slices.Contains(cyborg.DeviceTypes(), cyborg.DeviceType(deviceType)):
		mistakes = append(mistakes, fmt.Errorf("%s is %.80q; it is one of %v", propertyType, deviceType, cyborg.DeviceTypes()))
	case deviceType != "":
		r.deviceType = cyborg.DeviceType(deviceType)
	case r.deviceType == "" && err == nil:
		mistakes = append(mistakes, fmt.Errorf("%s is missing; it is one of %v", propertyType, cyborg.DeviceTypes()))
	}

	class, err := optionalText(object, propertyClass)
	mistakes = append(mistakes, err)
	switch {
	case class != "" && !classPattern.MatchString(class):
		mistakes = append(mistakes, fmt.Errorf("%s is %.80q; write PGPU, FPGA, or CUSTOM_ and capital letters, digits and _", propertyClass, class))
	case class != "":
		r.class = class
	case r.class == "" || deviceType != "":
		r.class = defaultClass(r.deviceType)
	}

	if given, ok := object[propertyTraits]; ok {
		r.traits, err = parseTraits(given)
		r.exact = true
		mistakes = append(mistakes, err)
	}
	return errors.Join(mistakes...)
}

// defaultClass is the resource class of a type: a standard one where there is one.
func defaultClass(t cyborg.DeviceType) string {
	switch t {
	case cyborg.DeviceTypeGPU:
		return wholeGPUClass
	case cyborg.DeviceTypeFPGA:
		return "FPGA"
	default:
		return "CUSTOM_" + string(t)
	}
}

// parseTraits reads a list of traits.
func parseTraits(value any) ([]string, error) {
	items, ok := value.([]any)
	if texts, is := value.([]string); is {
		for _, text := range texts {
			items = append(items, text)
		}
		ok = true
	}
	if !ok {
		return nil, fmt.Errorf(`%s is %v; write a list such as ["CUSTOM_FAST"]`, propertyTraits, value)
	}

	var traits []string
	var mistakes []error
	for _, item := range items {
		text, _ := item.(string)
		if !traitPattern.MatchString(strings.ReplaceAll(text, "{PRODUCT}", "0000")) {
			mistakes = append(mistakes, fmt.Errorf("%s has %v; a trait has capital letters, digits and _, and {PRODUCT} stands for the product id", propertyTraits, item))
			continue
		}
		traits = append(traits, text)
	}
	return traits, errors.Join(mistakes...)
}

// optionalText reads a property that is a text; "" where it is not given.
func optionalText(object map[string]any, key string) (string, error) {
	value, given := object[key]
	if !given {
		return "", nil
	}
	text, ok := value.(string)
	if !ok || text == "" {
		return "", fmt.Errorf("%s is %v; write a text", key, value)
	}
	return text, nil
}

// profileNamed returns the profile of this name.
func profileNamed(name string) (profile, error) {
	table := profileTable()
	at := slices.IndexFunc(table, func(p profile) bool { return p.name == name })
	if at < 0 {
		return profile{}, fmt.Errorf("there is no profile %.80q; there are %s", name, strings.Join(profileNames(), ", "))
	}
	return table[at], nil
}

// profileNames are the names of the profiles, in the order of the table.
func profileNames() []string {
	var names []string
	for _, p := range profileTable() {
		names = append(names, p.name)
	}
	return names
}
