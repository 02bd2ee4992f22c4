package config

import "time"

// Keystone configures how the tokens of callers are validated.
type Keystone struct {
	Enabled         bool          `key:"enabled" default:"false" doc:"Accept Keystone's tokens (the header X-Auth-Token), in addition to static tokens and certificates. This needs openstack.auth_url or openstack.cloud."`
	AuthenticateURI string        `key:"www_authenticate_uri" auto:"openstack.auth_url" check:"url" example:"https://keystone.example.org:5000" doc:"The public URL of Keystone. The server sends callers without a valid token there."`
	ServiceRoles    []string      `key:"service_token_roles" default:"service" doc:"A service token (X-Service-Token) must have one of these roles. The server refuses a service token that has none of them."`
	Revocation      time.Duration `key:"revocation_window" default:"1m" min:"1s" max:"24h" doc:"How long the server trusts an answer of Keystone about a token. After that it asks again, so that it refuses a revoked token. While Keystone does not answer, the server accepts each token that was valid before, until the token expires."`
	CacheTokens     int           `key:"cache_tokens" default:"10000" min:"100" max:"1000000" doc:"The most tokens that the server remembers. It forgets the least recently used tokens first."`
	AdminRoles      []string      `key:"admin_roles" default:"admin" doc:"Users with one of these Keystone roles are admin on /v1."`
	MemberRoles     []string      `key:"member_roles" example:"accelerator_operator" doc:"Users with one of these Keystone roles are member on /v1. All projects share one inventory there, so give these roles to people who may see and use all of it."`
	ReaderRoles     []string      `key:"reader_roles" example:"accelerator_auditor" doc:"Users with one of these Keystone roles are reader on /v1. They see the accelerators of all projects."`
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
