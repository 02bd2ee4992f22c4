package doctor_test

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/doctor"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// TestCertificateEndsSoon: the doctor warns of the end of a certificate two weeks
// before, and of that of an authority, whose replacement is more work, a year
// before. Each says what to do.
func TestCertificateEndsSoon(t *testing.T) {
	t.Parallel()
	authority, err := pki.Make(filepath.Join(t.TempDir(), "ca"))
	require.NoError(t, err)
	encoded, _, err := authority.IssuePair(pki.Leaf{
		Identity: identity.Identity{TrustDomain: "lab", Role: identity.Server, Name: "s1"}, Valid: 2 * 365 * 24 * time.Hour,
	})
	require.NoError(t, err)
	block, _ := pem.Decode(encoded)
	leaf, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)

	const day = 24 * time.Hour
	for name, test := range map[string]struct {
		certificate *x509.Certificate
		before      time.Duration // its end
		state       doctor.State
		do          string
	}{
		"certificate":         {leaf, 15 * day, doctor.OK, ""},
		"certificate, soon":   {leaf, 13 * day, doctor.Warning, "Replace it; no restart is needed."},
		"authority":           {authority.Certificate(), 366 * day, doctor.OK, ""},
		"authority, soon":     {authority.Certificate(), 364 * day, doctor.Warning, "Make a new authority"},
		"authority, no more":  {authority.Certificate(), -day, doctor.Failed, "Make a new authority"},
		"certificate, in use": {leaf, 400 * day, doctor.OK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := test.certificate.NotAfter.Add(-test.before)
			path := filepath.Join(t.TempDir(), "file.pem")
			require.NoError(t, os.WriteFile(path, pki.EncodeCertificate(test.certificate), 0o600))

			var f doctor.Findings
			f.Certificate("it", test.certificate, now)
			f.CertificateFile("it", path, now)

			require.Len(t, f.All(), 2)
			for _, finding := range f.All() {
				require.Equal(t, test.state, finding.State, finding.Found)
				require.Contains(t, finding.Do, test.do)
			}
		})
	}
}

// TestAuthorityOfAShortLife: one that is made for a year is not warned of all the
// time.
func TestAuthorityOfAShortLife(t *testing.T) {
	t.Parallel()
	now := time.Now()
	certificate := &x509.Certificate{IsCA: true, NotBefore: now, NotAfter: now.AddDate(1, 0, 0)}

	var f doctor.Findings
	f.Certificate("it", certificate, now.AddDate(0, 10, 0))
	f.Certificate("it", certificate, now.AddDate(0, 11, 0))
	require.Equal(t, doctor.OK, f.All()[0].State)
	require.Equal(t, doctor.Warning, f.All()[1].State)
}
