package config_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
)

// A listener may be addressed by the names in its certificate.
func TestNamesOfTheCertificate(t *testing.T) {
	t.Parallel()
	authority, err := pki.Make(filepath.Join(t.TempDir(), "ca"))
	require.NoError(t, err)
	certificate, key, err := authority.IssuePair(pki.Leaf{
		Identity: identity.Identity{TrustDomain: "cyborg", Role: identity.Server, Name: "s1"},
		DNS:      []string{"cyborg.example.org"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "server.pem")
	require.NoError(t, os.WriteFile(path, append(certificate, key...), 0o600))

	require.Equal(t, []string{"cyborg.example.org", "127.0.0.1"}, config.ServerTLS{Cert: path, Key: path}.Names())
	require.Empty(t, config.ServerTLS{}.Names())
	require.Empty(t, config.ServerTLS{Cert: "/nowhere", Key: "/nowhere"}.Names())
}

func TestAuthoritiesOfOpenStack(t *testing.T) {
	t.Parallel()
	none, err := config.OpenStack{}.Authorities()
	require.NoError(t, err)
	require.Nil(t, none, "those of the system")

	_, err = config.OpenStack{CAFile: "/nowhere"}.Authorities()
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
}
