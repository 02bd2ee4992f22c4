package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// welcome waits until the API answers and every host has reported, and then says where everything is and what to try.
func (s *standalone) welcome(ctx context.Context, ui string) {
	scheme := "http://"
	if s.config.API.TLS.Cert != "" {
		scheme = "https://"
	}
	where := scheme + s.config.API.Listen
	hosts, accelerators, err := s.awaitHosts(ctx, where)
	if err != nil {
		if ctx.Err() == nil {
			s.log.WarnContext(ctx, "cannot tell whether everything answers", slog.String("error", err.Error()))
		}
		return
	}
	s.say("Ready after %s: %d hosts, %d accelerators.\n", since(s.began), hosts, accelerators)
	s.say("  API          %s/v1", where)
	s.say("  API document %s/openapi.json", where)
	s.say("  Temporal UI  %s", ui)
	s.say("\nTry, in another terminal:\n")
	s.say("  bin/cyborg accelerator list")
	s.say("  bin/cyborg accelerator create my-first --device-type FPGA")
	s.say("  bin/cyborg accelerator attach my-first")
	s.say("\nCtrl-C stops; the next start goes on where this one was.")
}

// awaitHosts returns the number of hosts and accelerators as soon as each host has reported.
func (s *standalone) awaitHosts(ctx context.Context, where string) (hosts, accelerators int, err error) {
	if len(s.config.API.Tokens) > 0 || s.config.API.TLS.ClientCA != "" {
		return len(s.hosts), 0, nil // it asks for a credential, and we have none
	}
	client, err := apiclient.New(apiclient.Options{URL: where, CACert: s.config.API.TLS.Cert})
	if err != nil {
		return 0, 0, err
	}
	defer client.Close()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		known, err := apiclient.Collect(client.Hosts(ctx, apiclient.Page{}))
		if err == nil && s.live(known) == len(s.hosts) {
			all, err := apiclient.Collect(client.Accelerators(ctx, apiclient.AcceleratorFilter{}, apiclient.Page{}))
			return len(known), len(all), err
		}
		if err != nil && cyborg.KindOf(err) != cyborg.Unavailable {
			return 0, 0, err
		}
		select {
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		case <-ticker.C:
		}
	}
}
