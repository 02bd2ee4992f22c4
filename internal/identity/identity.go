// Package identity says who somebody is whom a certificate names: the role and
// the name in the certificate's URI, spiffe://<trust domain>/<role>/<name>. It
// reads nothing else of a certificate, neither its common name nor its DNS
// names, so a certificate that was made for something else is nobody here.
//
// The agent endpoint, the API and the embedded Temporal use it. Of Cyborg it
// imports only the root package.
package identity

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// DefaultTrustDomain is the trust domain where nobody has configured another
// one.
const DefaultTrustDomain = "cyborg"

// Role is what an identity is for. It is the first part of the URI's path.
type Role string

// The roles. Those of people are the roles of the API.
const (
	Host   Role = "host"   // the agent of the host with the name
	Server Role = "server" // a Cyborg server, or a part of one: API and conductor
	Admin  Role = "admin"  // a person or a program with the API's role admin, who operates Temporal, too
	Member Role = "member" // a person or a program with the API's role member
	Reader Role = "reader" // a person or a program with the API's role reader
)

// Roles lists all roles.
func Roles() []Role { return []Role{Host, Server, Admin, Member, Reader} }

// Identity is who somebody is. The zero value is nobody.
type Identity struct {
	TrustDomain string
	Role        Role
	Name        string // exactly as in the certificate: upper and lower case differ
}

// String returns the URI of the identity.
func (i Identity) String() string {
	return "spiffe://" + i.TrustDomain + "/" + string(i.Role) + "/" + i.Name
}

// URI returns the identity as a certificate has it.
func (i Identity) URI() *url.URL {
	return &url.URL{Scheme: "spiffe", Host: i.TrustDomain, Path: "/" + string(i.Role) + "/" + i.Name}
}

// maxURI is how many bytes a SPIFFE ID may have (SPIFFE-ID standard, section
// 2.3).
const maxURI = 2048

// Parse reads the URI of an identity. The error is of kind ErrInvalid. The rules
// are those of the SPIFFE-ID standard, sections 2.1 to 2.3: no port, no user, no
// query, no percent-encoding, no empty or relative segment, a trust domain in
// lower case.
func Parse(uri string) (Identity, error) {
	wrong := func(format string, args ...any) (Identity, error) {
		return Identity{}, cyborg.Errorf(cyborg.ErrInvalid, "%q is no identity: "+format,
			append([]any{cyborg.Sanitize(uri, maxShown)}, args...)...).
			WithHint("Write it as spiffe://%s/host/NAME.", DefaultTrustDomain)
	}

	if len(uri) > maxURI {
		return wrong("it has more than %d bytes", maxURI)
	}

	rest, ok := strings.CutPrefix(uri, "spiffe://")
	if !ok {
		return wrong("it does not begin with spiffe://")
	}

	parts := strings.Split(rest, "/")
	if len(parts) != 3 {
		return wrong("it has not the three parts trust domain, role and name")
	}

	i := Identity{TrustDomain: parts[0], Role: Role(parts[1]), Name: parts[2]}
	if err := i.Check(); err != nil {
		return wrong("%w", err)
	}
	return i, nil
}

// maxShown is how many characters of a wrong URI an error shows.
const maxShown = 200

// Check returns an error of kind ErrInvalid unless the identity can stand in a
// certificate.
func (i Identity) Check() error {
	if err := CheckTrustDomain(i.TrustDomain); err != nil {
		return err
	}

	switch i.Role {
	case Host:
		return cyborg.CheckHostName(i.Name)
	case Server, Admin, Member, Reader:
		return checkName(i.Name)
	default:
		return cyborg.Errorf(cyborg.ErrInvalid, "there is no role %q, only host, server, admin, member and reader", cyborg.Sanitize(string(i.Role), maxShown))
	}
}

// maxTrustDomain is how many bytes a trust domain may have (SPIFFE-ID standard,
// section 2.1).
const maxTrustDomain = 255

// CheckTrustDomain returns an error of kind ErrInvalid unless the trust domain
// consists of lower-case letters, digits, dots, hyphens and underscores.
func CheckTrustDomain(domain string) error {
	if domain == "" || len(domain) > maxTrustDomain || strings.Trim(domain, "abcdefghijklmnopqrstuvwxyz0123456789.-_") != "" {
		return cyborg.Errorf(cyborg.ErrInvalid,
			"the trust domain %q must have 1 to %d lower-case letters, digits, dots, hyphens and underscores", cyborg.Sanitize(domain, maxShown), maxTrustDomain)
	}
	return nil
}

// checkName returns an error unless the name can be a segment of the path.
func checkName(name string) error {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_"
	if name == "" || name == "." || name == ".." || strings.Trim(name, allowed) != "" {
		return cyborg.Errorf(cyborg.ErrInvalid, "the name %q must have letters, digits, dots, hyphens and underscores only", cyborg.Sanitize(name, maxShown))
	}
	return nil
}

// OfCertificate returns whom the certificate names. The caller has verified the
// certificate before. The error is of kind ErrForbidden: the certificate names
// nobody, it has more than one URI (X.509-SVID standard, section 2: exactly
// one), or the identity is of another trust domain.
func OfCertificate(certificate *x509.Certificate, trustDomain string) (Identity, error) {
	if len(certificate.URIs) != 1 {
		return Identity{}, cyborg.Errorf(cyborg.ErrForbidden, "the certificate has %d URIs, and an identity is exactly one", len(certificate.URIs)).
			WithHint("Make one with the subject alternative name URI:spiffe://%s/host/NAME, or another role than host.", trustDomain)
	}

	i, err := Parse(certificate.URIs[0].String())
	if err != nil {
		return Identity{}, cyborg.Errorf(cyborg.ErrForbidden, "the certificate names nobody: %w", err)
	}

	if i.TrustDomain != trustDomain {
		return Identity{}, cyborg.Errorf(cyborg.ErrForbidden, "the certificate is of the trust domain %s, and only those of %s count here", i.TrustDomain, trustDomain)
	}
	return i, nil
}

// CheckOwn compares the certificate of a process with what the process is; an
// empty trust domain or name is any. The error is of kind ErrInvalid, and names the
// certificate as the caller does. One that names nobody may be right where the other
// end is not ours, so it is no error.
func CheckOwn(certificate string, of *x509.Certificate, own Identity) error {
	if len(of.URIs) != 1 {
		return nil
	}
	named, err := Parse(of.URIs[0].String())
	if err != nil {
		return nil //nolint:nilerr // it names nobody
	}

	wanted := Identity{TrustDomain: cmp.Or(own.TrustDomain, named.TrustDomain), Role: own.Role, Name: cmp.Or(own.Name, named.Name)}
	if named == wanted {
		return nil
	}
	if own.Name == "" {
		wanted.Name = "NAME"
	}
	wrong := cyborg.Errorf(cyborg.ErrInvalid, "%s is the certificate of %s, and this process needs one of %s", certificate, named, wanted)
	if named.Role == Host && own.Role == Host && named.TrustDomain == wanted.TrustDomain {
		return wrong.WithHint("If this is that host, set agent.host to %s (upper and lower case differ). If it is not, give it a certificate of its own.", named.Name)
	}
	return wrong.WithHint("Give it a certificate of its own. The trust domain is identity.trust_domain.")
}

// OfConnection returns whom the verified certificate of the other end names. The
// error is of kind ErrUnauthenticated where the other end has shown none that an
// authority has signed, else as that of OfCertificate.
func OfConnection(state *tls.ConnectionState, trustDomain string) (Identity, error) {
	if state == nil || len(state.VerifiedChains) == 0 || len(state.VerifiedChains[0]) == 0 {
		return Identity{}, cyborg.Errorf(cyborg.ErrUnauthenticated, "the other end has shown no certificate")
	}
	return OfCertificate(state.VerifiedChains[0][0], trustDomain)
}
