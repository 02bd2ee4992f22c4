package auth_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/internal/openstack/keystone"
)

// validator is a Keystone that knows these tokens, each by the client that may
// send it and its text.
type validator map[string]keystone.Token

func (v validator) Validate(_ context.Context, client, token string, _ bool) (keystone.Token, error) {
	if known, ok := v[client+" "+token]; ok {
		return known, nil
	}
	return keystone.Token{}, cyborg.Errorf(cyborg.ErrUnauthenticated, "unknown")
}

// A caller has what Keystone says of the user and of the service that works for
// the user. Policy rules decide by that.
func TestKeystoneCallers(t *testing.T) {
	t.Parallel()
	user := keystone.Token{UserID: "u1", User: "alice", UserDomainID: "ud", ProjectID: "p1", ProjectDomainID: "pd", Roles: []string{"operator"}}
	const here = "192.0.2.1" // httptest's

	authenticator, err := auth.New(auth.Config{Keystone: auth.Keystone{
		ServiceRoles: []string{"service"}, Members: []string{"operator"},
		Validator: validator{
			here + " alice": user, "keystone/u2 alice": user,
			here + " nova": {
				UserID: "u2", User: "nova", UserDomainID: "sud", ProjectID: "p2", ProjectDomainID: "spd", AdminProject: true, Roles: []string{"service"},
			},
		},
	}})
	require.NoError(t, err)

	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Auth-Token", "alice")
	alice := auth.Caller{
		Name: "alice", ID: "keystone/u1", Role: auth.Member, UserID: "u1", UserDomain: "ud", Project: "p1", ProjectDomain: "pd", Roles: []string{"operator"},
	}

	caller, err := authenticator.Authenticate(r)
	require.NoError(t, err)
	require.Equal(t, alice, caller)

	r.Header.Set("X-Service-Token", "nova")
	alice.ServiceUser, alice.ServiceUserDomain, alice.ServiceProject, alice.ServiceProjectDomain = "u2", "sud", "p2", "spd"
	alice.ServiceRoles = []string{"service"}
	caller, err = authenticator.Authenticate(r)
	require.NoError(t, err)
	require.Equal(t, alice, caller)
}
