package agents

import (
	"net/http"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/identity"
)

// authorizeHost returns an error unless the agent may act for the host. If
// certificates are configured, the agent's certificate must name exactly this
// host by its URI; nothing else in it counts. Without certificates, every agent
// whose user checkUser has let in is believed, and so are those of this process.
//
// Whoever is believed without any proof stays a stranger, so that what it does
// wrong leaves no line in the log each time.
func (e *endpoint) authorizeHost(r *http.Request, host string) error {
	switch {
	case inProcess(r):
		web.SetIdentity(r.Context(), web.Identity{Name: host})
		return nil
	case !e.config.Certificates:
		return nil
	}

	who, err := identity.OfConnection(r.TLS, e.config.TrustDomain)
	if cyborg.ErrorKindOf(err) == cyborg.ErrUnauthenticated {
		return noCertificate()
	}
	if err != nil {
		return err
	}

	// Only what was proved may be in the log.
	if who.Role != identity.Host || who.Name != host {
		web.SetIdentity(r.Context(), web.Identity{Name: who.Name, ID: who.String()})
		return cyborg.Errorf(cyborg.ErrForbidden, "the certificate is that of %s, and may not speak for host %q", who, cyborg.Sanitize(host, maxShownHost)).
			WithHint("Make a certificate for that host, or set agent.host to the name in this one. Upper and lower case differ.")
	}

	web.SetIdentity(r.Context(), web.Identity{Name: host})
	return nil
}

// maxShownHost is how many characters of a wrong host an error shows.
const maxShownHost = 253
