package passthrough

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// keyPhysicalNetwork is the attribute that says to which of Neutron's physical
// networks a network function leads. It is also in the info of the attach
// handle, because Nova reads it there when it plugs a port
// (nova/accelerator/cyborg.py).
const keyPhysicalNetwork = "physical_network"

// mappings say to which physical network each network card leads, by the name
// of its interface or by its PCI address. The form is that of the option
// physical_device_mappings of Neutron's SR-IOV agent and of OpenStack Cyborg's
// NIC driver. Virtual functions follow their physical one.
type mappings map[string]string

var (
	// physicalNetworkPattern matches the name of a physical network. A colon ends
	// the name and commas separate mappings, so neither can be part of it.
	physicalNetworkPattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

	// interfacePattern matches the name of a Linux interface (dev_valid_name),
	// except names with the characters that separate mappings here.
	interfacePattern = regexp.MustCompile(`^[^\s/:,|]{1,15}$`)
)

// parseMappings reads "physnet1:eth2|eth3,physnet2:0000:05:00.0", or a list of
// such texts. The error names every mistake.
func parseMappings(value any) (mappings, error) {
	var entries []string
	add := func(value any) error {
		text, ok := value.(string)
		if !ok {
			return fmt.Errorf(`%s has %v; write "physnet1:eth2|eth3,physnet2:0000:05:00.0", or a list of such texts`, optionMappings, value)
		}
		entries = append(entries, strings.Split(text, ",")...)
		return nil
	}

	var mistakes []error
	switch value := value.(type) {
	case nil:
	case []any:
		for _, item := range value {
			mistakes = append(mistakes, add(item))
		}
	case []string:
		for _, item := range value {
			mistakes = append(mistakes, add(item))
		}
	default:
		mistakes = append(mistakes, add(value))
	}

	out := mappings{}
	for _, entry := range entries {
		mistakes = append(mistakes, out.add(strings.TrimSpace(entry)))
	}

	return out, errors.Join(mistakes...)
}

// add reads one physical network with its cards and adds them.
func (m mappings) add(entry string) error {
	network, cards, ok := strings.Cut(entry, ":")
	if !ok || !physicalNetworkPattern.MatchString(network) {
		return fmt.Errorf(`%s has %q; write the physical network (letters, digits, and _ . -), a colon, and the interface or PCI address, such as "physnet1:eth2"`,
			optionMappings, entry)
	}

	for card := range strings.SplitSeq(cards, "|") {
		card = strings.TrimSpace(card)
		if address, err := cyborg.ParsePCIAddress(card); err == nil {
			card = address.String()
		} else if !interfacePattern.MatchString(card) {
			return fmt.Errorf(`%s: %q of %s is neither the name of an interface nor a PCI address such as "0000:05:00.0"`, optionMappings, card, network)
		}

		if other, taken := m[card]; taken && other != network {
			return fmt.Errorf("%s: %s leads to %s and to %s; name one of them", optionMappings, card, other, network)
		}

		m[card] = network
	}

	return nil
}

// physicalNetworks returns the physical network of each network function that
// is mapped or whose physical function is.
func (d *Driver) physicalNetworks(ctx context.Context, functions []sysfs.Function) (map[cyborg.PCIAddress]string, error) {
	found := map[cyborg.PCIAddress]string{}
	if len(d.options.mappings) == 0 {
		return found, nil
	}

	interfaces, err := d.tree.Interfaces()
	if err != nil {
		return nil, err
	}

	named := map[cyborg.PCIAddress]string{}
	for _, card := range slices.Sorted(maps.Keys(d.options.mappings)) {
		address, err := cyborg.ParsePCIAddress(card)
		if err != nil {
			var there bool
			address, there = interfaces[card]
			if !there {
				d.log.WarnContext(ctx, "an interface of "+optionMappings+" is not there, or has no PCI function", slog.String("interface", card))
				continue
			}
		}

		network := d.options.mappings[card]
		// The option can name a card twice. Addresses sort before names, so the mapping
		// by address wins.
		if other, taken := named[address]; taken && other != network {
			d.log.WarnContext(ctx, "a card leads to two networks in "+optionMappings+"; the first is taken, name one of them",
				slog.String("address", address.String()), slog.String("interface", card), slog.String("first", other), slog.String("second", network))
			continue
		}
		named[address] = network
	}

	for _, f := range functions {
		network, ok := named[f.Address]
		if !ok && f.PF != nil {
			network, ok = named[*f.PF]
		}
		if ok && d.cards.Describe(f, nil).Type == cyborg.DeviceTypeNIC {
			found[f.Address] = network
		}
	}

	return found, nil
}

// networkTraits returns the traits of a physical network in Placement: the one
// of Neutron (neutron_lib.placement.utils.physnet_trait), and the one of
// OpenStack Cyborg's NIC driver.
func networkTraits(network string) []string {
	word := strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToUpper(network))

	return []string{"CUSTOM_PHYSNET_" + word, "CUSTOM_" + word}
}
