package openstack_test

import (
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/openstack"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
)

// files writes files into one new directory and returns it.
func files(t *testing.T, contents map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range contents {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}

// TestApplicationCredential: an application credential replaces user and
// password, also when our token must be renewed.
func TestApplicationCredential(t *testing.T) {
	t.Parallel()
	k := openstacktest.NewKeystone(t)
	server := service(t, k)
	k.Serve("placement", server.URL)

	c := k.Config()
	c.Username, c.Password = "", ""
	c.ApplicationCredential, c.ApplicationSecret = openstacktest.OwnCredential, openstacktest.OwnSecret
	s := session(t, c)
	_, err := get(t.Context(), s, "placement")
	require.NoError(t, err)

	k.RevokeOwn()
	_, err = get(t.Context(), s, "placement")
	require.NoError(t, err, "it logs in again")
	require.Equal(t, 2, k.Logins())
	require.Equal(t, "application credential "+openstacktest.OwnCredential, s.Who())

	c.ApplicationSecret = "wrong"
	err = session(t, c).Ping(t.Context())
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "does not let our own application credential "+openstacktest.OwnCredential)
	require.NotContains(t, err.Error(), "wrong")

	c.ApplicationCredential = "gone"
	err = session(t, c).Ping(t.Context())
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "does not let our own application credential gone")
}

// TestErrorsRepeatNoCredential: a Keystone, or what stands before it, that says what
// it was sent has our error say no secret.
func TestErrorsRepeatNoCredential(t *testing.T) {
	t.Parallel()
	k := openstacktest.NewKeystone(t)
	k.Disturb(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprintf(w, `{"error": {"message": %q}}`, fmt.Sprint("this is wrong: ", string(body), r.Header, err))
	})

	byCredential := k.Config()
	byCredential.Username, byCredential.Password = "", ""
	byCredential.ApplicationCredential, byCredential.ApplicationSecret = openstacktest.OwnCredential, openstacktest.OwnSecret
	for secret, c := range map[string]config.OpenStack{openstacktest.OwnPassword: k.Config(), openstacktest.OwnSecret: byCredential} {
		err := session(t, c).Ping(t.Context())
		require.ErrorContains(t, err, "400")
		require.NotContains(t, err.Error(), secret)
	}
}

// TestCloudsFile: an entry of clouds.yaml, with secrets in secure.yaml, says
// everything that is needed, also which certificates are trusted.
func TestCloudsFile(t *testing.T) {
	t.Parallel()
	k := openstacktest.NewKeystone(t)
	secure := httptest.NewTLSServer(http.HandlerFunc(k.ServeHTTP))
	t.Cleanup(secure.Close)
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)

	server := service(t, k)
	k.Serve("placement", server.URL)

	authority := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
	dir := files(t, map[string]string{"ca.pem": authority, "secure.yaml": `
clouds:
  credential: {auth: {application_credential_secret: ` + openstacktest.OwnSecret + `}}
`})
	require.NoError(t, os.WriteFile(filepath.Join(dir, "clouds.yaml"), []byte(strings.NewReplacer(
		"URL", secure.URL, "CA", filepath.Join(dir, "ca.pem"), "PASSWORD", openstacktest.OwnPassword, "CREDENTIAL", openstacktest.OwnCredential,
	).Replace(`
clouds:
  password:
    auth: {auth_url: URL, username: cyborg, password: PASSWORD, project_name: service, user_domain_name: Default, project_domain_name: Default}
    region_name: RegionOne
    cacert: CA
  credential:
    auth_type: v3applicationcredential
    auth: {auth_url: URL/v3, application_credential_id: CREDENTIAL}
    cacert: CA
  careless:
    auth: {auth_url: URL, application_credential_id: CREDENTIAL, application_credential_secret: `+openstacktest.OwnSecret+`}
    verify: false
  doubting:
    auth: {auth_url: URL, application_credential_id: CREDENTIAL, application_credential_secret: `+openstacktest.OwnSecret+`}
  elsewhere:
    auth: {auth_url: URL, username: cyborg, password: PASSWORD, project_name: service, user_domain_name: Default, project_domain_name: Default}
    region_name: RegionTwo
    verify: false
  token:
    auth: {auth_url: URL, token: gAAAA}
`)), 0o600))

	in := func(name string) config.OpenStack {
		c := config.Default().OpenStack
		c.Cloud, c.CloudsFile = name, filepath.Join(dir, "clouds.yaml")
		return c
	}

	for _, name := range []string{"password", "credential", "careless"} {
		s := session(t, in(name))
		_, err := get(t.Context(), s, "placement")
		require.NoError(t, err, name)
		require.Contains(t, s.Who(), "of the cloud "+name)
		require.True(t, strings.HasPrefix(s.AuthURL(), secure.URL))
	}

	_, err := session(t, in("elsewhere")).Service(t.Context(), "placement")
	require.ErrorContains(t, err, "in the region RegionTwo")
	require.ErrorContains(t, session(t, in("doubting")).Ping(t.Context()), "certificate")

	trusting := in("doubting")
	trusting.CAFile = filepath.Join(dir, "ca.pem")
	require.NoError(t, session(t, trusting).Ping(t.Context()))

	for name, says := range map[string]string{"token": "neither a password", "none": `"none" not found`} {
		_, err := openstack.New(in(name), slog.New(slog.DiscardHandler))
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
		require.ErrorContains(t, err, says)
	}
}
