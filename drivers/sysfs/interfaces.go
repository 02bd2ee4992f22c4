package sysfs

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// iffUp is the flag IFF_UP of linux/if.h.
const iffUp = 0x1

// networkInterface is a network interface, and the reason why the host needs
// it.
type networkInterface struct {
	name string
	dir  string // its sysfs directory
	use  string // the reason, as the end of "its network interface …"; empty where the host does not need it
}

// interfaces lists the interfaces in the network namespace in which sysfs was
// mounted.
func (v *view) interfaces() ([]networkInterface, error) {
	names, err := v.names("sys/class/net")
	if err != nil {
		return nil, fmt.Errorf("listing the network interfaces: %w", err)
	}

	routed := v.defaultRoutes()
	var list []networkInterface

	for _, name := range names {
		link := path.Join("sys/class/net", name)
		dir := v.target(link)
		if dir == "" {
			continue // a plain file such as bonding_masters
		}

		list = append(list, networkInterface{name: name, dir: dir, use: v.interfaceUse(name, dir, routed)})
	}

	return list, nil
}

// interfaceUse returns the reason why the host needs the interface, or "".
func (v *view) interfaceUse(name, dir string, routed []string) string {
	if slices.Contains(routed, name) {
		return "carries the default route"
	}

	// A bridge, a bond, a team, a VRF and an Open vSwitch datapath are each the
	// master of their members.
	if master := v.target(path.Join(dir, "master")); master != "" {
		return "is a member of " + path.Base(master)
	}

	if text, err := v.text(path.Join(dir, "flags")); err == nil {
		flags, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 32)
		if err != nil || flags&iffUp != 0 { // flags that cannot be read do not prove that it is down
			return "is up"
		}
	}

	return ""
}

// defaultRoutes lists the interfaces of the IPv4 and IPv6 default routes. It
// reads the routes of process 1 and of this process, because the two differ
// where the agent runs in a container.
func (v *view) defaultRoutes() []string {
	var names []string
	for _, process := range []string{"1", "self"} {
		if text, err := v.text(path.Join("proc", process, "net/route")); err == nil {
			// The fields are Iface, Destination, Gateway, Flags and so on. A default route
			// has destination 0 and mask 0 (proc_net(5)).
			for line := range strings.Lines(text) {
				if f := strings.Fields(line); len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" {
					names = append(names, f[0])
				}
			}
		}

		if text, err := v.text(path.Join("proc", process, "net/ipv6_route")); err == nil {
			// The first fields are the destination and the prefix length, and the last one
			// is the device. The kernel's own unreachable default route is on lo.
			for line := range strings.Lines(text) {
				if f := strings.Fields(line); len(f) == 10 && strings.Trim(f[0], "0") == "" && f[1] == "00" && f[9] != "lo" {
					names = append(names, f[9])
				}
			}
		}
	}

	return names
}

// Interfaces returns the PCI function of each network interface that belongs to
// one, by the name of the interface.
func (t *Tree) Interfaces() (map[string]cyborg.PCIAddress, error) {
	v, err := t.open()
	if err != nil {
		return nil, err
	}
	defer v.close()

	names, err := v.names("sys/class/net")
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the network interfaces cannot be listed: %w", err)
	}

	found := map[string]cyborg.PCIAddress{}
	for _, name := range names {
		if chain := functionsOn(v.target(path.Join("sys/class/net", name))); len(chain) > 0 {
			found[name] = chain[len(chain)-1]
		}
	}

	return found, nil
}
