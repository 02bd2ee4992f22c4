package temporalclient

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// reload has the client read certificates and authorities again when their files
// have changed: each new connection uses those of its moment. The SDK would read
// them once. The error is of kind ErrInvalid.
func reload(options *client.ConnectionOptions, from *envconfig.ClientConfigTLS, log *slog.Logger) error {
	if options.TLS == nil || from == nil || from.ClientCertPath == "" && from.ServerCACertPath == "" {
		return nil
	}

	files, err := pki.NewClient(pki.ClientOptions{
		Files:      pki.Files{Cert: from.ClientCertPath, Key: from.ClientKeyPath, CA: from.ServerCACertPath},
		MinVersion: tls.VersionTLS12, // a Temporal need not be ours
		Log:        log,
	})
	if err != nil {
		return err
	}

	creds := &reloading{
		TransportCredentials: credentials.NewTLS(options.TLS.Clone()),
		base:                 options.TLS, files: files, hasCert: from.ClientCertPath != "", hasCA: from.ServerCACertPath != "",
	}
	options.DialOptions = append(options.DialOptions, grpc.WithTransportCredentials(creds))
	return nil
}

// hasCertificate says whether a client shows a certificate.
func hasCertificate(from *envconfig.ClientConfigTLS) bool {
	return from != nil && !from.Disabled && (from.ClientCertPath != "" || len(from.ClientCertData) > 0)
}

// WarnOfIdentity logs where the certificate for Temporal says that this process is
// another one than it is.
func WarnOfIdentity(ctx context.Context, c config.Temporal, own identity.Identity, log *slog.Logger) {
	if err := CheckIdentity(c, own); err != nil {
		log.WarnContext(ctx, "a Temporal that goes by identities will refuse this process", "error", err, "hint", cyborg.AsError(err).Hint)
	}
}

// CheckIdentity returns an error of kind ErrInvalid where the certificate for
// Temporal says that this process is another one than it is. Our Temporal refuses
// each of its calls then, and says why. Another one may take them, and nothing shows
// before which one it is: so the error stops no process.
func CheckIdentity(c config.Temporal, own identity.Identity) error {
	profile, err := profileOf(c, nil)
	if err != nil || !hasCertificate(profile.TLS) {
		return err
	}

	from := "temporal.tls.cert " + profile.TLS.ClientCertPath
	if profile.TLS.ClientCertPath == "" {
		from = "the certificate in TEMPORAL_TLS_CLIENT_CERT_DATA"
	}

	pair, err := certificateOf(profile.TLS)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInvalid, "%s cannot be used: %w", from, err)
	}
	return identity.CheckOwn(from, pair.Leaf, own)
}

// certificateOf reads the certificate that a client shows.
func certificateOf(from *envconfig.ClientConfigTLS) (tls.Certificate, error) {
	if from.ClientCertPath != "" {
		return tls.LoadX509KeyPair(from.ClientCertPath, from.ClientKeyPath)
	}
	return tls.X509KeyPair(from.ClientCertData, from.ClientKeyData)
}

// reloading are the credentials of a client whose certificates are in files. All
// but the handshake is that of the configuration at the start.
type reloading struct {
	credentials.TransportCredentials

	base           *tls.Config
	files          *pki.Client
	hasCert, hasCA bool // what the files have; the rest is in base
}

// ClientHandshake makes a connection with the certificates of now.
func (r *reloading) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, current := r.base.Clone(), r.files.Config()
	config.MinVersion = max(config.MinVersion, current.MinVersion)
	if r.hasCert {
		config.Certificates, config.GetClientCertificate = nil, current.GetClientCertificate
	}
	if r.hasCA {
		config.RootCAs = current.RootCAs
	}

	verify := config.VerifyConnection
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if err := requireServer(state); err != nil || verify == nil {
			return err
		}
		return verify(state)
	}

	return credentials.NewTLS(config).ClientHandshake(ctx, authority, raw)
}

// requireServer refuses a Temporal whose certificate says that it is something
// else than a server: the certificate of a host, which one authority with that of
// Temporal has signed, would otherwise be good enough to hand steps to other hosts.
// A certificate that says nothing about roles is for a Temporal that is not ours.
func requireServer(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return nil // the verification refuses that
	}

	for _, uri := range state.PeerCertificates[0].URIs {
		who, err := identity.Parse(uri.String())
		if err == nil && who.Role != identity.Server {
			return cyborg.Errorf(cyborg.ErrForbidden, "what answers as Temporal has the certificate of %s, and that is not a server's", who).
				WithHint("Give Temporal a certificate with the role server, and find out who has used this one.")
		}
	}
	return nil
}

// Clone returns the same credentials: nothing in them changes.
func (r *reloading) Clone() credentials.TransportCredentials { return r }
