// Package revocation knows which certificates of hosts were revoked, so that
// listeners can ask at each handshake and each request. What it knows is a few
// seconds old at most while the records answer, and as old as their last answer
// while they do not.
//
// Of Cyborg it imports only the root package, internal/identity and
// internal/pki: where it reads the list, whoever makes it says.
package revocation

import (
	"context"
	"crypto/x509"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

const (
	// interval is the time between two looks at the records.
	interval = time.Second
	// patience is how long one look may take.
	patience = 10 * time.Second
)

// ReadFunc returns, by host, through which enrollment its certificates were
// revoked.
type ReadFunc func(ctx context.Context) (map[string]int64, error)

// List is what was revoked. It may be used concurrently.
type List struct {
	trustDomain string
	revoked     atomic.Pointer[map[string]int64] // nil before the first look
}

// New returns a list that is not known yet.
func New(trustDomain string) *List { return &List{trustDomain: trustDomain} }

// Load looks at the records.
func (l *List) Load(ctx context.Context, read ReadFunc) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	revoked, err := read(ctx)
	if err == nil {
		l.revoked.Store(&revoked)
	}
	return err
}

// Follow looks at the records again and again, until ctx ends. It returns nil.
func (l *List) Follow(ctx context.Context, read ReadFunc, log *slog.Logger) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()

	for failing := false; ; {
		err := l.Load(ctx, read)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !failing {
			log.WarnContext(ctx, "what was revoked cannot be read; what is known stays in force", slog.String("error", err.Error()))
		}
		failing = err != nil

		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Check returns an error if the certificate of a client, which was verified, is
// that of a host and was revoked: of kind ErrForbidden, or of kind ErrUnavailable
// before the first look. All other certificates pass.
func (l *List) Check(certificate *x509.Certificate) error {
	who, err := identity.OfCertificate(certificate, l.trustDomain)
	if err != nil || who.Role != identity.Host {
		return nil //nolint:nilerr // it is no host's, which others decide about
	}

	known := l.revoked.Load()
	if known == nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "it is not known yet which certificates were revoked").WithHint("Try again in a moment.")
	}

	if through, revoked := (*known)[who.Name]; revoked && pki.Enrollment(certificate) <= through {
		return cyborg.Errorf(cyborg.ErrForbidden, "the certificate of host %s was revoked", who.Name).
			WithHint("Enroll the host again: cyborg host enroll %s.", who.Name)
	}
	return nil
}
