package main

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/deploy/standalone/engine"
	"github.com/cyborg-project/cyborg/deploy/standalone/hosts"
	"github.com/cyborg-project/cyborg/drivers/builtin"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/drivers/generic"
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
	"github.com/cyborg-project/cyborg/internal/capture"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/server"
	"github.com/cyborg-project/cyborg/workers/agent"
)

// recordedBoot is the boot id of every recorded machine. It never changes,
// because a recording does not boot.
const recordedBoot = "capture"

// machine is the configuration of the agent of one host.
type machine struct {
	agent.Config
	bootID string // empty means that the agent reads it from the host
}

// checkCaptures rejects captures that cannot be found. It runs before anything
// is started or written, so that a mistyped path has no effects.
func checkCaptures(given []hosts.Host) error {
	for _, h := range given {
		if h.Kind != "sysfs" || h.Arg == hosts.ThisMachine {
			continue
		}

		_, err := os.Stat(h.Arg)
		if err == nil {
			continue
		}

		if reason, ok := errors.AsType[*os.PathError](err); ok {
			err = reason.Err
		}
		return cyborg.Errorf(cyborg.ErrInvalid, "--hosts: the capture %s cannot be read: %w", h.Arg, err).
			WithHint("Make one with: cyborg-agent record --output FILE.tar.gz")
	}

	return nil
}

// agents returns the configuration of the agent of each host. It unpacks
// captures.
func (s *standalone) agents() ([]machine, error) {
	machines := make([]machine, 0, len(s.hosts))
	for _, h := range s.hosts {
		m, err := s.machineOf(h)
		if err != nil {
			return nil, err
		}

		m.Endpoints = []string{"http://localhost"} // a name only; see agentParts
		machines = append(machines, m)
	}

	return machines, nil
}

// machineOf returns the configuration of the agent of a host, without the
// endpoint. It makes the directories of the agent, and unpacks a capture.
func (s *standalone) machineOf(h hosts.Host) (machine, error) {
	images := s.state.Join("images", h.Name)
	if err := os.MkdirAll(images, 0o700); err != nil {
		return machine{}, cyborg.Errorf(cyborg.ErrUnavailable, "the image directory of host %s cannot be made: %w", h.Name, err)
	}

	c := s.config.Agent
	if c.ImageDir != "" {
		images = c.ImageDir
	}

	nova := ""
	if c.NovaConfDir != "" {
		nova = filepath.Join(c.NovaConfDir, h.Name)
		if err := os.MkdirAll(nova, 0o755); err != nil {
			return machine{}, cyborg.Errorf(cyborg.ErrUnavailable, "the directory of Nova's whitelist of host %s cannot be made: %w", h.Name, err)
		}
	}

	m := machine{Config: agent.Config{
		Host: h.Name, StateDir: s.state.Join("agents", h.Name), Root: "/",
		Activities:  append([]cyborg.OperationKind{}, c.Activities...), // an empty list allows none
		NovaConfDir: nova, ImageDir: images, ImageMaxBytes: int64(c.ImageMax), ImageCacheBytes: int64(c.ImageCache),
		HeartbeatInterval: c.Heartbeat, FullScanInterval: c.FullScan, HealthInterval: c.Health, Slots: c.Slots,
		ScanTimeout: c.ScanTimeout, UsageTimeout: c.UsageTimeout, StopTimeout: min(c.StopTimeout, stopLimit),
	}}

	switch {
	case h.Kind == "fake":
		m.Backends = []agent.BackendConfig{{
			Name: "fake", Driver: fake.Name, Enabled: true, Options: map[string]any{"park": h.Arg},
		}}
		return m, nil
	case h.Arg != hosts.ThisMachine:
		root, err := capture.Open(h.Arg, s.state.Join("captures", h.Name))
		if err != nil {
			return machine{}, err
		}
		m.Root = root
	}

	// The agent lists every PCI device. That is safe: it does not touch a device
	// before somebody takes it into service.
	options := map[string]any{"device_spec": []any{map[string]any{"address": "*"}}}
	// In a directory of the simulator, devices react as on a machine. Any other
	// capture is only files, and gets a fixed boot id.
	if _, err := os.Stat(filepath.Join(m.Root, simulator.Marker)); err == nil {
		options["simulate"] = true
	} else if h.Arg != hosts.ThisMachine {
		m.bootID = recordedBoot
	}

	m.Backends = []agent.BackendConfig{{Name: "pci", Driver: generic.Name, Enabled: true, Options: options}}
	return m, nil
}

// agentParts makes an agent for each host. Each connects to Temporal as its host,
// and may take only that host's steps. It reaches the conductor inside the
// process: on a port, any user of the machine could speak for its host. Each host
// allows only the driver that --hosts gives it, so that nobody can have the agent
// of this machine serve fake cards.
func (s *standalone) agentParts(temporal *engine.Engine, conductor *pipeListener) ([]server.Part, error) {
	compiled, err := builtin.Registry()
	if err == nil {
		err = fake.Register(compiled)
	}
	if err != nil {
		return nil, err
	}

	parts := make([]server.Part, 0, len(s.machines))
	for _, m := range s.machines {
		var names []string
		for _, backend := range m.Backends {
			names = append(names, backend.Driver)
		}

		allowed, err := compiled.Only(names...)
		if err != nil {
			return nil, err
		}

		connected, err := s.connect(temporal, identity.Host, m.Host)
		if err != nil {
			return nil, err
		}

		a, err := agent.New(m.Config, agent.Deps{
			Temporal: connected, Drivers: allowed, Log: s.log, Version: cyborg.Version,
			BootID: m.bootID, Metrics: s.registry, Dial: conductor.DialContext,
		})
		if err != nil {
			return nil, err
		}
		parts = append(parts, server.Part{Name: "agent of " + m.Host, Run: a.Run})
	}

	return parts, nil
}

// live returns how many of the process's hosts have reported since the process
// started. With a PostgreSQL on another machine the time of the start says
// nothing, because its clock may differ; there a host counts if it is not
// silent.
func (s *standalone) live(known []cyborg.Host) int {
	heard := map[string]bool{}
	for _, h := range known {
		heard[h.Name] = h.LastSeen.After(s.began) || s.config.Database.URL != "" && !h.Silent
	}

	n := 0
	for _, h := range s.hosts {
		if heard[h.Name] {
			n++
		}
	}

	return n
}
