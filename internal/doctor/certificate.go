package doctor

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"time"
)

const (
	// expiresSoon is how long before its end the doctor warns about a certificate.
	expiresSoon = 14 * 24 * time.Hour
	// authorityExpiresSoon is the same for an authority that is made for ten years.
	// To replace one, everybody gets another certificate.
	authorityExpiresSoon = 365 * 24 * time.Hour
)

// Certificate checks the validity of a certificate, which may be that of an
// authority, at the time now.
func (f *Findings) Certificate(whose string, certificate *x509.Certificate, now time.Time) {
	if !certificate.IsCA {
		f.certificate(whose, certificate, now, expiresSoon, "Replace it; no restart is needed.")
		return
	}

	// An authority that is made for a year only would be warned of all the time.
	soon := min(authorityExpiresSoon, max(expiresSoon, certificate.NotAfter.Sub(certificate.NotBefore)/10))
	f.certificate(whose, certificate, now, soon,
		"All that it has signed ends with it. Make a new authority, have both in the files of the authorities everywhere, give everybody a certificate "+
			"of the new one, and then leave this one out: docs/operations.md has the commands, under Certificates. No restart is needed.")
}

// certificate warns about a certificate that ends within this time.
func (f *Findings) certificate(whose string, certificate *x509.Certificate, now time.Time, soon time.Duration, todo string) {
	check, until := "certificate of "+whose, certificate.NotAfter.UTC().Format(time.DateOnly)
	switch {
	case now.After(certificate.NotAfter):
		f.Fail(check, "is no longer valid: it ended on "+until, todo)
	case now.Before(certificate.NotBefore):
		f.Fail(check, fmt.Sprintf("is not valid yet: it begins at %s", certificate.NotBefore.UTC().Format(time.RFC3339)), "Look at the clocks.")
	case now.Add(soon).After(certificate.NotAfter):
		f.Warn(check, "ends soon, on "+until, todo)
	default:
		f.OKf(check, "is valid until %s", until)
	}
}

// CertificateFile checks each certificate in a PEM file, which the setting
// names.
func (f *Findings) CertificateFile(setting, path string, now time.Time) {
	f.certificateFile(setting, path, func(one *x509.Certificate) { f.Certificate(setting, one, now) })
}

// EnrolledCertificateFile is CertificateFile for a certificate that its holder
// renews by itself after two thirds of its life.
func (f *Findings) EnrolledCertificateFile(setting, path string, now time.Time) {
	f.certificateFile(setting, path, func(one *x509.Certificate) {
		overdue := one.NotAfter.Sub(one.NotBefore) / 5
		f.certificate(setting, one, now, overdue,
			"The agent should have renewed it: look at its log, and whether it reaches a server. If the host was revoked, or was off for too long, enroll it again.")
	})
}

// certificateFile has each certificate in a PEM file examined.
func (f *Findings) certificateFile(setting, path string, examine func(*x509.Certificate)) {
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
		examine(certificate)
	}

	if !found {
		f.Fail("certificate of "+setting, path+" holds no certificate in PEM format", "Replace it.")
	}
}
