package pci

import (
	"fmt"
	"strconv"

	"github.com/cyborg-project/cyborg/drivers/sysfs"
)

// ProfileNames are the names of the profiles.
func ProfileNames() []string { return profileNames() }

// ProfilesOf returns the names of the profiles that match a function with these ids.
func ProfilesOf(vendor string, product int, class string) []string {
	code, err := strconv.ParseUint(class+"00", 16, 32)
	if err != nil {
		panic(err)
	}
	f := sysfs.Function{Vendor: vendor, Product: fmt.Sprintf("%04x", product), Class: sysfs.Class(code)}

	var names []string
	for _, p := range profileTable() {
		if p.match(f) {
			names = append(names, p.name)
		}
	}
	return names
}
