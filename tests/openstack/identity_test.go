package openstack_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/applicationcredentials"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/policy"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/openstack"
	"github.com/cyborg-project/cyborg/internal/openstack/keystone"
	"github.com/cyborg-project/cyborg/internal/openstack/placement"
	"github.com/cyborg-project/cyborg/tests/openstack/rig"
)

// identity authenticates callers by a real Keystone, and checks their
// permissions.
type identity struct {
	rig       *rig.Rig
	session   *openstack.Session
	validator *keystone.Validator
	auth      *auth.Authenticator
	policy    *policy.Policy
	later     atomic.Int64 // nanoseconds by which the validator's clock is ahead
}

// startIdentity returns an authenticator that uses the rig's Keystone.
func startIdentity(t *testing.T) *identity {
	t.Helper()
	i := &identity{rig: rig.Up(t, rig.Keystone)}
	i.rig.Alone(t) // other tests may stop Keystone

	c := config.Default().OpenStack
	c.AuthURL, c.Password, c.Region = i.rig.Keystone, config.Secret(i.rig.Password), i.rig.Region
	log := slog.New(slog.NewTextHandler(t.Output(), nil))

	var err error
	i.session, err = openstack.New(c, log)
	require.NoError(t, err)
	t.Cleanup(i.session.Close)

	i.validator, err = keystone.New(i.session, keystone.Options{
		Revocation: time.Minute, Tokens: 100, Registry: prometheus.NewRegistry(), Log: log,
		Now: func() time.Time { return time.Now().Add(time.Duration(i.later.Load())) },
	})
	require.NoError(t, err)

	i.auth, err = auth.New(auth.Config{Keystone: auth.Keystone{
		Validator: i.validator, URI: i.rig.Keystone, ServiceRoles: []string{"service"}, Admins: []string{"admin"},
	}})
	require.NoError(t, err)

	i.policy, err = policy.New(policy.Config{EnforceNewDefaults: true, Log: log})
	require.NoError(t, err)

	return i
}

// caller returns the caller that the tokens stand for.
func (i *identity) caller(t *testing.T, token, serviceToken string) (auth.Caller, error) {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v2/devices", nil)
	request.Header.Set("X-Auth-Token", token)

	if serviceToken != "" {
		request.Header.Set("X-Service-Token", serviceToken)
	}

	return i.auth.Authenticate(request)
}

// scoped returns a token of the user admin for another scope than a project.
func (i *identity) scoped(t *testing.T, scope any) string {
	t.Helper()
	type object map[string]any

	body, err := json.Marshal(object{"auth": object{
		"identity": object{"methods": []string{"password"}, "password": object{"user": object{
			"name": "admin", "domain": object{"name": "Default"}, "password": i.rig.Password,
		}}},
		"scope": scope,
	}})
	require.NoError(t, err)

	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, i.rig.Keystone+"/auth/tokens", bytes.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")

	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusCreated, response.StatusCode)

	return response.Header.Get("X-Subject-Token")
}

// revoke revokes a token.
func (i *identity) revoke(t *testing.T, token string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, i.rig.Keystone+"/auth/tokens", nil)
	require.NoError(t, err)
	request.Header.Set("X-Auth-Token", token)
	request.Header.Set("X-Subject-Token", token)

	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusNoContent, response.StatusCode)
}

// TestKeystoneCallers reads the callers from tokens of a real Keystone, and
// checks what each of them may do.
func TestKeystoneCallers(t *testing.T) {
	t.Parallel()
	i := startIdentity(t)
	client, err := i.session.Service(t.Context(), "placement")
	require.NoError(t, err)
	require.Equal(t, strings.TrimSuffix(i.rig.Placement, "/")+"/", client.Endpoint, "the endpoint comes from the service catalog")

	may := map[string]string{
		"admin":   "cyborg:arq:get_all cyborg:arq:create cyborg:device:get_all cyborg:device_profile:create",
		"manager": "cyborg:arq:get_all cyborg:arq:create cyborg:device:get_all",
		"demo":    "cyborg:arq:get_all cyborg:arq:create",
		"reader":  "cyborg:arq:get_all",
		"nova":    "cyborg:arq:get_all cyborg:arq:create cyborg:device:get_all cyborg:device_profile:create", // the rig's user nova is also admin
	}

	projects := map[string]string{}
	for who, rules := range may {
		caller, err := i.caller(t, i.rig.Token(t, who), "")
		require.NoError(t, err, who)
		require.Equal(t, who, caller.Name)
		require.NotEmpty(t, caller.UserID)
		require.NotEmpty(t, caller.Project)
		projects[who] = caller.Project
		require.Equal(t, slices.Contains([]string{"admin", "nova"}, who), caller.Role == auth.Admin, "%s on /v1", who)

		for _, rule := range []string{"cyborg:arq:get_all", "cyborg:arq:create", "cyborg:device:get_all", "cyborg:device_profile:create"} {
			err := i.policy.Check(auth.WithCaller(t.Context(), caller), rule)
			require.Equal(t, slices.Contains(strings.Fields(rules), rule), err == nil, "%s %s: %v", who, rule, err)
		}
	}

	require.Equal(t, projects["demo"], projects["reader"])
	require.NotEqual(t, projects["demo"], projects["nova"])

	for name, scope := range map[string]any{
		"system": map[string]any{"system": map[string]any{"all": true}},
		"none":   "unscoped",
	} {
		caller, err := i.caller(t, i.scoped(t, scope), "")
		require.NoError(t, err, name)
		require.Equal(t, name == "system", caller.System)
		require.Empty(t, caller.Project)

		require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(i.policy.Check(auth.WithCaller(t.Context(), caller), "cyborg:arq:get_all")), name)
	}
}

// TestApplicationCredential logs in with an application credential, from the
// options and from a clouds.yaml, and uses the services with it. After the
// credential was deleted, the login fails with an error that names it.
func TestApplicationCredential(t *testing.T) {
	t.Parallel()
	i := startIdentity(t)
	client, err := i.session.Identity(t.Context())
	require.NoError(t, err)
	own, err := tokens.Get(t.Context(), client, client.Token()).ExtractUser()
	require.NoError(t, err)

	made, err := applicationcredentials.Create(t.Context(), client, own.ID, applicationcredentials.CreateOpts{Name: t.Name()}).Extract()
	require.NoError(t, err)

	file := filepath.Join(t.TempDir(), "clouds.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `
clouds:
  rig:
    auth_type: v3applicationcredential
    auth: {auth_url: %q, application_credential_id: %q, application_credential_secret: %q}
    region_name: %q
`, i.rig.Keystone, made.ID, made.Secret, i.rig.Region), 0o600))

	direct, clouds := config.Default().OpenStack, config.Default().OpenStack
	direct.AuthURL, direct.Region, direct.ApplicationCredential, direct.ApplicationSecret = i.rig.Keystone, i.rig.Region, made.ID, config.Secret(made.Secret)
	clouds.Cloud, clouds.CloudsFile = "rig", file

	caller := i.rig.Token(t, "demo")
	for name, c := range map[string]config.OpenStack{"options": direct, "clouds.yaml": clouds} {
		session, err := openstack.New(c, slog.New(slog.NewTextHandler(t.Output(), nil)))
		require.NoError(t, err, name)
		t.Cleanup(session.Close)

		identity, err := session.Identity(t.Context())
		require.NoError(t, err, name)
		user, err := tokens.Get(t.Context(), identity, caller).ExtractUser()
		require.NoError(t, err, name)
		require.Equal(t, "demo", user.Name)

		_, err = placement.New(session).Negotiate(t.Context())
		require.NoError(t, err, name)
	}

	require.NoError(t, applicationcredentials.Delete(t.Context(), client, own.ID, made.ID).ExtractErr())

	late, err := openstack.New(direct, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(late.Close)
	require.ErrorContains(t, late.Ping(t.Context()), "does not let our own application credential "+made.ID)
}

// TestServiceTokensOfKeystone accepts a service token, and refuses the token of
// a user in its place.
func TestServiceTokensOfKeystone(t *testing.T) {
	t.Parallel()
	i := startIdentity(t)
	demo, nova := i.rig.Token(t, "demo"), i.rig.Token(t, "nova")

	caller, err := i.caller(t, demo, nova)
	require.NoError(t, err)
	require.Equal(t, "demo", caller.Name)
	require.Contains(t, caller.ServiceRoles, "service")

	_, err = i.caller(t, demo, demo)
	require.Equal(t, cyborg.ErrUnauthenticated, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "does not belong to a service")
}

// TestUnknownTokensAreRefused sends tokens that do not exist, in many forms.
// They are refused; none is taken for a failure of Keystone.
func TestUnknownTokensAreRefused(t *testing.T) {
	t.Parallel()
	i := startIdentity(t)

	good := i.rig.Token(t, "demo")
	for _, token := range []string{
		"x", "made-up", good[1:], good + "x", strings.Repeat("a", 300), strings.Repeat("a", 8000), "0123456789abcdef0123456789abcdef",
		"../../v3/users", "%00", "a,b", `"`, "gAAAAA" + strings.Repeat("A", 180), "ä",
	} {
		_, err := i.caller(t, token, "")
		require.Equal(t, cyborg.ErrUnauthenticated, cyborg.ErrorKindOf(err), "%q: %v", token, err)
	}

	_, err := i.caller(t, good, "")
	require.NoError(t, err)
}

// TestRevokedToken revokes a token. It is refused after the revocation window.
func TestRevokedToken(t *testing.T) {
	t.Parallel()
	i := startIdentity(t)

	token := i.rig.Token(t, "demo")
	_, err := i.caller(t, token, "")
	require.NoError(t, err)

	i.revoke(t, token)
	_, err = i.caller(t, token, "")
	require.NoError(t, err, "a revoked token within the revocation window")

	i.later.Store(int64(61 * time.Second))
	_, err = i.caller(t, token, "")
	require.Equal(t, cyborg.ErrUnauthenticated, cyborg.ErrorKindOf(err))
}

// TestKeystoneDoesNotAnswer freezes Keystone, which then accepts connections
// and does not answer. Known tokens stay valid, and new ones get an answer that
// Keystone is unavailable.
func TestKeystoneDoesNotAnswer(t *testing.T) {
	t.Parallel()
	i := startIdentity(t)

	known, other := i.rig.Token(t, "demo"), i.rig.Token(t, "reader")
	_, err := i.caller(t, known, "")
	require.NoError(t, err)

	i.rig.Freeze(t, "keystone")
	defer i.rig.Thaw(t, "keystone") // also where the test fails

	_, err = i.caller(t, known, "")
	require.NoError(t, err)

	_, err = i.caller(t, other, "")
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))

	i.later.Store(int64(61 * time.Second))
	for range 5 {
		_, err = i.caller(t, known, "")
		require.NoError(t, err)
	}

	i.rig.Thaw(t, "keystone")

	require.Eventually(t, func() bool {
		i.later.Add(int64(time.Second))
		_, err := i.caller(t, other, "")
		return err == nil
	}, 3*time.Minute, 100*time.Millisecond)
}
