package web_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/api/web"
)

func TestClientNetwork(t *testing.T) {
	t.Parallel()
	for remote, network := range map[string]string{
		"192.0.2.7:1234":              "192.0.2.7",
		"[::ffff:192.0.2.7]:1234":     "192.0.2.7",
		"[2001:db8:1:2:3:4:5:6]:1234": "2001:db8:1:2::/64",
		"[2001:db8:1:2:ffff::1]:1":    "2001:db8:1:2::/64",
		"[2001:db8:1:3::1]:1":         "2001:db8:1:3::/64",
		"[fe80::1%eth0]:1":            "fe80::/64",
		"@":                           "@",
	} {
		request := httptest.NewRequest(http.MethodGet, "/", nil)
		request.RemoteAddr = remote
		require.Equal(t, network, web.ClientNetwork(request), remote)
	}
}
