package novaconf_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// This file reads a drop-in file the way oslo.config and Nova do. It is a
// rewrite of oslo_config/iniparser.py, the substitution of oslo_config/cfg.py,
// and nova/pci/devspec.py.

// novaSpec is one device_spec as nova-compute holds it; "*" matches everything.
type novaSpec struct {
	vendor, product, domain, bus, slot, function string
	tags                                         map[string]string
}

// pciFunction is a function as libvirt reports it.
type pciFunction struct{ address, vendor, product, parent string }

// readNova parses the content of a file. Its error says what would keep
// nova-compute from starting.
func readNova(content string) ([]novaSpec, error) {
	values, err := deviceSpecs(content)
	if err != nil {
		return nil, err
	}

	var out []novaSpec
	for _, value := range values {
		if strings.Contains(value, "$") {
			return nil, fmt.Errorf("oslo.config would replace something in %s", value)
		}
		spec, err := parseSpec(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", value, err)
		}
		out = append(out, spec)
	}
	return out, nil
}

// deviceSpecs returns the values of device_spec in the section [pci].
func deviceSpecs(content string) ([]string, error) {
	var out []string
	section, open := "", false

	for line := range strings.SplitSeq(content, "\n") {
		line = strings.TrimRight(line, " \t\r\v\f")
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
			open = false
		case line[0] == ' ' || line[0] == '\t':
			if !open {
				return nil, fmt.Errorf("an unexpected continuation: %q", line)
			}
			out[len(out)-1] += "\n" + strings.TrimLeft(line, " \t")
		case line[0] == '[':
			if !strings.HasSuffix(line, "]") || len(line) <= 2 {
				return nil, fmt.Errorf("no section: %q", line)
			}
			section, open = line[1:len(line)-1], false
		default:
			at := strings.IndexAny(line, ":=")
			if at <= 0 {
				return nil, fmt.Errorf("no assignment: %q", line)
			}
			key, value := strings.TrimSpace(line[:at]), strings.TrimSpace(line[at+1:])
			if section != "pci" || key != "device_spec" {
				return nil, fmt.Errorf("%q of [%s] is not ours to set", key, section)
			}

			if value != "" && value[0] == value[len(value)-1] && (value[0] == '"' || value[0] == '\'') {
				value = value[1 : len(value)-1]
			}

			out, open = append(out, value), true
		}
	}

	return out, nil
}

// parseSpec reads one device_spec, and requires that Nova would take its values
// as they are.
func parseSpec(value string) (novaSpec, error) {
	tags := map[string]string{}
	if err := json.Unmarshal([]byte(value), &tags); err != nil {
		return novaSpec{}, err
	}

	take := func(key string) string {
		text, ok := tags[key]
		delete(tags, key)
		if !ok {
			return "*"
		}
		return text
	}

	spec := novaSpec{vendor: take("vendor_id"), product: take("product_id"), tags: tags}
	address := take("address")
	rest, function, _ := strings.Cut(address, ".")
	parts := strings.Split(rest, ":")
	if len(parts) != 3 || tags["devname"] != "" {
		return spec, fmt.Errorf("the address %q", address)
	}
	spec.domain, spec.bus, spec.slot, spec.function = parts[0], parts[1], parts[2], function

	for _, field := range []struct {
		text *string
		most uint64
		form string
	}{
		{&spec.vendor, 0xffff, "%04x"},
		{&spec.product, 0xffff, "%04x"},
		{&spec.domain, 0xffff, "%04x"},
		{&spec.bus, 0xff, "%02x"},
		{&spec.slot, 0x1f, "%02x"},
		{&spec.function, 7, "%x"},
	} {
		if *field.text == "*" {
			continue
		}
		number, err := strconv.ParseUint(*field.text, 16, 64)
		if err != nil || number > field.most {
			return spec, fmt.Errorf("%q is no number up to %x", *field.text, field.most)
		}
		*field.text = fmt.Sprintf(field.form, number)
	}

	known := []string{"physical_network", "resource_class", "traits", "trusted", "remote_managed", "managed", "live_migratable"}
	for key := range tags {
		if !slices.Contains(known, key) {
			return spec, fmt.Errorf("%q is no tag", key)
		}
	}

	for _, name := range append(strings.Split(tags["traits"], ","), tags["resource_class"]) {
		if !regexp.MustCompile(`^[A-Z0-9_]*$`).MatchString(name) || len(name) > 255 {
			return spec, fmt.Errorf("%q would be changed", name)
		}
	}

	return spec, nil
}

// matches tells whether the spec makes Nova give out the function. The address
// of a physical function matches its virtual functions as well.
func (s novaSpec) matches(f pciFunction, physical bool) bool {
	at := func(address string) bool {
		rest, function, _ := strings.Cut(address, ".")
		parts := strings.Split(rest, ":")
		return has(s.domain, parts[0]) && has(s.bus, parts[1]) && has(s.slot, parts[2]) && has(s.function, function)
	}
	return has(s.vendor, f.vendor) && has(s.product, f.product) && (at(f.address) || physical && f.parent != "" && at(f.parent))
}

// has tells whether a field of a spec matches a value.
func has(want, is string) bool { return want == "*" || want == is }
