package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/workers/agent"
)

// certificate writes a certificate that is good for these names and addresses.
func certificate(t *testing.T, names []string, addresses ...net.IP) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: names, IPAddresses: addresses,
	}

	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)

	path := filepath.Join(t.TempDir(), "cert.pem")
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return path
}

// TestAdvertisedURLMatchesTheCertificate: a URL that is printed must be one for
// which the certificate is good.
func TestAdvertisedURLMatchesTheCertificate(t *testing.T) {
	t.Parallel()
	named := certificate(t, []string{"*.example.org", "cyborg.example.org"}, net.IPv4(127, 0, 0, 1))
	numbered := certificate(t, nil, net.IPv4(192, 0, 2, 7))

	for _, c := range []struct{ listen, cert, want string }{
		{"127.0.0.1:6666", named, "127.0.0.1:6666"},
		{"0.0.0.0:6666", named, "cyborg.example.org:6666"},
		{":6666", named, "cyborg.example.org:6666"},
		{"[::]:6666", numbered, "192.0.2.7:6666"},
		{"192.0.2.7:6666", numbered, "192.0.2.7:6666"},
	} {
		require.Equal(t, c.want, advertised(c.listen, c.cert), c.listen)
	}
}

// TestSuggestions: the commands that are suggested fit what there is. Hardware
// that is not pretended is not handed out for a try.
func TestSuggestions(t *testing.T) {
	t.Parallel()
	pretended := func(kind cyborg.DeviceType) cyborg.Accelerator {
		return cyborg.Accelerator{
			Name: "x", Host: "fake", Driver: "fake", DeviceType: kind, Lifecycle: cyborg.LifecycleInactive, Presence: cyborg.PresencePresent,
			Admin: cyborg.AdministrationEnabled,
		}
	}

	hard, mine := pretended(cyborg.DeviceTypeFPGA), pretended(cyborg.DeviceTypeGPU)
	hard.Driver, mine.Name = "generic", firstName

	command := clientCommand()
	list := command + " accelerator list"
	s := &standalone{config: &config.Config{}}

	require.Equal(t, []string{
		list, command + " accelerator create my-first --device-type FPGA --host fake", command + " accelerator attach my-first",
	}, s.suggestions(apiclient.DefaultURL, []cyborg.Accelerator{pretended(cyborg.DeviceTypeGPU), pretended(cyborg.DeviceTypeFPGA)}))
	require.Equal(t, []string{list, command + " host list", command + " service list"},
		s.suggestions(apiclient.DefaultURL, []cyborg.Accelerator{hard}), "real hardware is not handed out for a try")
	require.Equal(t, []string{list, command + " accelerator history my-first", command + " operation list"},
		s.suggestions(apiclient.DefaultURL, []cyborg.Accelerator{pretended(cyborg.DeviceTypeFPGA), mine}), "the name is taken")

	s.config.API.Tokens = []config.Token{{}}
	require.Equal(t, []string{"export CYBORG_URL=http://127.0.0.1:7777", "export CYBORG_TOKEN=...   # one of api.tokens"},
		s.suggestions("http://127.0.0.1:7777", nil)[:2])
}

// TestResetCommandIsQuoted: the command that undoes a change must survive the
// shell.
func TestResetCommandIsQuoted(t *testing.T) {
	t.Parallel()
	want := agent.BackendConfig{Name: "pci", Options: map[string]any{
		"device_spec": []any{map[string]any{"address": "*"}}, "simulate": true,
	}}

	require.Equal(t, clientCommand()+` driver update h1 pci --option 'device_spec=[{"address":"*"}]' --option simulate=true`,
		reset("update h1 pci", want))

	require.True(t, sameOptions(nil, map[string]any{}))
	require.True(t, sameOptions(map[string]any{"n": 1}, map[string]any{"n": float64(1)}))
	require.False(t, sameOptions(map[string]any{"park": "1xgpu"}, map[string]any{"park": "2xgpu"}))
}
