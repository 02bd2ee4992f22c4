package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/fake"
)

// host is one --hosts value: a machine to run an agent for.
type host struct {
	name string
	kind string // fake or sysfs
	arg  string // a park, or a path
}

// thisMachine is the argument of a sysfs host that is the machine itself.
const thisMachine = "/"

// parseHosts reads --hosts values: [NAME=]fake:PARK or [NAME=]sysfs:PATH. Without a name, this machine has its own, a
// fake host is called fake, and a capture is called as its file; a second of the same name gets a number. The error is
// of kind Invalid and quotes the value.
func parseHosts(values []string, machine string) ([]host, error) {
	var hosts []host
	given := map[string]bool{}
	for _, value := range values {
		h, named, err := parseHost(value, machine)
		if err != nil {
			return nil, err
		}
		base := h.name
		for n := 2; given[h.name]; n++ {
			if named || (h.kind == "sysfs" && h.arg == thisMachine) {
				return nil, cyborg.Errorf(cyborg.Invalid, "--hosts: %q: there is a host %s already", value, h.name)
			}
			h.name = fmt.Sprintf("%s-%d", base, n)
		}
		given[h.name] = true
		hosts = append(hosts, h)
	}
	return hosts, nil
}

func parseHost(value, machine string) (h host, named bool, err error) {
	spec := value
	if name, rest, ok := strings.Cut(value, "="); ok && !strings.Contains(name, ":") {
		h.name, spec, named = name, rest, true
	}
	kind, arg, ok := strings.Cut(spec, ":")
	if !ok || arg == "" || (kind != "fake" && kind != "sysfs") {
		return h, named, cyborg.Errorf(cyborg.Invalid,
			"--hosts: %q is not a host; write fake:8xfpga,2xgpu or sysfs:/ or sysfs:CAPTURE.tar.gz, with NAME= before it if you like", value)
	}
	h.kind, h.arg = kind, arg
	if kind == "fake" {
		if _, err := fake.ParsePark(arg); err != nil {
			return h, named, cyborg.Errorf(cyborg.Invalid, "--hosts: %q: %w", value, err)
		}
	}
	if !named {
		h.name = defaultName(h, machine)
	}
	if err := cyborg.CheckHostName(h.name); err != nil {
		return h, named, cyborg.Errorf(cyborg.Invalid, "--hosts: %q: %w", value, err).WithHint("Give it another: NAME=%s", spec)
	}
	return h, named, nil
}

func defaultName(h host, machine string) string {
	switch {
	case h.kind == "fake":
		return "fake"
	case h.arg == thisMachine:
		return machine
	}
	base := filepath.Base(strings.TrimRight(h.arg, "/"))
	for _, suffix := range []string{".tar.gz", ".tgz"} {
		base = strings.TrimSuffix(base, suffix)
	}
	return base
}
