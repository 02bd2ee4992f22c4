package auth_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/limiter"
)

func TestRolesInclude(t *testing.T) {
	t.Parallel()
	order := []auth.Role{auth.Public, auth.Reader, auth.Member, auth.Admin}

	for i, has := range order {
		for j, needs := range order {
			require.Equal(t, i >= j, has.Includes(needs), "%s %s", has, needs)
		}
		require.False(t, has.Includes("root"), "an unknown role is nobody's")
		require.False(t, auth.Role("root").Includes(has))
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	good := auth.Token{Name: "a", Secret: "s1", Role: auth.Reader}
	for name, tokens := range map[string][]auth.Token{
		"no name":     {{Secret: "s", Role: auth.Reader}},
		"no secret":   {{Name: "b", Role: auth.Reader}},
		"no role":     {{Name: "b", Secret: "s"}},
		"public":      {{Name: "b", Secret: "s", Role: auth.Public}},
		"odd role":    {{Name: "b", Secret: "s", Role: "root"}},
		"same name":   {good, {Name: "a", Secret: "s2", Role: auth.Admin}},
		"same secret": {good, {Name: "b", Secret: "s1", Role: auth.Admin}},
	} {
		_, err := auth.New(auth.Config{Tokens: tokens})
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), name)
		require.NotContains(t, err.Error(), "s1")
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	token := auth.Token{Name: "a", Secret: "hush", Role: auth.Reader}
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", slog.Any("token", token))
	fmt.Fprintf(&log, "%v %s", token, token)

	require.NotContains(t, log.String(), "hush")
	require.Contains(t, log.String(), "reader")
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	both, err := auth.New(auth.Config{Certificates: true, Tokens: []auth.Token{{Name: "t", Secret: "s", Role: auth.Member}}})
	require.NoError(t, err)
	require.False(t, both.Open())
	require.Equal(t, "bearer token or client certificate", both.Scheme())

	with := func(certificate x509.Certificate, uris ...string) *http.Request {
		for _, uri := range uris {
			parsed, err := url.Parse(uri)
			require.NoError(t, err)
			certificate.URIs = append(certificate.URIs, parsed)
		}

		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{&certificate}}}
		return r
	}

	for _, role := range auth.Roles() {
		want := auth.Static("c", role)
		want.ID = "certificate/c"
		if role == auth.Member {
			want.Project = want.ID
		}

		caller, err := both.Authenticate(with(x509.Certificate{}, "spiffe://cyborg/"+string(role)+"/c"))
		require.NoError(t, err)
		require.Equal(t, want, caller)
	}

	posing := x509.Certificate{Subject: pkix.Name{CommonName: "c", OrganizationalUnit: []string{"admin"}}, DNSNames: []string{"c"}}
	caller, err := both.Authenticate(with(posing, "spiffe://cyborg/reader/r"))
	require.NoError(t, err)
	require.Equal(t, auth.Reader, caller.Role, "a unit gives no role")
	require.Equal(t, "r", caller.Name, "nor a common name a name")

	for name, r := range map[string]*http.Request{
		"names without URI":    with(posing),
		"a host":               with(posing, "spiffe://cyborg/host/h1"),
		"a server":             with(posing, "spiffe://cyborg/server/s1"),
		"no role of ours":      with(posing, "spiffe://cyborg/root/c"),
		"another trust domain": with(posing, "spiffe://lab/admin/c"),
		"two URIs":             with(posing, "spiffe://cyborg/admin/c", "spiffe://cyborg/reader/c"),
	} {
		_, err := both.Authenticate(r)
		require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(err), name)

		r.Header.Set("Authorization", "Bearer s")
		caller, err := both.Authenticate(r)
		require.NoError(t, err)
		require.Equal(t, "t", caller.Name, "a token says more than a certificate")
	}

	unverified := with(x509.Certificate{}, "spiffe://cyborg/admin/c")
	unverified.TLS = &tls.ConnectionState{PeerCertificates: unverified.TLS.VerifiedChains[0]}
	_, err = both.Authenticate(unverified)
	require.Equal(t, cyborg.ErrUnauthenticated, cyborg.ErrorKindOf(err))

	tokens, err := auth.New(auth.Config{Tokens: []auth.Token{{Name: "t", Secret: "s", Role: auth.Member}}})
	require.NoError(t, err)
	_, err = tokens.Authenticate(with(x509.Certificate{}, "spiffe://cyborg/admin/c"))
	require.Equal(t, cyborg.ErrUnauthenticated, cyborg.ErrorKindOf(err), "certificates are not configured")

	elsewhere, err := auth.New(auth.Config{Certificates: true, TrustDomain: "lab"})
	require.NoError(t, err)
	caller, err = elsewhere.Authenticate(with(x509.Certificate{}, "spiffe://lab/admin/c"))
	require.NoError(t, err)
	require.Equal(t, auth.Admin, caller.Role)
}

func TestRequireOutsideOfARequest(t *testing.T) {
	t.Parallel()
	err := auth.Require(t.Context(), auth.Reader, "read")
	require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(err))
	require.EqualError(t, err, "the caller has no role, and to read needs the role reader")

	reader := auth.WithCaller(t.Context(), auth.Static("ci", auth.Reader))
	require.EqualError(t, auth.Require(reader, auth.Admin, "rule"), "ci has the role reader, and to rule needs the role admin")
	require.NoError(t, auth.Require(auth.WithCaller(t.Context(), auth.Local()), auth.Admin, "rule"))
}

// What one member's token has created is not another's. Tokens share what they
// have only where the operator gives them one project.
func TestStaticMembersHaveProjects(t *testing.T) {
	t.Parallel()
	a, err := auth.New(auth.Config{Tokens: []auth.Token{
		{Name: "mia", Secret: "1", Role: auth.Member},
		{Name: "otto", Secret: "2", Role: auth.Member},
		{Name: "ci", Secret: "3", Role: auth.Member, Project: "p-1"},
		{Name: "rita", Secret: "4", Role: auth.Reader, Project: "p-1"},
		{Name: "ada", Secret: "5", Role: auth.Admin},
		{Name: "ron", Secret: "6", Role: auth.Reader},
	}})
	require.NoError(t, err)

	for secret, project := range map[string]string{"1": "token/mia", "2": "token/otto", "3": "p-1", "4": "p-1", "5": "", "6": ""} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer "+secret)
		caller, err := a.Authenticate(r)
		require.NoError(t, err)
		require.Equal(t, project, caller.Project, caller.Name)
	}
}

// Where callers take turns, those of one project have one turn together, and a
// caller without a project has its own.
func TestCallersOfAProjectShareItsTurns(t *testing.T) {
	t.Parallel()
	line := func(caller auth.Caller) string { return limiter.CallerOf(auth.WithCaller(t.Context(), caller)) }

	require.Equal(t, line(auth.Caller{ID: "alice", Project: "p1"}), line(auth.Caller{ID: "bob", Project: "p1"}))
	require.NotEqual(t, line(auth.Caller{ID: "alice", Project: "p1"}), line(auth.Caller{ID: "alice", Project: "p2"}))
	require.NotEqual(t, line(auth.Static("rita", auth.Reader)), line(auth.Static("ada", auth.Admin)))
	require.NotEmpty(t, line(auth.Local()))
}
