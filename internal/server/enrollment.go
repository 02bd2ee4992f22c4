package server

import (
	"crypto/tls"
	"net"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/agents"
	v1 "github.com/cyborg-project/cyborg/api/v1"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/doctor"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// CheckEnrollment returns an error of kind ErrInvalid if hosts are to enroll at the
// agent endpoint, and could not use the certificates that they would get.
func CheckEnrollment(c *config.Config) error {
	if c.Identity.Authority == "" {
		return nil
	}

	authority, err := pki.Open(c.Identity.Authority)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "identity.authority: %w", err)
	}

	files := c.AgentEndpoint.TLS.Files()
	if files.Cert == "" || files.CA == "" {
		return cyborg.Errorf(cyborg.ErrInvalid, "identity.authority is set, and hosts can enroll only with certificates at the agent endpoint").
			WithHint("Set all of agent_endpoint.tls; its client_ca is %s.", authority.CertificateFile())
	}

	trusted, err := pki.ReadPool(files.CA)
	if err == nil {
		err = authority.TrustedBy(trusted)
	}
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "agent_endpoint.tls.client_ca: %w", err).
			WithHint("Add the authority of identity.authority to it, %s.", authority.CertificateFile())
	}

	// An agent that enrolls knows the authority only.
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err == nil {
		err = authority.Signed(pair.Leaf)
	}
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "agent_endpoint.tls.cert: %w", err).
			WithHint("Make one with: cyborg ca issue server NAME --dir %s --dns NAME", c.Identity.Authority)
	}
	return nil
}

// checkEnrollment is the check of the enrollment that the start makes, for config check
// and the doctor, which open no port.
func checkEnrollment(_ *cobra.Command, c *config.Config) error {
	if !c.Server.Has(config.RoleConductor) {
		return nil
	}
	return CheckEnrollment(c)
}

// examineEnrollment finds what the start would refuse, where hosts are to enroll.
func examineEnrollment(f *doctor.Findings, c *config.Config) {
	const check = "enrollment"
	if err := checkEnrollment(nil, c); err != nil {
		f.Error(check, err, "Make an authority with cyborg ca init, and name its directory in identity.authority.")
	} else if c.Identity.Authority != "" && c.Server.Has(config.RoleConductor) {
		f.OKf(check, "hosts get certificates of the authority in %s", c.Identity.Authority)
	}
}

// enrollment returns how agents get certificates at the agent endpoint; nil if they
// get none.
func enrollment(c *config.Config) *agents.Enrollment {
	if c.Identity.Authority == "" || c.AgentEndpoint.TLS.ClientCA == "" {
		return nil
	}
	return &agents.Enrollment{Authority: c.Identity.Authority, Life: c.Identity.CertificateLife, Late: c.Identity.RenewLate}
}

// invitation returns what the API tells those who invite a host.
func invitation(c *config.Config) v1.Invitation {
	return v1.Invitation{
		Pin: func() (string, error) {
			if c.Identity.Authority == "" {
				return "", cyborg.Errorf(cyborg.ErrNotFound, "no host can enroll here: this server knows no authority").
					WithHint("Set identity.authority, or give the host a certificate of your own.")
			}

			certificate, err := pki.CertificateOf(c.Identity.Authority)
			if err != nil {
				return "", cyborg.Errorf(cyborg.ErrUnavailable, "the authority of identity.authority cannot be used: %w", err)
			}
			return pki.Pin(certificate), nil
		},
		Server: endpointURL(c),
	}
}

// endpointURL returns a URL of the agent endpoint, by a name in its certificate;
// empty if this process does not know one.
func endpointURL(c *config.Config) string {
	_, port, err := net.SplitHostPort(c.AgentEndpoint.Listen)
	names := c.AgentEndpoint.TLS.Names()
	if err != nil || port == "0" || len(names) == 0 {
		return ""
	}

	name := names[0]
	for _, one := range names { // a name that others can resolve
		if strings.Contains(one, ".") && !net.ParseIP(one).IsLoopback() {
			name = one
			break
		}
	}
	return "https://" + net.JoinHostPort(name, port)
}
