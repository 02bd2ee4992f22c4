package openstack_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/tests/openstack/rig"
)

// ask gets a URL with a user's token, asserts status 200, and decodes the
// answer.
func ask(t *testing.T, token, url string, into any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)

	request.Header.Set("X-Auth-Token", token)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()

	require.Equal(t, http.StatusOK, response.StatusCode, url)
	require.NoError(t, json.NewDecoder(response.Body).Decode(into))
}

// TestRig checks what the other tests expect of the rig: users, service
// catalog, compute nodes, an image and the client.
func TestRig(t *testing.T) {
	t.Parallel()
	r := rig.Up(t, rig.Nova)
	for _, who := range []string{"admin", "manager", "demo", "reader", "alt", "nova", "cyborg"} {
		require.NotEmpty(t, r.Token(t, who), who)
	}
	admin := r.Token(t, "admin")

	r.Alone(t)
	r.Announce(t, "http://127.0.0.1:1/v2")
	var catalog struct {
		Catalog []struct {
			Type      string
			Endpoints []struct{ URL string }
		}
	}

	ask(t, r.Token(t, "demo"), r.Keystone+"/auth/catalog", &catalog)
	urls := map[string]string{}
	for _, service := range catalog.Catalog {
		require.Len(t, service.Endpoints, 3, service.Type)
		urls[service.Type] = service.Endpoints[0].URL
	}

	require.Equal(t, "http://127.0.0.1:1/v2", urls["accelerator"])
	require.Equal(t, r.Placement, urls["placement"])

	var providers struct {
		Providers []struct{ Name string } `json:"resource_providers"`
	}
	ask(t, admin, r.Placement+"/resource_providers", &providers)

	var names []string
	for _, provider := range providers.Providers {
		names = append(names, provider.Name)
	}

	require.Subset(t, names, r.Computes, "Nova's hosts are in Placement")

	stdout, stderr, code := r.Client(t, "demo", "image", "show", "rig-image", "-f", "value", "-c", "id")
	require.Zero(t, code, stderr)
	require.Equal(t, r.Image+"\n", stdout)
}
