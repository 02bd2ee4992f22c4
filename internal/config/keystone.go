package config

import "time"

// Keystone configures how the tokens of callers are validated.
type Keystone struct {
	Enabled         bool          `key:"enabled" default:"false" doc:"Accept Keystone's tokens (the header X-Auth-Token), beside static tokens and certificates. It needs openstack.auth_url."`
	AuthenticateURI string        `key:"www_authenticate_uri" auto:"openstack.auth_url" check:"url" example:"https://keystone.example.org:5000" doc:"The public URL of Keystone, which callers without a good token are sent to."`
	ServiceRoles    []string      `key:"service_token_roles" default:"service" doc:"Roles of which a service token (X-Service-Token) must have one. One that has none is refused."`
	Revocation      time.Duration `key:"revocation_window" default:"1m" min:"1s" max:"24h" doc:"How long an answer of Keystone is believed. After it, a token is asked for again, so that one that was revoked is refused. While Keystone does not answer, tokens that were good are taken until they expire."`
	CacheTokens     int           `key:"cache_tokens" default:"10000" min:"100" max:"1000000" doc:"The most tokens that are remembered; the least recently used are forgotten first."`
	AdminRoles      []string      `key:"admin_roles" default:"admin" doc:"Keystone roles whose bearers are admin on /v1."`
	MemberRoles     []string      `key:"member_roles" example:"accelerator_operator" doc:"Keystone roles whose bearers are member on /v1. There is one inventory for all projects there: give them to people who may see and use all of it."`
	ReaderRoles     []string      `key:"reader_roles" example:"accelerator_auditor" doc:"Keystone roles whose bearers are reader on /v1: they see the accelerators of all projects."`
}

// validateKeystone checks what Keystone needs of other options. An empty list
// of service roles would turn every service token away.
func (d *decoder) validateKeystone(c *Config) {
	if !c.Keystone.Enabled {
		return
	}

	if !c.OpenStack.Enabled() && !d.failed("openstack.auth_url") {
		d.wrongf(c, "keystone.enabled", "true", "expected openstack.auth_url beside it")
	}

	if len(c.Keystone.ServiceRoles) == 0 {
		d.wrongf(c, "keystone.service_token_roles", "", "expected one role or more")
	}
}
