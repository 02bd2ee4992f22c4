package server

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/revocation"
)

// Listeners are the open ports of a server process. They are opened before the
// process does anything else, so that a port in use leaves everything as it
// was. Certificates and authorities that are replaced on disk are used from the
// next connection on.
type Listeners struct {
	api    net.Listener // nil without the role api
	agents net.Listener // nil without the role conductor, or an address

	// inProcess connects the agents of this process with the conductor; nil if
	// there are none. Who reaches it is believed.
	inProcess net.Listener

	pprof net.Listener // nil unless server.pprof_listen is set

	// revoked is asked about the certificates of hosts. Run keeps it current.
	revoked *revocation.List
}

// Revocations returns the list that knows which certificates of hosts were revoked,
// for other listeners of this process. Run keeps it current.
func (l *Listeners) Revocations() *revocation.List { return l.revoked }

// Listen opens the ports that the roles need. The error is one sentence that
// names the option, and no port stays open then.
func Listen(ctx context.Context, c *config.Config, log *slog.Logger) (*Listeners, error) {
	l := Listeners{revoked: revocation.New(c.Identity.TrustDomain, revocation.File(c.Identity.Revocations), log)}
	open := func(setting, flag, address string, given pki.ServerOptions, authenticated bool) (net.Listener, error) {
		var t *tls.Config
		if given.Files.Cert != "" {
			var err error
			given.Log = log
			if t, err = pki.Server(given); err != nil {
				return nil, cyborg.Errorf(cyborg.ErrInvalid, "%s: %w", setting, err)
			}
		}
		return api.Endpoint{Setting: setting, Flag: flag, Address: address, TLS: t, Authenticated: authenticated}.Listen(ctx)
	}

	var err error

	if c.Server.Has(config.RoleAPI) {
		tokens := len(c.API.Tokens) > 0 || c.Keystone.Enabled
		authenticated := tokens || c.API.TLS.ClientCA != ""
		auth := tls.RequireAndVerifyClientCert
		if tokens {
			auth = tls.VerifyClientCertIfGiven // a caller without a certificate may have a token
		}
		l.api, err = open("api.listen", "--listen", c.API.Listen, pki.ServerOptions{Files: c.API.TLS.Files(), ClientAuth: auth, MinVersion: tls.VersionTLS12}, authenticated)
		if err != nil {
			return nil, err
		}
	}

	if c.Server.Has(config.RoleConductor) && c.AgentEndpoint.Listen != "" {
		if err := CheckEnrollment(c); err != nil {
			return nil, errors.Join(err, l.Close())
		}

		authenticated := c.AgentEndpoint.TLS.ClientCA != ""
		l.agents, err = open("agent_endpoint.listen", "--agent-listen", c.AgentEndpoint.Listen,
			pki.ServerOptions{
				Files: c.AgentEndpoint.TLS.Files(), ClientAuth: tls.RequireAndVerifyClientCert, Enrolls: c.Identity.Authority, Refuse: l.revoked.Check,
			}, authenticated)
		if err == nil {
			err = checkEndpoint(c)
		}
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}

	if c.Server.PprofListen != "" {
		l.pprof, err = api.Endpoint{Setting: "server.pprof_listen", Address: c.Server.PprofListen}.Listen(ctx)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}

	return &l, nil
}

// checkEndpoint returns an error where the certificate of the agent endpoint is not a
// server's: agents would refuse it. Callers of the API look at names only.
func checkEndpoint(c *config.Config) error {
	return c.AgentEndpoint.TLS.Files().CheckOwn("agent_endpoint.tls.cert", ownIdentity(c))
}

// ConnectAgents has the agents' endpoint served on a listener that only this
// process can reach, too. There, no agent needs a certificate.
func (l *Listeners) ConnectAgents(inProcess net.Listener) { l.inProcess = inProcess }

// Close closes the ports that Run has not closed already.
func (l *Listeners) Close() error {
	var errs []error
	for _, listener := range []net.Listener{l.api, l.agents, l.inProcess, l.pprof} {
		if listener == nil {
			continue
		}
		if err := listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}

	}
	return errors.Join(errs...)
}
