package server

import (
	"cmp"
	"context"

	"github.com/cyborg-project/cyborg/api/audit"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/openstack/keystone"
)

// callers says who may call the API: static tokens, certificates, and tokens of Keystone where they are configured.
func (s *server) callers() (auth.Config, error) {
	c := s.config
	config := auth.Config{Certificates: c.API.TLS.ClientCA != ""}
	for _, t := range c.API.Tokens {
		config.Tokens = append(config.Tokens, auth.Token{Name: t.Name, Secret: t.Token.Reveal(), Role: auth.Role(t.Role)})
	}
	if !c.Keystone.Enabled {
		return config, nil
	}
	validator, err := keystone.New(s.cloud, keystone.Options{
		Revocation: c.Keystone.Revocation, Tokens: c.Keystone.CacheTokens, Registry: s.Registry, Log: s.Log,
	})
	config.Keystone = auth.Keystone{
		Validator: validator, URI: cmp.Or(c.Keystone.AuthenticateURI, s.cloud.AuthURL()), ServiceRoles: c.Keystone.ServiceRoles,
		Admins: c.Keystone.AdminRoles, Members: c.Keystone.MemberRoles, Readers: c.Keystone.ReaderRoles,
	}
	return config, err
}

// trail is where the audit's lines go, while the process runs.
type trail struct {
	account web.Account // nil for nowhere
	run     func(ctx context.Context) error
}

func (s *server) audit() (trail, error) {
	if !s.config.Audit.Enabled {
		return trail{run: func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}}, nil
	}
	to, err := audit.New(s.config.Audit.File, hostname(), s.Log)
	if err != nil {
		return trail{}, err
	}
	return trail{account: to.Account, run: func(ctx context.Context) error {
		<-ctx.Done()
		return to.Close()
	}}, nil
}
