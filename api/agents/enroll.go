package agents

import (
	"context"
	"crypto/x509"
	"io"
	"net/http"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// Enrollment says how agents get certificates here.
type Enrollment struct {
	// Authority is the directory of the authority that signs them. It is read at each
	// request, so that it can be replaced without a restart.
	Authority string
	// Life is how long a certificate is valid.
	Life time.Duration
	// Late is for how long an expired certificate can still be renewed.
	Late time.Duration
}

const (
	// doorLimit is the largest request for a certificate, in bytes. With an RSA key
	// of 8192 bits it has about 3 KiB.
	doorLimit = 16 << 10
	// maxDoorBodies and maxDoors are how many such requests are read at once, and
	// how many are worked on. Anybody can make them, and they must not cost the agents
	// that have a certificate anything.
	maxDoorBodies = 64
	maxDoors      = 4
)

// closeDoors refuses certificates that were revoked. A client without a verified
// one, which the listener lets in where it says that it wants to enroll, may ask
// for anything then: it gets no further than the two routes that are for it. Where
// there are no certificates, it refuses other users of this machine.
func (e *endpoint) closeDoors(next http.Handler) http.Handler {
	return web.Handler(func(w http.ResponseWriter, r *http.Request) error {
		if !e.config.Certificates && !inProcess(r) && r.URL.Path != HealthPath {
			if err := e.checkUser(r); err != nil {
				w.Header().Set("Connection", "close") // as below
				return err
			}
		}

		verified := r.TLS != nil && len(r.TLS.VerifiedChains) > 0
		if !e.config.Certificates || inProcess(r) || verified {
			if err := e.refuseRevoked(r); err != nil { // the handshake may be long ago
				return err
			}

			next.ServeHTTP(w, r)
			return nil
		}

		// A stranger gets one answer on each connection, so that none of his stays in
		// the place of an agent's.
		w.Header().Set("Connection", "close")
		if e.config.Enrollment != nil && r.Method == http.MethodPost && (r.URL.Path == agentapi.EnrollPath || r.URL.Path == agentapi.RenewPath) {
			next.ServeHTTP(w, r)
			return nil
		}
		return noCertificate()
	})
}

// refuseRevoked returns an error where the certificate of a request was revoked. A
// handler that has waited, for a body or for its turn, asks again before it records
// anything.
func (e *endpoint) refuseRevoked(r *http.Request) error {
	if e.config.Refuse == nil || inProcess(r) || r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return nil
	}
	return e.config.Refuse(r.TLS.VerifiedChains[0][0])
}

// noCertificate is the error for a request without a client certificate.
func noCertificate() error {
	return cyborg.Errorf(cyborg.ErrUnauthenticated, "the request has no client certificate").
		WithHint("Configure agent.tls with a certificate that names the host, or run cyborg-agent enroll.")
}

// enroll gives an agent with a token the first certificate of its host. Whom the
// certificate names is what the token is for; of the request only the key counts.
func (e *endpoint) enroll(w http.ResponseWriter, r *http.Request) error {
	var asked agentapi.EnrollRequest
	if err := e.readDoor(w, r, &asked); err != nil {
		return err
	}
	if err := cyborg.CheckHostName(asked.Host); err != nil {
		return err
	}

	release, err := e.doors.acquire(r.Context(), w, web.ClientNetwork(r))
	if err != nil {
		return err
	}
	defer release()

	// Whatever could fail later must fail before the token is used up.
	authority, err := e.authority(asked.Request)
	if err != nil {
		return err
	}

	number, err := e.deps.Records.EnrollHost(r.Context(), asked.Host, asked.Token)
	if err != nil {
		return err
	}

	web.SetIdentity(r.Context(), web.Identity{Name: asked.Host})
	return e.issue(w, authority, asked.Request, asked.Host, number)
}

// renew gives an agent another certificate in place of the one that it shows,
// which may have expired. It is for the same host, and from the same enrollment.
func (e *endpoint) renew(w http.ResponseWriter, r *http.Request) error {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return noCertificate()
	}

	var asked agentapi.RenewRequest
	if err := e.readDoor(w, r, &asked); err != nil {
		return err
	}

	release, err := e.doors.acquire(r.Context(), w, web.ClientNetwork(r))
	if err != nil {
		return err
	}
	defer release()

	authority, err := e.authority(asked.Request)
	if err != nil {
		return err
	}

	shown := r.TLS.PeerCertificates[0]
	host, err := e.hostOfShown(authority, shown)
	if err != nil {
		return err
	}
	web.SetIdentity(r.Context(), web.Identity{Name: host})

	// The records may just have been restored, and the list know more.
	if e.config.Refuse != nil {
		if err := e.config.Refuse(shown); err != nil {
			return err
		}
	}
	if err := e.deps.Records.CheckHostIdentity(r.Context(), host, pki.Enrollment(shown)); err != nil {
		return err
	}
	return e.issue(w, authority, asked.Request, host, pki.Enrollment(shown))
}

// hostOfShown returns the host that a certificate names which the listener may
// not have verified.
func (e *endpoint) hostOfShown(authority *pki.Authority, shown *x509.Certificate) (string, error) {
	if err := authority.VerifyForRenewal(shown, time.Now(), e.config.Enrollment.Late); err != nil {
		return "", err
	}

	who, err := identity.OfCertificate(shown, e.config.TrustDomain)
	if err != nil {
		return "", err
	}
	if who.Role != identity.Host {
		return "", cyborg.Errorf(cyborg.ErrForbidden, "the certificate is that of %s, and only those of hosts are renewed here", who)
	}
	return who.Name, nil
}

// readDoor reads the body of a request for a certificate.
func (e *endpoint) readDoor(w http.ResponseWriter, r *http.Request, into any) error {
	text, err := e.doorBodies.read(w, r, func(context.Context, *body) ([]byte, error) {
		from, err := decompressed(w, r, doorLimit)
		if err != nil {
			return nil, err
		}

		text, err := io.ReadAll(io.LimitReader(from, doorLimit+1))
		return text, bodyError(r, text, doorLimit, err)
	})
	if err != nil {
		return err
	}
	return decode(text, into)
}

// authority opens the authority, and checks that it can sign the request.
func (e *endpoint) authority(request []byte) (*pki.Authority, error) {
	if err := pki.CheckRequest(request); err != nil {
		return nil, err
	}

	authority, err := pki.Open(e.config.Enrollment.Authority)
	if err != nil { // the agent cannot do anything about that
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "this server's authority cannot be used: %w", err)
	}
	return authority, nil
}

// issue answers with a certificate of the host for the key of the request.
func (e *endpoint) issue(w http.ResponseWriter, authority *pki.Authority, request []byte, host string, enrollment int64) error {
	certificate, err := authority.IssueRequest(request, pki.Leaf{
		Identity:   identity.Identity{TrustDomain: e.config.TrustDomain, Role: identity.Host, Name: host},
		Enrollment: enrollment, Valid: e.config.Enrollment.Life,
	})
	if err != nil {
		return err
	}

	return web.WriteJSON(w, http.StatusOK, agentapi.CertificateReply{
		Certificate: string(pki.EncodeCertificate(certificate)), Authorities: string(authority.Bundle()),
	})
}
