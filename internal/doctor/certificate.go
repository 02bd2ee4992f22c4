package doctor

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"time"
)

// expiresSoon is how long before its end the doctor warns about a certificate.
const expiresSoon = 14 * 24 * time.Hour

// Certificate checks the validity of a certificate at the time now.
func (f *Findings) Certificate(whose string, certificate *x509.Certificate, now time.Time) {
	check, until := "certificate of "+whose, certificate.NotAfter.UTC().Format(time.DateOnly)
	switch {
	case now.After(certificate.NotAfter):
		f.Fail(check, "is no longer valid: it ended on "+until, "Replace it; no restart is needed.")
	case now.Before(certificate.NotBefore):
		f.Fail(check, fmt.Sprintf("is not valid yet: it begins at %s", certificate.NotBefore.UTC().Format(time.RFC3339)), "Look at the clocks.")
	case now.Add(expiresSoon).After(certificate.NotAfter):
		f.Warn(check, "ends soon, on "+until, "Replace it; no restart is needed.")
	default:
		f.OKf(check, "is valid until %s", until)
	}
}

// CertificateFile checks each certificate in a PEM file, which the setting
// names.
func (f *Findings) CertificateFile(setting, path string, now time.Time) {
	text, err := os.ReadFile(path)
	if err != nil {
		f.Fail("certificate of "+setting, "cannot be read: "+err.Error(), "Put it there, or correct "+setting+".")
		return
	}

	found := false
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}

		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			f.Fail("certificate of "+setting, "cannot be read: "+err.Error(), "Replace "+path+".")
			continue
		}

		found = true
		f.Certificate(setting, certificate, now)
	}

	if !found {
		f.Fail("certificate of "+setting, path+" holds no certificate in PEM format", "Replace it.")
	}
}
