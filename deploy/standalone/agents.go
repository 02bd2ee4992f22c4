package main

import (
	"os"
	"path/filepath"

	"go.temporal.io/sdk/client"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/drivers/builtin"
	"github.com/cyborg-project/cyborg/drivers/sysfs/simulator"
	"github.com/cyborg-project/cyborg/internal/capture"
	"github.com/cyborg-project/cyborg/internal/server"
	"github.com/cyborg-project/cyborg/workers/agent"
)

// checkCaptures refuses captures that are not there before anything is started.
func checkCaptures(hosts []host) error {
	for _, h := range hosts {
		if h.kind != "sysfs" || h.arg == thisMachine {
			continue
		}
		if _, err := os.Stat(h.arg); err != nil {
			return cyborg.Errorf(cyborg.Invalid, "--hosts: the capture %s cannot be read: %w", h.arg, err).
				WithHint("Make one with: cyborg-agent record FILE.tar.gz")
		}
	}
	return nil
}

// agents makes an agent for each host. They share the process's connection to Temporal.
func (s *standalone) agents(temporal client.Client) ([]server.Part, error) {
	registry, err := builtin.Registry()
	if err != nil {
		return nil, err
	}
	parts := make([]server.Part, 0, len(s.hosts))
	for _, h := range s.hosts {
		a, err := s.agent(h, temporal, registry)
		if err != nil {
			return nil, err
		}
		parts = append(parts, server.Part{Name: "agent of " + h.name, Run: a.Run})
	}
	return parts, nil
}

func (s *standalone) agent(h host, temporal client.Client, registry *drivers.Registry) (*agent.Agent, error) {
	dir := s.state.Join("agents", h.name)
	images := s.state.Join("images", h.name)
	if err := os.MkdirAll(images, 0o700); err != nil {
		return nil, cyborg.Errorf(cyborg.Unavailable, "the image directory of host %s cannot be made: %w", h.name, err)
	}
	c := s.config.Agent
	if c.ImageDir != "" {
		images = c.ImageDir
	}
	cfg := agent.Config{
		Host: h.name, StateDir: dir, Root: "/",
		ImageDir: images, ImageMaxBytes: int64(c.ImageMax), ImageCacheBytes: int64(c.ImageCache),
		Endpoints:         []string{"http://" + s.config.AgentEndpoint.Listen},
		HeartbeatInterval: c.Heartbeat, FullScanInterval: c.FullScan, ScanTimeout: c.ScanTimeout, UsageTimeout: c.UsageTimeout,
		StopTimeout: c.StopTimeout, Slots: c.Slots,
	}
	deps := agent.Deps{
		Temporal: temporal, Drivers: registry, Log: s.log, Version: cyborg.Version,
		Metrics: s.registry,
	}
	switch {
	case h.kind == "fake":
		cfg.Backends = []agent.BackendConfig{{
			Name: "fake", Driver: "fake", Enabled: true, Options: map[string]any{"park": h.arg},
		}}
		return agent.New(cfg, deps)
	case h.arg != thisMachine:
		root, err := capture.Open(h.arg, s.state.Join("captures", h.name))
		if err != nil {
			return nil, err
		}
		cfg.Root = root
	}
	// Everything on PCI is listed, and nothing is touched before somebody takes it into service.
	options := map[string]any{"device_spec": []any{map[string]any{"address": "*"}}}
	if _, err := os.Stat(filepath.Join(cfg.Root, simulator.Marker)); err == nil {
		options["simulate"] = true
	} else if h.arg != thisMachine {
		deps.BootID = "capture" // what was recorded does not boot
	}
	cfg.Backends = []agent.BackendConfig{{Name: "pci", Driver: "generic", Enabled: true, Options: options}}
	return agent.New(cfg, deps)
}

// live says how many of the hosts have reported.
func (s *standalone) live(hosts []cyborg.Host) int {
	known := map[string]bool{}
	for _, h := range hosts {
		known[h.Name] = !h.Silent
	}
	n := 0
	for _, h := range s.hosts {
		if known[h.name] {
			n++
		}
	}
	return n
}
