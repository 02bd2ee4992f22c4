package main

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/server"
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
// them: whoever could steal one could make another. The caller keeps them valid
// while Temporal runs.
func makeCertificates(c *config.Config, state *statedir.Dir) (files pki.Files, held certificates, err error) {
	authority, err := pki.Make(state.Join(certificatesDir))
	if err != nil {
		return files, nil, err
	}

	admin := identity.Identity{TrustDomain: c.Identity.TrustDomain, Role: identity.Admin, Name: adminName}
	operator, err := authority.Hold(state.Join(certificatesDir, "admin.pem"), pki.Leaf{Identity: admin, Valid: pki.AuthorityLife})
	if err != nil {
		return files, nil, err
	}

	leaf := pki.Leaf{
		Identity: identity.Identity{TrustDomain: c.Identity.TrustDomain, Role: identity.Server, Name: temporalName}, Valid: pki.AuthorityLife,
		DNS: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	if name, err := os.Hostname(); err == nil && cyborg.CheckHostName(name) == nil && name != "localhost" {
		leaf.DNS = append(leaf.DNS, name)
	}

	temporal, err := authority.Hold(state.Join(certificatesDir, "temporal.pem"), leaf)
	if err != nil {
		return files, nil, err
	}
	return temporal.Files(), certificates{operator, temporal}, nil
}

// certificates are those that this process holds in files; none where an operator
// does.
type certificates []*pki.Held

// keep renews them until ctx ends.
func (c certificates) keep(ctx context.Context, log *slog.Logger) {
	var running sync.WaitGroup
	for _, one := range c {
		running.Go(func() { one.Run(ctx, log) })
	}
	running.Wait()
	<-ctx.Done() // where it holds none: a part that returns before has failed
}

// chooseAuthority has hosts enroll by the authority in the state directory, if
// nobody has named another one, and the certificates of the agent endpoint are
// from it. What was revoked is kept in the state directory, unless somebody has
// named a file.
func (s *standalone) chooseAuthority(ctx context.Context) error {
	c := s.config
	if !c.Given("identity.revocations") {
		c.Identity.Revocations = s.state.Join(config.RevocationsFile)
	}
	if c.Given("identity.authority") || c.AgentEndpoint.Listen == "" || c.AgentEndpoint.TLS.ClientCA == "" {
		return nil
	}

	if _, err := pki.Make(s.state.Join(certificatesDir)); err != nil {
		return err
	}
	c.Identity.Authority = s.state.Join(certificatesDir)

	if err := server.CheckEnrollment(c); err != nil {
		s.log.InfoContext(ctx, "no host can enroll: the agent endpoint has certificates of another authority than the standalone's own",
			slog.String("error", err.Error()))
		c.Identity.Authority = ""
	}
	return nil
}

// warnOfEnrolledHosts logs where hosts enroll by an authority whose certificates the
// embedded Temporal refuses: they are heard, and take no step. That stops no start,
// because a host may have another certificate for Temporal. clientCA is the file of
// the authorities that Temporal takes.
func warnOfEnrolledHosts(ctx context.Context, c *config.Config, clientCA string, log *slog.Logger) {
	if c.Identity.Authority == "" || c.AgentEndpoint.Listen == "" {
		return
	}

	authority, err := pki.Open(c.Identity.Authority)
	if err != nil {
		return // the check of the enrollment says that
	}

	trusted, err := pki.ReadPool(clientCA)
	if err == nil {
		err = authority.TrustedBy(trusted)
	}
	if err != nil {
		log.WarnContext(ctx, "hosts that enroll will be heard, and take no step: the embedded Temporal does not trust identity.authority",
			slog.String("error", err.Error()),
			slog.String("hint", "Set all of standalone.temporal_tls: a server's certificate of identity.authority, and as client_ca "+authority.CertificateFile()))
	}
}

// checkEnrollment is the check of the enrollment that config check makes, as the start
// does.
func checkEnrollment(cmd *cobra.Command, c *config.Config) error {
	if !c.Given("identity.authority") || !c.Given("agent_endpoint.listen") {
		return nil
	}
	if err := server.CheckEnrollment(c); err != nil {
		return err
	}

	clientCA := c.Standalone.TemporalTLS.ClientCA
	if clientCA == "" {
		clientCA = filepath.Join(c.Standalone.StateDir, certificatesDir, "ca.crt")
	}
	warnOfEnrolledHosts(cmd.Context(), c, clientCA, c.Log.Logger(cmd.ErrOrStderr()))
	return nil
}
