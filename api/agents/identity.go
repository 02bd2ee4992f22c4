package agents

import (
	"net/http"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// authorizeHost returns an error unless the agent may act for the host. If
// certificates are configured, the agent's certificate must name the host, as a
// DNS name or as the common name; a name with a wildcard names no host. Without
// certificates, every agent is believed, and so are those of this process.
func (e *endpoint) authorizeHost(r *http.Request, host string) error {
	if !e.config.Certificates || inProcess(r) {
		web.SetIdentity(r.Context(), web.Identity{Name: host})
		return nil
	}

	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return cyborg.Errorf(cyborg.ErrUnauthenticated, "the request has no client certificate").
			WithHint("Configure agent.tls with a certificate that names the host.")
	}

	// Only what was proved may be in the log.
	leaf := r.TLS.VerifiedChains[0][0]
	web.SetIdentity(r.Context(), web.Identity{Name: leaf.Subject.CommonName, ID: leaf.SerialNumber.String()})

	names := append(slices.Clone(leaf.DNSNames), leaf.Subject.CommonName)
	if slices.ContainsFunc(names, func(name string) bool { return name != "" && strings.EqualFold(name, host) }) {
		web.SetIdentity(r.Context(), web.Identity{Name: host})
		return nil
	}

	return cyborg.Errorf(cyborg.ErrForbidden, "the certificate names %s, and may not speak for host %q", strings.Join(names, ", "), host).
		WithHint("Make a certificate for that host, or set agent.host to the name in this one.")
}
