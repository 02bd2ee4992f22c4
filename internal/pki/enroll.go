package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
)

// enrollProtocol is what a client offers as a protocol (ALPN) that wants to enroll,
// or to renew its certificate. A server that enrolls lets it in without a
// certificate, or with an expired one, and looks at that itself. The protocol
// that both then speak is HTTP/1.1.
const enrollProtocol = "cyborg-enroll"

// pinPrefix is how a pin begins: the hash that it is of.
const pinPrefix = "sha256:"

// Pin returns what tells the key of an authority from all others: the SHA-256 of
// its SubjectPublicKeyInfo (RFC 7469).
func Pin(certificate *x509.Certificate) string {
	sum := sha256.Sum256(certificate.RawSubjectPublicKeyInfo)
	return pinPrefix + hex.EncodeToString(sum[:])
}

// CheckPin returns an error of kind ErrInvalid unless the text can be a pin.
func CheckPin(pin string) error {
	text, ok := strings.CutPrefix(pin, pinPrefix)
	sum, err := hex.DecodeString(text)
	if !ok || err != nil || len(sum) != sha256.Size || strings.ToLower(text) != text {
		return cyborg.Errorf(cyborg.ErrInvalid, "%q is no pin: it begins with %s, and %d hexadecimal digits follow", pin, pinPrefix, 2*sha256.Size)
	}
	return nil
}

// CertificateOf returns the certificate of the authority in the directory, for
// those who do not sign. The errors are as those of Open.
func CertificateOf(dir string) (*x509.Certificate, error) {
	all, err := readAuthority(dir)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// serialPrefix is how the serial number in the subject of an enrolled host's
// certificate begins. Others have none, or one of another meaning.
const serialPrefix = "cyborg-enrollment-"

// Enrollment returns the number of the enrollment that a certificate is from; 0 for
// one that somebody made by hand, or another authority.
func Enrollment(certificate *x509.Certificate) int64 {
	text, ok := strings.CutPrefix(certificate.Subject.SerialNumber, serialPrefix)
	number, err := strconv.ParseInt(text, 10, 64)
	if !ok || err != nil || number < 0 {
		return 0
	}
	return number
}

// NewRequest makes a private key and a certificate request for it. The request
// says nothing but the key; it is in DER, the key in PEM format.
func NewRequest() (request, key []byte, err error) {
	signer, key, err := GenerateKey()
	if err != nil {
		return nil, nil, err
	}

	request, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, signer)
	if err != nil {
		return nil, nil, cyborg.Errorf(cyborg.ErrInternal, "a certificate request cannot be made: %w", err)
	}
	return request, key, nil
}

// keyOfRequest returns the key of a certificate request in DER, whose signature
// proves that whoever asks has the private key. The error is of kind ErrInvalid, also
// for a key that no certificate may have.
func keyOfRequest(der []byte) (crypto.PublicKey, error) {
	request, err := x509.ParseCertificateRequest(der)
	if err == nil {
		// First the key: a signature by one of many thousand bits takes long to check,
		// and anybody can ask.
		if err := checkPublicKey(request.PublicKey); err != nil {
			return nil, err
		}
		err = request.CheckSignature()
	}
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the certificate request cannot be used: %w", err)
	}
	return request.PublicKey, nil
}

// CheckRequest returns the error that IssueRequest would return because of the
// request itself.
func CheckRequest(der []byte) error {
	_, err := keyOfRequest(der)
	return err
}

// Signed returns an error of kind ErrInvalid unless this authority has signed the
// certificate, or one that it replaces.
func (a *Authority) Signed(certificate *x509.Certificate) error {
	for _, one := range a.counting() {
		if certificate.CheckSignatureFrom(one) == nil {
			return nil
		}
	}
	return cyborg.Errorf(cyborg.ErrInvalid, "the certificate is not from the authority in %s", a.dir)
}

// TrustedBy returns an error of kind ErrInvalid unless the pool trusts this
// authority.
func (a *Authority) TrustedBy(pool *x509.CertPool) error {
	_, err := a.certificate.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "the authority in %s is not among those that are trusted: %w", a.dir, err)
	}
	return nil
}

// Bundle returns the certificates of the authority in PEM format, and those of
// the ones that it replaces, which count as well.
func (a *Authority) Bundle() []byte {
	var text []byte
	for _, one := range a.counting() {
		text = append(text, EncodeCertificate(one)...)
	}
	return text
}

// counting returns the certificate of the authority and of those that it
// replaces.
func (a *Authority) counting() []*x509.Certificate {
	return append([]*x509.Certificate{a.certificate}, a.replaced...)
}

// VerifyForRenewal returns an error of kind ErrUnauthenticated unless the
// certificate of a client is good for being renewed at the time now: this
// authority has signed it, or one that it replaces, and it ended no longer than
// late ago. This is the only place where an expired certificate counts.
func (a *Authority) VerifyForRenewal(certificate *x509.Certificate, now time.Time, late time.Duration) error {
	if now.After(certificate.NotAfter.Add(late)) {
		return cyborg.Errorf(cyborg.ErrUnauthenticated, "the certificate ended at %s, and can be renewed for %s after that",
			certificate.NotAfter.UTC().Format(time.RFC3339), late).WithHint("Enroll the host again: cyborg host enroll.")
	}

	if now.Before(certificate.NotBefore) {
		return cyborg.Errorf(cyborg.ErrUnauthenticated, "the certificate is not valid yet: it begins at %s", certificate.NotBefore.UTC().Format(time.RFC3339)).
			WithHint("Look at the clocks.")
	}

	if err := a.Signed(certificate); err != nil || !slices.Contains(certificate.ExtKeyUsage, x509.ExtKeyUsageClientAuth) {
		return cyborg.Errorf(cyborg.ErrUnauthenticated, "the certificate is none that this server's authority has signed for a client")
	}
	return nil
}

// enrolling returns the configuration for a client that wants to enroll. Nobody
// asks who it is before it has said what it wants, and nothing but that may be
// served to it: it has no verified certificate. The server also shows the
// certificates of the authority, where a client finds the one whose pin it has.
func enrolling(config *tls.Config, pair *reloaded[*tls.Certificate], dir string) *tls.Config {
	config = config.Clone()
	config.ClientAuth, config.VerifyConnection, config.ClientCAs = tls.RequestClientCert, nil, nil
	config.NextProtos = []string{"http/1.1"}

	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		certificate, err := pair.current()
		if err != nil {
			return nil, err
		}
		authorities, err := readAuthority(dir)
		if err != nil {
			return nil, err
		}

		chained := *certificate
		chained.Certificate = slices.Clone(certificate.Certificate)
		for _, one := range authorities {
			chained.Certificate = append(chained.Certificate, one.Raw)
		}
		return &chained, nil
	}
	return config
}

// Enrolling returns a client with the same certificate and authorities that tells
// a server that it wants to renew the certificate, which may have expired.
func (c *Client) Enrolling() *Client {
	enrolling := *c
	enrolling.enrolls = true
	return &enrolling
}

// PinnedClient returns the configuration of a client that has no certificate yet,
// and trusts the authority with this pin, for the server with this name or
// address. The server must show the authority's certificate. The error is of kind
// ErrInvalid.
func PinnedClient(pin, serverName, trustDomain string) (*tls.Config, error) {
	if err := CheckPin(pin); err != nil {
		return nil, err
	}

	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{enrollProtocol, "http/1.1"},
		// What follows verifies the chain, with the authority that the pin names as its
		// only root. No request is sent before.
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection does it
		VerifyConnection: func(state tls.ConnectionState) error {
			return verifyPinned(state, pin, serverName, trustDomain)
		},
	}, nil
}

// verifyPinned verifies a server of which only the authority's pin is known.
func verifyPinned(state tls.ConnectionState, pin, serverName, trustDomain string) error {
	roots, found := x509.NewCertPool(), false
	for _, one := range state.PeerCertificates[1:] {
		if one.IsCA && Pin(one) == pin {
			roots.AddCert(one)
			found = true
		}
	}
	if !found {
		return cyborg.Errorf(cyborg.ErrForbidden, "the server shows no authority with the pin %s", pin).
			WithHint("Compare the pin with that of cyborg host enroll, and the server's address. If both are right, somebody is in between.")
	}

	chains, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: serverName})
	if err != nil {
		return cyborg.Errorf(cyborg.ErrForbidden, "the server's certificate is not good: %w", err)
	}

	verified := state
	verified.VerifiedChains = chains
	return checkServer(&verified, trustDomain)
}

// checkServer refuses the other end if it names an identity that is not that of a
// server.
func checkServer(state *tls.ConnectionState, trustDomain string) error {
	if len(state.PeerCertificates) == 0 || len(state.PeerCertificates[0].URIs) == 0 {
		return nil
	}

	who, err := identity.OfConnection(state, trustDomain)
	if err != nil {
		return err
	}
	if who.Role != identity.Server {
		return cyborg.Errorf(cyborg.ErrForbidden, "the certificate of the other end is that of %s, and not of a server", who)
	}
	return nil
}
