package novaconf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Neighbours lists where else on the host Nova is told of PCI devices, each as
// "path:line". It looks into nova.conf and nova-compute.conf in the directory
// above (Debian's nova-compute reads both) and into the other drop-ins.
// oslo.config concatenates the values of all these files, the drop-ins' last,
// and Nova applies the first value that matches a function, so a neighbour's
// entry may override ours.
func (f File) Neighbours() ([]string, error) {
	files, err := filepath.Glob(filepath.Join(f.Dir, "*.conf"))
	if err != nil {
		return nil, unavailable(err)
	}

	files = slices.DeleteFunc(files, func(path string) bool {
		return path == f.Path() || strings.HasPrefix(filepath.Base(path), ".") // oslo.config ignores hidden files
	})

	above := filepath.Dir(filepath.Clean(f.Dir))
	var places []string
	for _, path := range append([]string{filepath.Join(above, "nova.conf"), filepath.Join(above, "nova-compute.conf")}, files...) {
		text, err := readRegular(path)
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

// readRegular reads a file, or what a link leads to; nothing if that is no
// regular file. It checks the type twice: opening some devices has effects, and
// after the first check something else may have taken the file's place. A FIFO
// without O_NONBLOCK would hold the agent until somebody writes into it.
func readRegular(path string) (text []byte, err error) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil, err
	}

	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()

	info, err = file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, err
	}

	text, err = io.ReadAll(io.LimitReader(file, largest+1))
	if err == nil && len(text) > largest {
		err = fmt.Errorf("%s is larger than %d bytes, so it is not read", path, largest)
	}
	return text, err
}

// deviceSpecs returns the numbers of the lines that set [pci] device_spec, or
// passthrough_whitelist, its name before Nova 26.
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
