package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// The types of PEM blocks.
const (
	certificateBlock = "CERTIFICATE"
	keyBlock         = "PRIVATE KEY"
)

// EncodeCertificate returns the certificate in PEM format.
func EncodeCertificate(certificate *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: certificate.Raw})
}

// GenerateKey makes a private key, ECDSA P-256, and returns it in PEM format,
// too.
func GenerateKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, cyborg.Errorf(cyborg.ErrInternal, "a key cannot be made: %w", err)
	}

	text, err := encodeKey(key)
	return key, text, err
}

// encodeKey returns the private key in PEM format.
func encodeKey(key crypto.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "a key cannot be encoded: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der}), nil
}

// readKey reads the private key of an authority. Nobody but its owner may be able
// to read it.
func readKey(path string) (crypto.Signer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if open := info.Mode().Perm() & 0o077; open != 0 {
		return nil, fmt.Errorf("%s has the mode %#o, and only its owner may read it", path, info.Mode().Perm())
	}

	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}

	block, _ := pem.Decode(text)
	if block == nil || block.Type != keyBlock {
		return nil, fmt.Errorf("%s holds no private key in PEM format (PKCS #8)", path)
	}

	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s holds no private key: %w", path, err)
	}

	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s holds a key that is not ECDSA", path)
	}
	return key, nil
}

// parseCertificates reads one or more certificates in PEM format. Unlike
// x509.CertPool it refuses a text of which a part cannot be read: somebody may be
// writing the file.
func parseCertificates(text []byte) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	block, rest := pem.Decode(text)
	for ; block != nil; block, rest = pem.Decode(rest) {
		if block.Type != certificateBlock {
			continue
		}

		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d cannot be read: %w", len(all)+1, err)
		}
		all = append(all, certificate)
	}

	if strings.Contains(string(rest), "-----BEGIN") {
		return nil, errors.New("its end is missing")
	}
	if len(all) == 0 {
		return nil, errors.New("it holds no certificate in PEM format")
	}
	return all, nil
}

// ReadPool reads a file of authorities' certificates in PEM format. The error is
// of kind ErrInvalid.
func ReadPool(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the authorities' certificates cannot be read: %w", err)
	}

	certificates, err := parseCertificates(text)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the authorities' certificates in %s cannot be used: %w", path, err)
	}

	pool := x509.NewCertPool()
	for _, certificate := range certificates {
		pool.AddCert(certificate)
	}
	return pool, nil
}
