package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/english"
)

// firstName is the name of the accelerator that the suggested commands create.
const firstName = "my-first"

// welcome waits until every host has reported. Then it prints the addresses of
// everything, and commands to try.
func (s *standalone) welcome(ctx context.Context, databaseURL, ui string) {
	// It reads the records from the database and not through the API, which may ask
	// for a credential that this process does not have.
	store, err := db.Open(ctx, databaseURL, db.Options{MaxConns: 2, SilentAfter: s.config.Conductor.SilentAfter}, s.log)
	if err == nil {
		defer store.Close()
		err = s.awaitHosts(ctx, store)
	}

	var accelerators []cyborg.Accelerator
	if err == nil {
		accelerators, err = allAccelerators(ctx, store)
	}

	var overridden []string
	if err == nil {
		overridden, err = s.overridden(ctx, store)
	}

	if err != nil {
		if ctx.Err() == nil {
			s.log.WarnContext(ctx, "cannot tell whether everything is there", slog.String("error", err.Error()))
		}
		return
	}

	where := "http://" + s.config.API.Listen
	if cert := s.config.API.TLS.Cert; cert != "" {
		where = "https://" + advertised(s.config.API.Listen, cert)
	}

	s.say("Ready after %s: %s, %s.\n", since(s.began), english.Count(len(s.hosts), "host"), english.Count(len(accelerators), "accelerator"))
	s.say("  API          %s/v1", where)
	s.say("  API document %s/openapi.json", where)
	s.say("  Temporal UI  %s", ui)

	if len(overridden) > 0 {
		s.say("\n%s", strings.Join(overridden, "\n"))
	}

	s.say("\nTry, in another terminal:\n")
	for _, line := range s.suggestions(where, accelerators) {
		s.say("  %s", line)
	}

	if len(s.config.API.Tokens) == 0 && s.config.API.TLS.ClientCA == "" {
		s.say("\nEverybody on this machine may do everything: no api.tokens are configured.")
	}

	s.say("\nCtrl-C stops; the next start continues where this one stopped.")
}

// awaitHosts waits until each host of this process has reported, or until the
// context ends.
func (s *standalone) awaitHosts(ctx context.Context, store *db.Store) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()

	for {
		hosts, err := all(func(page db.Page) ([]cyborg.Host, error) { return store.Hosts(ctx, page) },
			func(h cyborg.Host) string { return h.Name })
		if err != nil {
			return err
		}

		if s.live(hosts) == len(s.hosts) {
			return nil
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// allAccelerators returns the accelerators of all hosts.
func allAccelerators(ctx context.Context, store *db.Store) ([]cyborg.Accelerator, error) {
	return all(func(page db.Page) ([]cyborg.Accelerator, error) {
		return store.Accelerators(ctx, db.AcceleratorFilter{}, page)
	}, func(a cyborg.Accelerator) string { return a.UUID.String() })
}

// all reads a list page by page. The function marker returns the marker of an
// item: the next page begins after it.
func all[T any](read func(db.Page) ([]T, error), marker func(T) string) ([]T, error) {
	var items []T
	var page db.Page
	for {
		next, err := read(page)
		if err != nil || len(next) == 0 {
			return items, err
		}
		items = append(items, next...)
		page.Marker = marker(next[len(next)-1])
	}
}

// suggestions returns commands to try. They work as they are printed, apart
// from credentials, which the person has to fill in.
func (s *standalone) suggestions(where string, accelerators []cyborg.Accelerator) []string {
	var lines []string
	if where != apiclient.DefaultURL {
		lines = append(lines, "export CYBORG_URL="+where)
	}
	if len(s.config.API.Tokens) > 0 {
		lines = append(lines, "export CYBORG_TOKEN=...   # one of api.tokens")
	}
	if tls := s.config.API.TLS; tls.Cert != "" {
		lines = append(lines, "export CYBORG_CACERT="+tls.Cert+"   # or the authority that signed it")
		if tls.ClientCA != "" {
			lines = append(lines, "export CYBORG_CERT=... CYBORG_KEY=...   # signed by api.tls.client_ca")
		}
	}

	command := clientCommand() + " "
	lines = append(lines, command+"accelerator list")

	var free *cyborg.Accelerator
	for i := range accelerators {
		a := &accelerators[i]
		if a.Name == firstName {
			return append(lines, command+"accelerator history "+firstName, command+"operation list")
		}

		// Only a fake device is suggested. Somebody may need a real one.
		pretended := a.Driver == "fake" && a.Status() == cyborg.StatusInactive
		if pretended && (free == nil || a.DeviceType == cyborg.DeviceTypeFPGA && free.DeviceType != cyborg.DeviceTypeFPGA) {
			free = a
		}
	}

	if free == nil {
		return append(lines, command+"host list", command+"service list")
	}

	return append(lines,
		command+"accelerator create "+firstName+" --device-type "+string(free.DeviceType)+" --host "+free.Host,
		command+"accelerator attach "+firstName)
}

// clientCommand returns the command line client as the person can type it: the
// path of the binary beside this program, relative to the working directory if
// it is below that, or else its name, which is then looked up in PATH.
func clientCommand() string {
	const name = "cyborg"
	self, err := os.Executable()
	if err != nil {
		return name
	}

	beside := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(beside); err != nil {
		return name
	}

	if wd, err := os.Getwd(); err == nil {
		if relative, err := filepath.Rel(wd, beside); err == nil && filepath.IsLocal(relative) && strings.Contains(relative, "/") {
			return relative
		}
	}
	return beside
}

// advertised returns the host and port by which a client can reach a TLS
// listener. If the certificate is for another name, a client would reject the
// listener's address. The first name in the certificate that is not a wildcard
// is used instead, or else its first IP address.
func advertised(listen, certFile string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return listen
	}

	text, err := os.ReadFile(certFile)
	if err != nil {
		return listen
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return listen
	}

	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || cert.VerifyHostname(host) == nil {
		return listen
	}

	for _, name := range cert.DNSNames {
		if !strings.Contains(name, "*") {
			return net.JoinHostPort(name, port)
		}
	}

	if len(cert.IPAddresses) > 0 {
		return net.JoinHostPort(cert.IPAddresses[0].String(), port)
	}
	return listen
}
