// Package temporalauth makes a Temporal server obey only Cyborg: it says who a
// client is by the identity in its certificate, refuses every call that the
// table in methods.go does not allow, and lets a host answer only the steps that
// this host has polled.
//
// A host's agent may poll its own queue, answer and heartbeat what it polled,
// and nothing more. A server may do what the API and the conductor need. People
// with the role admin may read and end runs, those with the role reader may
// read. Nobody may start an activity outside a workflow.
//
// The standalone's engine uses the package. Whoever runs a Temporal server of
// their own can compile it into that one: its listener must demand and verify
// client certificates (RequireAndVerifyClientCert), and Guard.NewServer takes the
// place of temporal.NewServer. testdata/server/main.go is such a server. The module
// of yours takes the versions of deploy/standalone/go.mod, and Cyborg from a checkout:
//
//	require github.com/cyborg-project/cyborg/deploy/standalone v0.0.0
//	replace github.com/cyborg-project/cyborg => CHECKOUT
//	replace github.com/cyborg-project/cyborg/deploy/standalone => CHECKOUT/deploy/standalone
//
// What stays open then is what runs inside that
// server, and its database: who writes there writes what every host believes.
//
// Of Cyborg it imports internal/identity and the root package, never the engine.
package temporalauth

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.temporal.io/server/common/authorization"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
)

// SealKeyLength is the length of Config.SealKey in bytes.
const SealKeyLength = 32

// Config says what a Guard protects. All fields but Self, Refuse and Log are
// required.
type Config struct {
	// TrustDomain is that of the identities that count; see internal/identity.
	TrustDomain string
	// Namespace is the only namespace in which anybody but Self may do anything.
	Namespace string
	// SealKey is the key by which the tokens of steps are sealed; SealKeyLength
	// bytes. A step that was polled before a restart can be answered after it only
	// if the key is the same.
	SealKey []byte
	// Self is the SHA-256 checksum of the certificate, in DER, that Temporal's own
	// parts show to the frontend. They may do everything. Zero is nobody.
	Self [sha256.Size]byte
	// Refuse is asked about the verified certificate of the client at each call, and
	// once more before a step is handed out; nil refuses none. It must answer at once.
	Refuse func(*x509.Certificate) error
	// Log gets a line for what is refused, at most one a minute for each identity
	// and call; nil for none.
	Log *slog.Logger
}

// Guard decides which calls a Temporal server takes. Its methods may be called
// from several goroutines.
type Guard struct {
	config  Config
	allowed map[string]rule
	log     *slog.Logger
	polls   counts // of hosts, that wait for a step
	calls   counts // of all but servers
	paces   paces  // of the heartbeats of hosts

	mu        sync.Mutex
	listeners []*connections        // of the frontend
	logged    map[refusal]time.Time // when each refusal was logged last
}

// refusal is what is logged once a minute.
type refusal struct{ who, method string }

// New makes a guard. The error is of kind ErrInvalid.
func New(config Config) (*Guard, error) {
	if err := identity.CheckTrustDomain(config.TrustDomain); err != nil {
		return nil, err
	}
	if config.Namespace == "" {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the guard of Temporal needs the name of a namespace")
	}
	if len(config.SealKey) != SealKeyLength {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the key that seals tasks has %d bytes, and must have %d", len(config.SealKey), SealKeyLength)
	}

	return &Guard{
		config: config, allowed: rules(), log: cmp.Or(config.Log, slog.New(slog.DiscardHandler)),
		logged: map[refusal]time.Time{},
	}, nil
}

// caller is who makes a call. The zero value is nobody.
type caller struct {
	identity.Identity

	self bool  // a part of this Temporal server
	err  error // why the caller is nobody

	certificate *x509.Certificate // nil for nobody
}

// countedAs returns for whom the caller's connections and calls count. All who are
// nobody count together: who has a revoked certificate of a host keeps none of that
// host's from its agent.
func (c caller) countedAs() identity.Identity {
	if c.err != nil {
		return identity.Identity{}
	}
	return c.Identity
}

// String names the caller in a refusal.
func (c caller) String() string {
	switch {
	case c.self:
		return "Temporal itself"
	case c.Role == "":
		return "nobody"
	}
	return c.Identity.String()
}

// claimMapper says who a caller is. Only a verified certificate counts: no
// header does.
type claimMapper struct{ guard *Guard }

// GetClaims returns the caller as the extension of the claims. A caller who is
// nobody has claims, too: Authorize then says what is wrong.
func (m claimMapper) GetClaims(info *authorization.AuthInfo) (*authorization.Claims, error) {
	who := m.guard.callerOf(info)
	return &authorization.Claims{Subject: who.String(), Extensions: who, AuthType: "mtls"}, nil
}

// AuthInfoRequired has Temporal ask GetClaims about every call, also about one
// without a certificate.
func (claimMapper) AuthInfoRequired() bool { return false }

// callerOf returns whom the verified certificate of a connection names.
func (g *Guard) callerOf(info *authorization.AuthInfo) caller {
	var certificate *x509.Certificate
	if info != nil {
		certificate = authorization.PeerCert(info.TLSConnection)
	}
	if certificate == nil {
		return caller{err: cyborg.Errorf(cyborg.ErrUnauthenticated, "the client shows no certificate that this server trusts")}
	}

	if sha256.Sum256(certificate.Raw) == g.config.Self {
		return caller{self: true}
	}

	who, err := identity.OfCertificate(certificate, g.config.TrustDomain)
	if err == nil {
		err = g.refuse(certificate)
	}
	return caller{Identity: who, err: err, certificate: certificate}
}

// CloseRefused closes the connections of clients whose certificate Config.Refuse has
// come to refuse, and so ends their polls: no step is handed to a host that could not
// answer it, and none of what the host may have open is kept from its agent once it is
// enrolled anew.
func (g *Guard) CloseRefused() {
	g.mu.Lock()
	listeners := slices.Clone(g.listeners)
	g.mu.Unlock()

	for _, l := range listeners {
		l.closeRefused(g.refuse)
	}
}

// refuse returns why a certificate counts no more; nil where it counts.
func (g *Guard) refuse(certificate *x509.Certificate) error {
	if g.config.Refuse == nil || certificate == nil {
		return nil
	}
	return g.config.Refuse(certificate)
}
