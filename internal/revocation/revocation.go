// Package revocation knows which certificates of hosts were revoked, so that
// listeners can ask at each handshake and each request. What it knows is a few
// seconds old at most while the records answer, and as old as their last answer
// while they do not. It also keeps it in a file, because the records may be
// restored from a backup that is older than a revocation: what either of them
// knows counts, and the records get back what they have lost.
//
// Of Cyborg it imports only the root package, internal/atomicfile,
// internal/identity and internal/pki: what the records are, its user says.
package revocation

import (
	"context"
	"crypto/x509"
	"log/slog"
	"maps"
	"slices"
	"sync"
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

// Records are where hosts are revoked.
type Records interface {
	// RevokedHosts returns, by host, through which enrollment its certificates were
	// revoked.
	RevokedHosts(ctx context.Context) (map[string]int64, error)
	// RestoreRevocations records again what RevokedHosts does not return any more.
	RestoreRevocations(ctx context.Context, lost map[string]int64) error
}

// List is what was revoked. It may be used concurrently.
type List struct {
	trustDomain string
	file        File
	log         *slog.Logger
	revoked     atomic.Pointer[map[string]int64] // nil before the first look

	loading    sync.Mutex // guards the fields below
	grown      func()     // see OnRevocation; nil for none
	unrestored bool       // the last try has failed
	unkept     int        // how many tries in a row have failed
}

// New returns a list that is not known yet, and is kept in a file, unless its name
// is empty.
func New(trustDomain string, file File, log *slog.Logger) *List {
	return &List{trustDomain: trustDomain, file: file, log: log}
}

// OnRevocation has Load call a function after each look that has found something new.
// A listener then closes the connections that Check refuses.
func (l *List) OnRevocation(grown func()) {
	l.loading.Lock()
	defer l.loading.Unlock()
	l.grown = grown
}

// Load looks at the records. An error means that they, or the file before the first
// look, cannot be read. What cannot be written is tried again at the next look.
func (l *List) Load(ctx context.Context, records Records) error {
	looking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	l.loading.Lock()
	defer l.loading.Unlock()
	before := l.revoked.Load()

	// The file comes before the records: what the records do not have then, they have
	// lost. It is read each time, because it may be removed or put back, too.
	kept, err := l.file.Read()
	if err != nil && before == nil {
		return err
	}

	recorded, err := records.RevokedHosts(looking)
	if err != nil {
		return err
	}

	known := union(kept, recorded)
	if before != nil {
		known = union(known, *before)
	}
	l.revoked.Store(&known)
	if l.grown != nil && before != nil && len(beyond(known, *before)) > 0 {
		l.grown()
	}

	if lost := beyond(known, recorded); len(lost) > 0 {
		err := records.RestoreRevocations(looking, lost)
		switch {
		case err == nil:
			l.log.WarnContext(ctx, "the records had lost revocations, and have them again", slog.Any("hosts", slices.Sorted(maps.Keys(lost))))
		case !l.unrestored && ctx.Err() == nil:
			l.log.WarnContext(ctx, "revocations that the records have lost cannot be recorded again; they stay in force here", slog.String("error", err.Error()))
		}
		l.unrestored = err != nil
	}

	if len(beyond(known, kept)) > 0 {
		err = l.file.Add(known)
	}
	// Once, another process may have written at the same moment.
	if err == nil {
		l.unkept = 0
	} else if l.unkept++; l.unkept == 2 {
		l.log.WarnContext(ctx, "what was revoked cannot be kept in a file; a restore of the records would forget it", slog.String("error", err.Error()))
	}
	return nil
}

// union returns what one or the other knows.
func union(one, other map[string]int64) map[string]int64 {
	both := map[string]int64{}
	maps.Copy(both, one)
	maps.Copy(both, beyond(other, one))
	return both
}

// beyond returns what the other does not know of the one.
func beyond(one, other map[string]int64) map[string]int64 {
	more := map[string]int64{}
	for host, through := range one {
		if known, found := other[host]; !found || known < through {
			more[host] = through
		}
	}
	return more
}

// Follow looks at the records again and again, until ctx ends. It returns nil.
func (l *List) Follow(ctx context.Context, records Records) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()

	for failing := false; ; {
		err := l.Load(ctx, records)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !failing {
			l.log.WarnContext(ctx, "what was revoked cannot be read; what is known stays in force", slog.String("error", err.Error()))
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
