package agents

import (
	"net/http"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// authorizeHost returns an error unless the agent may speak for the host: where certificates are asked for, its
// certificate must name that host, as a DNS name or as the common name. Names with a wildcard name no host.
func (e *endpoint) authorizeHost(r *http.Request, host string) error {
	web.SetIdentity(r.Context(), web.Identity{Name: host})
	if !e.config.Certificates {
		return nil
	}
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return cyborg.Errorf(cyborg.ErrUnauthenticated, "the request has no client certificate").
			WithHint("Configure agent.tls with a certificate that names the host.")
	}
	leaf := r.TLS.VerifiedChains[0][0]
	names := append(slices.Clone(leaf.DNSNames), leaf.Subject.CommonName)
	if slices.ContainsFunc(names, func(name string) bool { return name != "" && strings.EqualFold(name, host) }) {
		return nil
	}
	return cyborg.Errorf(cyborg.ErrForbidden, "the certificate names %s, and may not speak for host %q", strings.Join(names, ", "), host).
		WithHint("Make a certificate for that host, or set agent.host to the name in this one.")
}
