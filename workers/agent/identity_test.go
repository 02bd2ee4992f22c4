package agent

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/agentapi"
	whois "github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/statedir"
)

// The instance of an agent in a process of its own is that of a proof, which
// only the owner of the state directory can make.
func TestAgentsProveTheirInstance(t *testing.T) {
	t.Parallel()
	const bootID = "4f5d4a3e-8b5e-4f0c-9d0e-0a8a3c9f2b11"
	root := t.TempDir()
	boot := filepath.Join(root, "proc/sys/kernel/random")
	require.NoError(t, os.MkdirAll(boot, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(boot, "boot_id"), []byte(bootID+"\n"), 0o600))
	stateDir := filepath.Join(t.TempDir(), "state")
	dir, err := statedir.Open(stateDir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dir.Close()) })

	known := func() []string {
		t.Helper()
		instances, err := Instances(root, stateDir)
		require.NoError(t, err)
		return instances
	}

	inProcess := func(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed }
	inside, err := (&Agent{config: Config{Endpoints: []string{"http://conductor"}}, deps: Deps{Dial: inProcess}}).identify(bootID, dir)
	require.NoError(t, err)
	require.Contains(t, known(), inside.instance)
	require.Empty(t, inside.proof)
	require.False(t, agentapi.HasNoProof(inside.instance))

	// A conductor does not always ask for the certificate.
	authorities, err := pki.Make(filepath.Join(t.TempDir(), "ca"))
	require.NoError(t, err)
	held, err := authorities.Hold(filepath.Join(t.TempDir(), "agent.pem"), pki.Leaf{
		Identity: whois.Identity{TrustDomain: whois.DefaultTrustDomain, Role: whois.Host, Name: "h1"},
	})
	require.NoError(t, err)
	certificate, err := pki.NewClient(pki.ClientOptions{Files: held.Files()})
	require.NoError(t, err)
	var first identity
	for _, agent := range []*Agent{
		{config: Config{Endpoints: []string{"http://a"}}},
		{config: Config{TLS: &pki.Client{}, Endpoints: []string{"https://a"}}},
		{config: Config{TLS: certificate, Endpoints: []string{"https://a"}}},
	} {
		own, err := agent.identify(bootID, dir)
		require.NoError(t, err)
		require.Contains(t, known(), own.instance)
		require.False(t, agentapi.HasNoProof(own.instance))
		require.Equal(t, own.instance, agentapi.ProvenInstance(own.proof))
		if first.instance == "" {
			first = own
		}
		require.Equal(t, first, own, "a restart keeps it")
	}

	// Nobody else can read the key, and another one makes another agent.
	key := filepath.Join(stateDir, keyName)
	info, err := os.Stat(key)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	require.NoError(t, os.WriteFile(key, nil, 0o600))
	other, err := (&Agent{config: Config{Endpoints: []string{"http://a"}}}).identify(bootID, dir)
	require.NoError(t, err)
	require.NotEqual(t, first.instance, other.instance)
	require.NotEqual(t, first.proof, other.proof)
}
