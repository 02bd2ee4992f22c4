package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/atomicfile"
	"github.com/cyborg-project/cyborg/internal/clock"
	whois "github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/statedir"
)

// EnrolledFiles returns where the agent with that state directory has its
// certificate, its key and the authorities that it trusts, once it is enrolled.
// Certificate and key are in one file, which is replaced at once.
func EnrolledFiles(stateDir string) pki.Files {
	held := filepath.Join(stateDir, "certificates", "agent.pem")
	return pki.Files{Cert: held, Key: held, CA: filepath.Join(stateDir, "certificates", "ca.crt")}
}

// Enrolling is what an agent needs to enroll.
type Enrolling struct {
	Host, StateDir, TrustDomain string

	Server string // URL of an agent endpoint
	Pin    string // of the authority that signs certificates
	Token  string // good for one certificate of the host
}

// Enroll gets the host's first certificate, with a key that never leaves the host,
// and keeps both in the state directory. No agent may run there meanwhile.
// The token is sent only to a server whose certificate the pinned authority has
// signed.
func Enroll(ctx context.Context, asked Enrolling) (*x509.Certificate, error) {
	server, err := url.Parse(asked.Server)
	if err != nil || server.Scheme != "https" || server.Hostname() == "" {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the agent endpoint %q is no URL such as https://cyborg.example.org:6667", asked.Server)
	}

	pinned, err := pki.PinnedClient(asked.Pin, server.Hostname(), asked.TrustDomain)
	if err != nil {
		return nil, err
	}

	// To the endpoint, a server that is not believed is one of which no answer came.
	var disbelieved atomic.Pointer[error]
	verify := pinned.VerifyConnection
	pinned.VerifyConnection = func(state tls.ConnectionState) error {
		err := verify(state)
		if err != nil {
			disbelieved.Store(&err)
		}
		return err
	}

	dir, err := statedir.Open(asked.StateDir)
	if err != nil {
		return nil, err
	}
	defer dir.Close() //nolint:errcheck // the process ends, which unlocks it as well

	request, key, err := pki.NewRequest()
	if err != nil {
		return nil, err
	}

	var reply agentapi.CertificateReply
	to := certificateEndpoint(asked.Host, []string{asked.Server}, func(base *http.Transport) http.RoundTripper {
		base.TLSClientConfig = pinned
		return base
	})
	defer to.close()
	err = to.post(ctx, agentapi.EnrollPath, agentapi.EnrollRequest{Host: asked.Host, Token: asked.Token, Request: request}, &reply)
	if err != nil {
		if why := disbelieved.Load(); why != nil {
			return nil, *why
		}
		return nil, err
	}

	return keepCertificate(asked.StateDir, reply, key, whois.Identity{TrustDomain: asked.TrustDomain, Role: whois.Host, Name: asked.Host})
}

// certificateEndpoint is the client of the conductors' agent endpoints for the
// requests that get a certificate. Each makes a connection of its own.
func certificateEndpoint(host string, urls []string, over func(base *http.Transport) http.RoundTripper) *endpoint {
	base := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second, ResponseHeaderTimeout: answerTimeout, DisableKeepAlives: true,
	}

	e := newEndpoint(host, urls, nil, nil)
	e.client.Transport = over(base)
	return e
}

// keepCertificate writes a new certificate and its key, unless the certificate is
// not what was asked for.
func keepCertificate(stateDir string, reply agentapi.CertificateReply, key []byte, who whois.Identity) (*x509.Certificate, error) {
	pair, err := tls.X509KeyPair([]byte(reply.Certificate), key)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the server's answer is no certificate for the key: %w", err)
	}

	got, err := whois.OfCertificate(pair.Leaf, who.TrustDomain)
	if err != nil {
		return nil, err
	}
	if got != who {
		return nil, cyborg.Errorf(cyborg.ErrForbidden, "the server's certificate is for %s, and this is %s", got, who)
	}

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(reply.Authorities))
	_, err = pair.Leaf.Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: pair.Leaf.NotAfter, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the server's authorities have not signed its certificate: %w", err)
	}

	files := EnrolledFiles(stateDir)
	if err := os.MkdirAll(filepath.Dir(files.Cert), 0o700); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the directory of the certificate cannot be made: %w", err)
	}

	// The certificate comes last: what is there before is no certificate without its
	// authorities.
	if known, err := os.ReadFile(files.CA); err != nil || !bytes.Equal(known, []byte(reply.Authorities)) {
		if err := atomicfile.Write(files.CA, []byte(reply.Authorities), 0o644); err != nil {
			return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the authorities cannot be kept: %w", err)
		}
	}
	if err := atomicfile.Write(files.Cert, slices.Concat([]byte(reply.Certificate), key), 0o600); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the certificate cannot be kept: %w", err)
	}
	return pair.Leaf, nil
}

// Enrolled says whether the agent with that state directory has a certificate from
// its enrollment. The error is of kind ErrInvalid if that cannot be told.
func Enrolled(stateDir string) (bool, error) {
	_, err := os.Stat(EnrolledFiles(stateDir).Cert)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	}
	return false, cyborg.Errorf(cyborg.ErrInvalid, "the certificate of this host cannot be looked at: %w", err)
}

const (
	// lookRarely is how often an agent looks whether to renew its certificate. It looks
	// at the clock each time, because a machine may sleep. One that is due is tried
	// again as often.
	lookRarely = 5 * time.Minute
	// looks is how often it looks at least between the time when the certificate is
	// due and its end.
	looks = 20
)

// renewCertificate renews the certificate from the enrollment until ctx ends.
func (a *Agent) renewCertificate(ctx context.Context, stateDir string) {
	to := certificateEndpoint(a.config.Host, a.config.Endpoints, a.config.TLS.Enrolling().Transport)
	defer to.close()

	for failing := false; ; {
		pause, err := a.renewIfDue(ctx, to, stateDir)
		if ctx.Err() != nil {
			return
		}

		// Only the first failure is logged: the conductors may be away for hours.
		if err != nil && !failing {
			a.log.WarnContext(ctx, "the certificate of this host is due and cannot be renewed; the agent keeps trying",
				"error", err, "hint", cyborg.AsError(err).Hint)
		}
		failing = err != nil

		if clock.Sleep(ctx, spread(pause)) != nil {
			return
		}
	}
}

// renewIfDue renews the certificate if two thirds of its life are over. It returns
// after which time to look again.
func (a *Agent) renewIfDue(ctx context.Context, to *endpoint, stateDir string) (time.Duration, error) {
	held, err := tls.LoadX509KeyPair(EnrolledFiles(stateDir).Cert, EnrolledFiles(stateDir).Key)
	if err != nil {
		return lookRarely, cyborg.Errorf(cyborg.ErrInvalid, "the certificate of this host cannot be read: %w", err)
	}

	pause := min(lookRarely, held.Leaf.NotAfter.Sub(pki.RenewAt(held.Leaf))/looks)
	if a.deps.Clock().Before(pki.RenewAt(held.Leaf)) {
		return pause, nil
	}

	request, key, err := pki.NewRequest()
	if err != nil {
		return pause, err
	}

	var reply agentapi.CertificateReply
	if err := to.post(ctx, agentapi.RenewPath, agentapi.RenewRequest{Request: request}, &reply); err != nil {
		return pause, err
	}

	renewed, err := keepCertificate(stateDir, reply, key, whois.Identity{TrustDomain: a.config.TrustDomain, Role: whois.Host, Name: a.config.Host})
	if err == nil {
		a.log.InfoContext(ctx, "the certificate of this host was renewed", "until", renewed.NotAfter.UTC())
	}
	return pause, err
}
