package novaconf

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Beside lists where else on the host Nova is told of PCI devices, as "path:line": in nova.conf and nova-compute.conf, which
// Debian's nova-compute reads as well, above the directory, and in the other drop-ins. oslo.config takes the values of all of them,
// the drop-ins' last, and Nova the first that matches a function.
func (f File) Neighbours() ([]string, error) {
	files, err := filepath.Glob(filepath.Join(f.Dir, "*.conf"))
	if err != nil {
		return nil, unavailable(err)
	}
	files = slices.DeleteFunc(files, func(path string) bool {
		return path == f.Path() || strings.HasPrefix(filepath.Base(path), ".") // which oslo.config leaves out
	})
	above := filepath.Dir(filepath.Clean(f.Dir))
	var places []string
	for _, path := range append([]string{filepath.Join(above, "nova.conf"), filepath.Join(above, "nova-compute.conf")}, files...) {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return places, unavailable(err)
		}
		for _, line := range deviceSpecs(text) {
			places = append(places, fmt.Sprintf("%s:%d", path, line))
		}
	}
	return places, nil
}

// deviceSpecs are the lines of a configuration that have [pci] device_spec, or what it was called before Nova 26.
func deviceSpecs(text []byte) []int {
	var (
		found []int
		pci   bool
		n     int
	)
	for line := range bytes.Lines(text) {
		n++
		if bytes.HasPrefix(line, []byte("[")) {
			section, _, _ := strings.Cut(string(line[1:]), "]")
			pci = section == "pci"
			continue
		}
		end := bytes.IndexAny(line, "=:")
		if !pci || end < 0 {
			continue
		}
		if key := string(bytes.TrimRight(line[:end], " \t")); key == "device_spec" || key == "passthrough_whitelist" {
			found = append(found, n)
		}
	}
	return found
}
