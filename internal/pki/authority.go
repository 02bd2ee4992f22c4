// Package pki makes certificates and uses them: an authority of our own that
// keeps itself in a directory, leaf certificates that name who holds them by an
// identity (internal/identity), and TLS configurations that read certificates
// and authorities again when their files have changed.
//
// It knows no option and no listener. Of Cyborg it imports only the root
// package, internal/identity and internal/atomicfile.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/atomicfile"
	"github.com/cyborg-project/cyborg/internal/identity"
)

const (
	// AuthorityLife is how long an authority's certificate is valid.
	AuthorityLife = 10 * 365 * 24 * time.Hour
	// DefaultLife is how long a leaf is valid where nobody asks for something else.
	DefaultLife = 24 * time.Hour
	// backdate is how long before now a certificate begins to be valid, so that
	// machines whose clocks are late accept it.
	backdate = time.Hour

	// The files of an authority in its directory.
	certificateFile, keyFile = "ca.crt", "ca.key"
)

// Authority signs certificates. It may be used concurrently.
type Authority struct {
	dir         string // empty for a temporary one
	certificate *x509.Certificate
	replaced    []*x509.Certificate // of the authorities that it replaces, which count as well
	key         crypto.Signer
}

// Make returns the authority in the directory. Where there is none, it makes the
// directory and the authority; of two processes that do so at once, both get the
// same one. What a killed process left half done is completed. The error is of
// kind ErrInvalid for an authority that cannot be used, which stays as it is.
func Make(dir string) (*Authority, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the directory of the authority: %w", err)
	}

	// Only the directory itself is closed to others: those above it may be for
	// everybody, such as /etc/cyborg.
	err = os.MkdirAll(filepath.Dir(dir), 0o755)
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the directory of the authority cannot be made: %w", err)
	}

	unlock, err := lock(dir, syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer unlock()

	a, err := Open(dir)
	if cyborg.ErrorKindOf(err) != cyborg.ErrNotFound {
		return a, err
	}
	return found(dir)
}

// TryLock holds a directory for this caller until unlock is called. The lock ends
// with the process, too. The error is of kind ErrUnavailable while another
// process holds the directory.
func TryLock(dir string) (unlock func(), err error) {
	unlock, err = lock(dir, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = cyborg.Errorf(cyborg.ErrUnavailable, "another process has locked the directory %s", dir)
	}
	return unlock, err
}

// lock holds a directory in one of the ways of flock.
func lock(dir string, how int) (unlock func(), err error) {
	open, err := os.Open(dir)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the directory %s cannot be opened: %w", dir, err)
	}

	for {
		err = syscall.Flock(int(open.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(cyborg.Errorf(cyborg.ErrInvalid, "the directory %s cannot be locked: %w", dir, err), open.Close())
	}

	return func() {
		_ = syscall.Flock(int(open.Fd()), syscall.LOCK_UN) // closing the directory ends the lock as well
		_ = open.Close()                                   // nothing was written to it
	}, nil
}

// found makes the authority of a directory that has none. The key comes first:
// without a certificate nobody has used it, and the next call takes it over.
func found(dir string) (*Authority, error) {
	key, err := readKey(filepath.Join(dir, keyFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if key, err = newKey(filepath.Join(dir, keyFile)); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, broken(dir, err)
	}

	now := time.Now()
	der, err := signItself(key, now.Add(-backdate), now.Add(AuthorityLife))
	if err != nil {
		return nil, err
	}

	text := pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: der})
	if err := atomicfile.Write(filepath.Join(dir, certificateFile), text, 0o644); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the authority's certificate cannot be kept: %w", err)
	}

	return Open(dir)
}

// signItself returns the certificate of an authority with this key, in DER.
func signItself(key crypto.Signer, from, to time.Time) ([]byte, error) {
	template := &x509.Certificate{
		Subject:   pkix.Name{Organization: []string{"Cyborg"}, CommonName: "Cyborg authority of " + time.Now().UTC().Format(time.DateOnly)},
		NotBefore: from, NotAfter: to,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}

	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "the authority's certificate cannot be made: %w", err)
	}
	return der, nil
}

// Temporary returns a new authority that is in no directory and ends with the
// process. It is for what a process shows to itself. Its certificates are valid
// at any time, because the clock of the machine may jump while the process runs.
func Temporary() (*Authority, error) {
	key, _, err := GenerateKey()
	if err != nil {
		return nil, err
	}

	// RFC 5280, section 4.1.2.5, has this end for certificates without one.
	der, err := signItself(key, time.Unix(0, 0), time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC))
	if err != nil {
		return nil, err
	}

	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "the authority's certificate cannot be read again: %w", err)
	}
	return &Authority{certificate: certificate, key: key}, nil
}

// newKey makes a private key and keeps it.
func newKey(path string) (crypto.Signer, error) {
	key, text, err := GenerateKey()
	if err != nil {
		return nil, err
	}

	if err := atomicfile.Write(path, text, 0o600); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "the authority's key cannot be kept: %w", err)
	}
	return key, nil
}

// Open returns the authority in the directory. The error is of kind ErrNotFound
// where there is none, and of kind ErrInvalid for one that cannot be used: a file
// is missing or broken, the two do not belong together, or others may read the
// key.
func Open(dir string) (*Authority, error) {
	certificates, err := readAuthority(dir)
	if err != nil {
		return nil, err
	}

	key, err := readKey(filepath.Join(dir, keyFile))
	if err != nil {
		return nil, broken(dir, err)
	}

	first := certificates[0]
	public, ok := key.Public().(*ecdsa.PublicKey)
	if !ok || !public.Equal(first.PublicKey) {
		return nil, broken(dir, errors.New("the key is not that of the certificate"))
	}
	return &Authority{dir: dir, certificate: first, replaced: certificates[1:], key: key}, nil
}

// readAuthority reads the certificates in an authority's directory: its own, and
// those of authorities that also count, because it is replacing them. The errors
// are as those of Open.
func readAuthority(dir string) ([]*x509.Certificate, error) {
	text, err := os.ReadFile(filepath.Join(dir, certificateFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, cyborg.Errorf(cyborg.ErrNotFound, "the directory %s has no authority: it has no file %s", dir, certificateFile).
			WithHint("Make one with cyborg ca init.")
	case err != nil:
		return nil, broken(dir, err)
	}

	certificates, err := parseCertificates(text)
	if err == nil && !certificates[0].IsCA {
		err = errors.New("the certificate is not that of an authority")
	}
	if err != nil {
		return nil, broken(dir, err)
	}
	return certificates, nil
}

// broken says that the directory's authority cannot be used. It is never
// replaced, because then every certificate that it has signed would be nobody's.
func broken(dir string, err error) error {
	return cyborg.Errorf(cyborg.ErrInvalid, "the authority in %s cannot be used, and stays as it is: %w", dir, err).
		WithHint("Bring back its files %s and %s from a backup, or make a new authority in another directory.", certificateFile, keyFile)
}

// CertificateFile returns the path of the file with the authority's certificate,
// which everybody may have. A temporary authority has none.
func (a *Authority) CertificateFile() string { return filepath.Join(a.dir, certificateFile) }

// Certificate returns the authority's certificate.
func (a *Authority) Certificate() *x509.Certificate { return a.certificate }

// Leaf says what a certificate is to hold.
type Leaf struct {
	Identity identity.Identity

	// DNS and IPs are the names and addresses by which others reach the holder.
	DNS []string
	IPs []net.IP

	// Enrollment is the number of the enrollment of the host; see the function of that
	// name.
	Enrollment int64

	// Start is when the validity begins to count; zero means now. NotBefore is an
	// hour earlier.
	Start time.Time
	// Valid is how long the certificate is valid from Start on; zero means
	// DefaultLife. It never outlives its authority. Neither counts for a temporary
	// authority.
	Valid time.Duration
}

// Issue signs a certificate for the holder of the private key of public. The
// error is of kind ErrInvalid for a leaf or a key that cannot be in one.
func (a *Authority) Issue(public crypto.PublicKey, leaf Leaf) (*x509.Certificate, error) {
	if err := leaf.Identity.Check(); err != nil {
		return nil, err
	}
	if err := checkPublicKey(public); err != nil {
		return nil, err
	}

	if leaf.Start.IsZero() {
		leaf.Start = time.Now()
	}
	if leaf.Valid == 0 {
		leaf.Valid = DefaultLife
	}

	end := leaf.Start.Add(leaf.Valid)
	if end.After(a.certificate.NotAfter) {
		end = a.certificate.NotAfter
	}
	if leaf.Valid < 0 || !end.After(leaf.Start) {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "a certificate from %s to %s is never valid; the authority ends at %s",
			leaf.Start.UTC().Format(time.RFC3339), end.UTC().Format(time.RFC3339), a.certificate.NotAfter.UTC().Format(time.RFC3339))
	}

	begin := leaf.Start.Add(-backdate)
	if a.dir == "" {
		begin, end = a.certificate.NotBefore, a.certificate.NotAfter
	}

	template := &x509.Certificate{
		NotBefore: begin, NotAfter: end,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: usages(leaf.Identity.Role),
		DNSNames: leaf.DNS, IPAddresses: leaf.IPs,
	}
	template.URIs = append(template.URIs, leaf.Identity.URI())
	if leaf.Enrollment != 0 {
		template.Subject.SerialNumber = serialPrefix + strconv.FormatInt(leaf.Enrollment, 10)
	}

	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, public, a.key)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the certificate of %s cannot be made: %w", leaf.Identity, err)
	}

	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "the certificate of %s cannot be read again: %w", leaf.Identity, err)
	}
	return certificate, nil
}

// CheckTime returns an error of kind ErrInvalid for an authority that is not valid
// now: nobody would accept what it signs.
func (a *Authority) CheckTime(now time.Time) error {
	if !now.Before(a.certificate.NotBefore) && now.Before(a.certificate.NotAfter) {
		return nil
	}

	wrong := cyborg.Errorf(cyborg.ErrInvalid, "the authority in %s is valid from %s to %s, and now it is %s", a.dir,
		a.certificate.NotBefore.UTC().Format(time.RFC3339), a.certificate.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))

	const another = "move the directory away, so that another authority is made, and give everybody a certificate of that one."
	if now.Before(a.certificate.NotBefore) {
		return wrong.WithHint("Look at this machine's clock: it is wrong now, or was when the authority was made. In the second case " + another)
	}
	return wrong.WithHint("The authority has ended, unless this machine's clock is wrong. If it has, " + another)
}

// IssueRequest is Issue for the key of a certificate request in DER. Nothing else
// of the request counts: whom the certificate names is the caller's decision. The
// signature proves that whoever asks has the private key.
func (a *Authority) IssueRequest(der []byte, leaf Leaf) (*x509.Certificate, error) {
	public, err := keyOfRequest(der)
	if err != nil {
		return nil, err
	}
	return a.Issue(public, leaf)
}

// IssuePair makes a key and signs a certificate for it. Both results are in PEM
// format.
func (a *Authority) IssuePair(leaf Leaf) (certificate, key []byte, err error) {
	signer, key, err := GenerateKey()
	if err != nil {
		return nil, nil, err
	}

	issued, err := a.Issue(signer.Public(), leaf)
	if err != nil {
		return nil, nil, err
	}
	return EncodeCertificate(issued), key, nil
}

// usages returns what a certificate of the role is good for. An agent serves its
// metrics, and a server is Temporal's client, so both are good for both; a person
// serves nothing.
func usages(role identity.Role) []x509.ExtKeyUsage {
	if role == identity.Host || role == identity.Server {
		return []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	}
	return []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
}

// minRSA is how many bits an RSA key must have (NIST SP 800-131A).
const minRSA = 2048

// maxRSA is how many it may have. A signature by one of 45,000 bits takes 100 ms to
// check, and anybody may ask for a certificate.
const maxRSA = 8192

// checkPublicKey refuses keys that are too weak, or take too long to check.
func checkPublicKey(public crypto.PublicKey) error {
	switch key := public.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() || key.Curve == elliptic.P384() || key.Curve == elliptic.P521() {
			return nil
		}
	case ed25519.PublicKey:
		return nil
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits >= minRSA && bits <= maxRSA {
			return nil
		}
	}
	return cyborg.Errorf(cyborg.ErrInvalid, "the key of the certificate must be ECDSA P-256, P-384 or P-521, Ed25519, or RSA with %d to %d bits", minRSA, maxRSA)
}

// RenewAt returns when the holder of a certificate of ours should replace it: at
// two thirds of its life.
func RenewAt(certificate *x509.Certificate) time.Time {
	start := certificate.NotBefore.Add(backdate)
	return start.Add(certificate.NotAfter.Sub(start) * 2 / 3) //nolint:mnd // two thirds
}
