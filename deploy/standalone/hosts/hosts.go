// Package hosts parses the option --hosts: the machines that the standalone
// runs agents for.
package hosts

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

// Host is one --hosts value: a machine to run an agent for.
type Host struct {
	Name string
	Kind string // fake or sysfs
	Arg  string // for fake the devices, such as 8xfpga,2xgpu; for sysfs a path
}

// ThisMachine is the argument of a sysfs host that is the machine itself.
const ThisMachine = "/"

// Parse parses the values of --hosts: [NAME=]fake:PARK or [NAME=]sysfs:PATH.
// Without a name, this machine gets the name in machine, a fake host gets the
// name fake, and a capture gets the name of its file. If such a name is taken,
// a number is appended; a name that was given twice is an error. The error is
// of kind ErrInvalid and quotes the value.
func Parse(values []string, machine string) ([]Host, error) {
	var hosts []Host
	given := map[string]bool{}
	for _, value := range values {
		h, named, err := parse(value, machine)
		if err != nil {
			return nil, err
		}

		base := h.Name
		for n := 2; given[h.Name]; n++ {
			if named || (h.Kind == "sysfs" && h.Arg == ThisMachine) {
				return nil, cyborg.Errorf(cyborg.ErrInvalid, "--hosts: %q: there is a host %s already", value, h.Name)
			}
			h.Name = fmt.Sprintf("%s-%d", base, n)
		}

		given[h.Name] = true
		hosts = append(hosts, h)
	}

	return hosts, nil
}

// parse parses one value. The result named is true if the value has a name.
func parse(value, machine string) (h Host, named bool, err error) {
	spec := value
	// An = after a colon belongs to the path of a capture.
	if name, rest, ok := strings.Cut(value, "="); ok && !strings.Contains(name, ":") {
		h.Name, spec, named = name, rest, true
	}

	kind, arg, ok := strings.Cut(spec, ":")
	if !ok || arg == "" || (kind != "fake" && kind != "sysfs") {
		return h, named, cyborg.Errorf(cyborg.ErrInvalid,
			"--hosts: %q is not a host; write fake:8xfpga,2xgpu or sysfs:/ or sysfs:CAPTURE.tar.gz, with NAME= before it if you like", value)
	}

	h.Kind, h.Arg = kind, arg
	if kind == "fake" {
		if _, err := fake.ParsePark(arg); err != nil {
			return h, named, cyborg.Errorf(cyborg.ErrInvalid, "--hosts: %q: %w", value, err)
		}
	}

	if !named {
		h.Name = defaultName(h, machine)
	}

	if err := cyborg.CheckHostName(h.Name); err != nil {
		return h, named, cyborg.Errorf(cyborg.ErrInvalid, "--hosts: %q: %w", value, err).WithHint("Give it another: NAME=%s", spec)
	}

	return h, named, nil
}

// defaultName returns the name of a host whose value has none.
func defaultName(h Host, machine string) string {
	switch {
	case h.Kind == "fake":
		return "fake"
	case h.Arg == ThisMachine:
		return machine
	}

	base := filepath.Base(strings.TrimRight(h.Arg, "/"))
	for _, suffix := range []string{".tar.gz", ".tgz"} {
		base = strings.TrimSuffix(base, suffix)
	}
	return base
}
