package pki

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/atomicfile"
)

// lookAgain is how often the holder of a certificate looks whether it is time to
// renew it. It looks at the clock each time, because a machine may sleep.
const lookAgain = 5 * time.Minute

// Held is a certificate that a process which has the authority holds for itself,
// with its key in one file.
type Held struct {
	authority *Authority
	path      string
	leaf      Leaf

	mu sync.Mutex // guards the file
}

// Hold returns the certificate in the file. It makes a new one where there is none,
// or one that the authority has not signed, that holds something else than the leaf
// or that must be renewed. The key stays the same as long as the authority does.
// Run keeps the certificate valid. Where one of the authority is there and cannot be
// renewed now, because a clock is wrong for one, Run says so: it may do, and another
// clock may be right.
func (a *Authority) Hold(path string, leaf Leaf) (*Held, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the file of a certificate: %w", err)
	}

	h := &Held{authority: a, path: path, leaf: leaf}
	if err := h.Renew(time.Now()); err != nil {
		if text, unread := os.ReadFile(path); unread != nil || h.own(text) == nil {
			return nil, err
		}
	}
	return h, nil
}

// Files returns where the certificate, its key and its authority are, for Server
// and NewClient.
func (h *Held) Files() Files {
	return Files{Cert: h.path, Key: h.path, CA: h.authority.CertificateFile()}
}

// Renew replaces the certificate unless it will do for now.
func (h *Held) Renew(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()

	// What cannot be read now may be readable again: only what is missing or broken is
	// replaced.
	text, err := os.ReadFile(h.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the certificate of %s cannot be read, and stays as it is: %w", h.leaf.Identity, err).
			WithHint("Let this user read and write the file.")
	}
	there := h.own(text)
	if there != nil && h.good(there.Leaf, now) {
		return nil
	}
	if err := h.authority.CheckTime(now); err != nil {
		return err
	}

	leaf := h.leaf
	leaf.Start = now
	certificate, key, err := h.issue(there, leaf)
	if err != nil {
		return err
	}

	// One file is replaced at once, so that nobody ever reads the certificate with
	// another key.
	if err := atomicfile.Write(h.path, slices.Concat(certificate, key), 0o600); err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the certificate of %s cannot be kept: %w", leaf.Identity, err)
	}
	return nil
}

// own returns the certificate in the text with its key; nil where there is none, or
// where somebody has replaced the authority: then nothing of the old one is to count.
func (h *Held) own(text []byte) *tls.Certificate {
	pair, err := tls.X509KeyPair(text, text)
	if err != nil || pair.Leaf == nil || pair.Leaf.CheckSignatureFrom(h.authority.certificate) != nil {
		return nil
	}
	return &pair
}

// issue makes a certificate for the key that is there, from which others may have
// derived something, or else for a new one.
func (h *Held) issue(there *tls.Certificate, leaf Leaf) (certificate, key []byte, err error) {
	if there == nil {
		return h.authority.IssuePair(leaf)
	}

	if key, err = encodeKey(there.PrivateKey); err != nil {
		return nil, nil, err
	}
	issued, err := h.authority.Issue(there.Leaf.PublicKey, leaf)
	if err != nil {
		return nil, nil, err
	}
	return EncodeCertificate(issued), key, nil
}

// good says whether a certificate of the authority is the one that is wanted, and
// not to be renewed yet.
func (h *Held) good(certificate *x509.Certificate, now time.Time) bool {
	if now.Before(certificate.NotBefore) || !now.Before(RenewAt(certificate)) {
		return false
	}
	return h.asked(certificate)
}

// asked says whether the certificate holds what the leaf asks for.
func (h *Held) asked(certificate *x509.Certificate) bool {
	sameIP := func(a, b net.IP) bool { return a.Equal(b) }
	return len(certificate.URIs) == 1 && certificate.URIs[0].String() == h.leaf.Identity.String() &&
		bytes.Equal(certificate.AuthorityKeyId, h.authority.certificate.SubjectKeyId) &&
		slices.Equal(certificate.DNSNames, h.leaf.DNS) && slices.EqualFunc(certificate.IPAddresses, h.leaf.IPs, sameIP)
}

// Run renews the certificate until ctx ends. What goes wrong is in the log, and
// tried again.
func (h *Held) Run(ctx context.Context, log *slog.Logger) {
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		if err := h.Renew(time.Now()); err != nil {
			log.ErrorContext(ctx, "a certificate cannot be renewed", "identity", h.leaf.Identity.String(), "error", err, "hint", cyborg.AsError(err).Hint)
		}

		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
