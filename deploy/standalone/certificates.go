package main

import (
	"net"
	"os"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/statedir"
)

const (
	// certificatesDir is the directory in the state directory with the authority of
	// the embedded Temporal and its clients. cyborg ca issue makes further
	// certificates there.
	certificatesDir = "certificates"
	// temporalName and adminName are the names in the certificate of the embedded
	// Temporal, and in that of the operator.
	temporalName, adminName = "temporal", "operator"
)

// makeCertificates returns where the embedded Temporal's certificate, its key and
// the authority of its clients are. At the first start it makes an authority in
// the state directory, the certificate of Temporal and one for the operator's
// command line. They are valid as long as the authority, whose key is beside
// them: whoever could steal one could make another.
func makeCertificates(c *config.Config, state *statedir.Dir) (pki.Files, error) {
	authority, err := pki.Make(state.Join(certificatesDir))
	if err != nil {
		return pki.Files{}, err
	}

	admin := identity.Identity{TrustDomain: c.Identity.TrustDomain, Role: identity.Admin, Name: adminName}
	if _, err := authority.Hold(state.Join(certificatesDir, "admin.pem"), pki.Leaf{Identity: admin, Valid: pki.AuthorityLife}); err != nil {
		return pki.Files{}, err
	}

	leaf := pki.Leaf{
		Identity: identity.Identity{TrustDomain: c.Identity.TrustDomain, Role: identity.Server, Name: temporalName}, Valid: pki.AuthorityLife,
		DNS: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	if name, err := os.Hostname(); err == nil && cyborg.CheckHostName(name) == nil && name != "localhost" {
		leaf.DNS = append(leaf.DNS, name)
	}

	held, err := authority.Hold(state.Join(certificatesDir, "temporal.pem"), leaf)
	if err != nil {
		return pki.Files{}, err
	}
	return held.Files(), nil
}
