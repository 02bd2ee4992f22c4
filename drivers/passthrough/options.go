package passthrough

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
)

// The names of the options, and their defaults.
const (
	optionClean     = "clean"
	optionDeadline  = "deadline"
	optionVFIO      = "vfio_driver"
	optionPCIIDs    = "pci_ids"
	optionPartition = "partition"
	optionSimulate  = "simulate"
	optionMappings  = "physical_device_mappings"

	defaultDeadline = 30 * time.Second
	defaultVFIO     = "vfio-pci"
)

// options are the decoded options of a backend.
type options struct {
	// clean is how a handle is cleaned after every holder; empty for not at all.
	clean cyborg.CleanMethod

	// partition says that physical functions may be divided into virtual ones.
	partition bool

	// deadline is how long one access to the kernel (an unbind, a bind, loading a
	// module) may take.
	deadline time.Duration

	// vfio is the kernel driver to which an attach binds the function.
	vfio string

	// pciIDs is the path of the pci.ids file; where it is empty, pcidb looks in the
	// usual places.
	pciIDs string

	// mappings say to which physical networks the network cards lead.
	mappings mappings

	// simulate says that the root is a simulated host.
	simulate bool
}

// driverNamePattern matches the kernel drivers that the options accept. The
// name becomes part of a path, so it may not have a slash.
var driverNamePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)

// vfioDriverPattern matches vfio-pci and its variants for single devices, such
// as mlx5-vfio-pci and nvgrace-gpu-vfio-pci: the kernel names all of them so.
var vfioDriverPattern = regexp.MustCompile(`^([a-z0-9]+[-_])*vfio[-_]pci$`)

// isVFIODriver reports whether a request may name that kernel driver. An attach
// loads the module of that name, and most modules have no business with a
// request; which others a host needs, its own configuration says.
func isVFIODriver(value any) bool {
	name, ok := value.(string)
	return ok && vfioDriverPattern.MatchString(name)
}

// parseOptions decodes the options over the defaults, and those that only this kind of
// backend has. The error is of kind ErrInvalid and names all mistakes at once.
func parseOptions(backend string, given map[string]any, kind Kind) (options, error) {
	o := options{deadline: defaultDeadline, vfio: defaultVFIO}
	var mistakes []error

	for _, key := range slices.Sorted(maps.Keys(given)) {
		var err error

		switch value := given[key]; key {
		case optionClean:
			o.clean, err = parseClean(value)
		case optionDeadline:
			o.deadline, err = parseDeadline(value)
		case optionVFIO:
			o.vfio, err = parseText(key, value, driverNamePattern)
		case optionPCIIDs:
			o.pciIDs, err = parseText(key, value, nil)
		case optionMappings:
			o.mappings, err = parseMappings(value)
		case optionPartition:
			o.partition, err = parseFlag(key, value)
		case optionSimulate:
			o.simulate, err = parseFlag(key, value)
		default:
			read, known := kind.Options[key]
			if !known {
				err = fmt.Errorf("there is no option %q; there are %s", key, strings.Join(optionNames(kind), ", "))
				break
			}
			err = read(value)
		}

		mistakes = append(mistakes, err)
	}

	if err := errors.Join(mistakes...); err != nil {
		return options{}, cyborg.Errorf(cyborg.ErrInvalid, "options of backend %q (driver %s): %s",
			backend, kind.Driver, strings.ReplaceAll(err.Error(), "\n", "; "))
	}

	return o, nil
}

// optionNames lists the options of a kind of backends, sorted.
func optionNames(kind Kind) []string {
	names := append(slices.Collect(maps.Keys(kind.Options)), optionClean, optionDeadline, optionPartition, optionPCIIDs, optionMappings, optionSimulate, optionVFIO)
	slices.Sort(names)
	return names
}

// OwnOptions are the options that only the host's own configuration may set.
func OwnOptions() []drivers.OwnOption {
	return []drivers.OwnOption{{Name: optionPCIIDs}, {Name: optionVFIO, Open: isVFIODriver}}
}

// parseClean reads how handles are cleaned after every holder.
func parseClean(value any) (cyborg.CleanMethod, error) {
	text, _ := value.(string)
	method, err := cyborg.ParseCleanMethod(text)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s is %v; write %s or %s", optionClean, value, cyborg.NoCleaning, cyborg.CleanReset)
	case method != "" && method != cyborg.CleanReset:
		return "", fmt.Errorf("%s is %s; write %s or %s: this driver knows PCI functions only, and not how to remove what is stored behind them",
			optionClean, method, cyborg.NoCleaning, cyborg.CleanReset)
	}
	return method, nil
}

// parseDeadline reads a duration such as "30s", or a number of seconds, up to
// an hour.
func parseDeadline(value any) (time.Duration, error) {
	var deadline time.Duration
	var err error
	switch value := value.(type) {
	case string:
		deadline, err = time.ParseDuration(value)
	case time.Duration:
		deadline = value
	case int:
		deadline = time.Duration(value) * time.Second
	case float64:
		deadline = time.Duration(value * float64(time.Second))
	default:
		err = errors.New("not a duration")
	}

	if err != nil || deadline <= 0 || deadline > time.Hour {
		return 0, fmt.Errorf("%s is %v; write a duration up to an hour, such as \"30s\"", optionDeadline, value)
	}

	return deadline, nil
}

// parseText reads a text that is not empty and matches the pattern, if there is
// one.
func parseText(key string, value any, pattern *regexp.Regexp) (string, error) {
	text, ok := value.(string)
	if !ok || text == "" || pattern != nil && !pattern.MatchString(text) {
		return "", fmt.Errorf("%s is %q; write a name such as %q", key, value, defaultVFIO)
	}

	return text, nil
}

// parseFlag reads a boolean.
func parseFlag(key string, value any) (bool, error) {
	flag, ok := value.(bool)
	if !ok {
		return false, fmt.Errorf("%s is %v; write true or false", key, value)
	}

	return flag, nil
}
