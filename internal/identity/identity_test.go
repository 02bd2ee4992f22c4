package identity_test

import (
	"crypto/x509"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/fuzztest"
	"github.com/cyborg-project/cyborg/internal/identity"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, role := range identity.Roles() {
		want := identity.Identity{TrustDomain: "lab.example", Role: role, Name: "Rack01.a-b_c"}
		got, err := identity.Parse(want.String())
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, want.String(), want.URI().String())
	}

	for _, uri := range []string{
		"", "h1", "https://cyborg/host/h1", "SPIFFE://cyborg/host/h1", "spiffe:///host/h1", "spiffe://cyborg", "spiffe://cyborg/host",
		"spiffe://cyborg/host/", "spiffe://cyborg/host/h1/", "spiffe://cyborg/host/h1/h2", "spiffe://cyborg//h1", "spiffe://Cyborg/host/h1",
		"spiffe://cyborg:80/host/h1", "spiffe://u@cyborg/host/h1", "spiffe://cyborg/host/h1?", "spiffe://cyborg/host/h1#x",
		"spiffe://cyborg/host/h%31", "spiffe://cyborg/host/..", "spiffe://cyborg/admin/..", "spiffe://cyborg/host/-h1", "spiffe://cyborg/host/h 1",
		"spiffe://cyborg/host/hé", "spiffe://cyborg/Host/h1", "spiffe://cyborg/root/h1", "spiffe://cyborg/host/h1\n",
		"spiffe://cyborg/admin/" + strings.Repeat("a", 2048), "spiffe://" + strings.Repeat("a", 256) + "/host/h1",
	} {
		_, err := identity.Parse(uri)
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), uri)
	}
}

// TestOfCertificate: only the one URI counts, and only of the own trust domain.
func TestOfCertificate(t *testing.T) {
	t.Parallel()
	uri := func(text string) *url.URL {
		parsed, err := url.Parse(text)
		require.NoError(t, err)
		return parsed
	}

	got, err := identity.OfCertificate(&x509.Certificate{URIs: []*url.URL{uri("spiffe://cyborg/host/h1")}, DNSNames: []string{"h2"}}, "cyborg")
	require.NoError(t, err)
	require.Equal(t, identity.Identity{TrustDomain: "cyborg", Role: identity.Host, Name: "h1"}, got)

	named := &x509.Certificate{DNSNames: []string{"h1"}}
	named.Subject.CommonName = "spiffe://cyborg/host/h1"
	for name, certificate := range map[string]*x509.Certificate{
		"no URI":               named,
		"two":                  {URIs: []*url.URL{uri("spiffe://cyborg/host/h1"), uri("spiffe://cyborg/host/h1")}},
		"another trust domain": {URIs: []*url.URL{uri("spiffe://lab/host/h1")}},
		"something else":       {URIs: []*url.URL{uri("https://cyborg/host/h1")}},
		"an escaped slash":     {URIs: []*url.URL{uri("spiffe://cyborg/host/h1%2Fx")}},
	} {
		_, err := identity.OfCertificate(certificate, "cyborg")
		require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(err), name)
	}
}

// FuzzParse reads URIs of certificates. One that was read is exactly the same
// when it is written again.
func FuzzParse(f *testing.F) {
	for _, text := range append(fuzztest.Texts(), "spiffe://cyborg/host/h1", "spiffe://cyborg/admin/..", "spiffe://cyborg/host/h%31") {
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, text string) {
		i, err := identity.Parse(text)
		if err != nil {
			fuzztest.RequireRefusal(t, err)
			return
		}
		require.Equal(t, text, i.String())
	})
}

// TestCheckOwn: a certificate that names somebody else is told from one that names
// nobody, which another end may want.
func TestCheckOwn(t *testing.T) {
	t.Parallel()
	check := func(own identity.Identity, uris ...string) error {
		certificate := &x509.Certificate{}
		for _, one := range uris {
			parsed, err := url.Parse(one)
			require.NoError(t, err)
			certificate.URIs = append(certificate.URIs, parsed)
		}
		return identity.CheckOwn("the certificate f", certificate, own)
	}
	h1 := identity.Identity{TrustDomain: "lab", Role: identity.Host, Name: "h1"}
	server := identity.Identity{TrustDomain: "lab", Role: identity.Server}

	require.NoError(t, check(h1, "spiffe://lab/host/h1"))
	require.NoError(t, check(server, "spiffe://lab/server/any"))
	require.NoError(t, check(identity.Identity{Role: identity.Server}, "spiffe://other/server/any"))
	require.NoError(t, check(h1), "none")
	require.NoError(t, check(h1, "https://example.org/h2"), "no identity")
	require.NoError(t, check(h1, "spiffe://lab/host/h2", "spiffe://lab/host/h3"), "two, so it is nobody's")

	for uri, own := range map[string]identity.Identity{
		"spiffe://lab/host/h2": h1, "spiffe://lab/host/H1": h1, "spiffe://other/host/h1": h1, "spiffe://lab/server/h1": h1,
		"spiffe://lab/host/any": server, "spiffe://other/server/any": server,
	} {
		err := check(own, uri)
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), uri)
		require.ErrorContains(t, err, "the certificate f is the certificate of "+uri+", and this process needs one of spiffe://lab/"+string(own.Role)+"/")
	}

	require.Contains(t, cyborg.AsError(check(h1, "spiffe://lab/host/h2")).Hint, "set agent.host to h2", "an agent that does not know its name")
	for _, uri := range []string{"spiffe://other/host/h2", "spiffe://lab/server/h2"} {
		require.NotContains(t, cyborg.AsError(check(h1, uri)).Hint, "set agent.host", uri)
	}
}
