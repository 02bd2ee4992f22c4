package server

import (
	"cmp"
	"context"

	"github.com/cyborg-project/cyborg/api/audit"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/openstack/keystone"
)

// callers returns the ways in which callers of the API may prove who they are:
// static tokens, client certificates, and tokens of Keystone, as far as they
// are configured.
func (s *server) callers() (auth.Config, error) {
	c := s.config
	accepted := auth.Config{Certificates: c.API.TLS.ClientCA != "", TrustDomain: c.Identity.TrustDomain, Tokens: Tokens(c.API)}

	if !c.Keystone.Enabled {
		return accepted, nil
	}

	validator, err := keystone.New(s.cloud, keystone.Options{
		Revocation: c.Keystone.Revocation, Tokens: c.Keystone.CacheTokens, Registry: s.Registry, Log: s.Log,
	})

	accepted.Keystone = auth.Keystone{
		Validator: validator, URI: cmp.Or(c.Keystone.AuthenticateURI, s.cloud.AuthURL()), ServiceRoles: c.Keystone.ServiceRoles,
		Admins: c.Keystone.AdminRoles, Members: c.Keystone.MemberRoles, Readers: c.Keystone.ReaderRoles,
	}
	return accepted, err
}

// Tokens returns the static tokens of the API.
func Tokens(c config.API) []auth.Token {
	var tokens []auth.Token
	for _, t := range c.Tokens {
		tokens = append(tokens, auth.Token{Name: t.Name, Secret: t.Token.Reveal(), Role: auth.Role(t.Role), Project: t.Project})
	}
	return tokens
}

// auditTrail is where the lines of the audit go.
type auditTrail struct {
	account web.ExchangeRecorder            // nil where there is no audit
	run     func(ctx context.Context) error // waits until ctx ends and closes the file
}

// audit opens the audit's file. Without an audit, the result has nowhere to
// write and nothing to close.
func (s *server) audit() (auditTrail, error) {
	if !s.config.Audit.Enabled {
		return auditTrail{run: func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}}, nil
	}

	to, err := audit.New(s.config.Audit.File, hostname(), audit.Window, s.Log)
	if err != nil {
		return auditTrail{}, err
	}

	return auditTrail{account: to.Account, run: func(ctx context.Context) error {
		to.Run(ctx)
		return to.Close() //nolint:contextcheck // it closes a file, and waits for nobody
	}}, nil
}
