package cacmd_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/cacmd"
	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/identity"
)

// run runs the command line, and returns the exit code and what was written.
func run(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	root := &cobra.Command{Use: "cyborg"}
	root.AddCommand(cacmd.Command())
	commandline.Prepare(root)
	var stdout, stderr bytes.Buffer
	code = commandline.Execute(t.Context(), root, args, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

// TestCA makes an authority and certificates, and looks at the files.
func TestCA(t *testing.T) {
	t.Parallel()
	dir, out := filepath.Join(t.TempDir(), "ca"), filepath.Join(t.TempDir(), "h1")

	code, _, errOut := run(t, "ca", "issue", "host", "h1", "--dir", dir, "--out", out)
	require.Equal(t, 3, code)
	require.Contains(t, errOut, "cyborg ca init")

	code, said, errOut := run(t, "ca", "init", "--dir", dir)
	require.Zero(t, code, errOut)
	require.Contains(t, said, "The authority is made")
	before, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	require.NoError(t, err)
	code, said, _ = run(t, "ca", "init", "--dir", dir)
	require.Zero(t, code)
	require.Contains(t, said, "stays as it is")
	after, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	require.NoError(t, err)
	require.Equal(t, before, after)

	code, _, errOut = run(t, "ca", "issue", "host", "h1", "--dir", dir, "--out", filepath.Join(dir, "ca"))
	require.Equal(t, 2, code)
	require.Contains(t, errOut, "is the authority itself")
	after, err = os.ReadFile(filepath.Join(dir, "ca.crt"))
	require.NoError(t, err)
	require.Equal(t, before, after)

	code, said, errOut = run(t, "ca", "issue", "host", "h1", "--dir", dir, "--out", out, "--dns", "h1.example.org", "--ip", "192.0.2.7", "--valid", "48h")
	require.Zero(t, code, errOut)
	require.NotContains(t, said, "PRIVATE KEY")
	info, err := os.Stat(out + ".key")
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())

	pair, err := tls.LoadX509KeyPair(out+".crt", out+".key")
	require.NoError(t, err)
	who, err := identity.OfCertificate(pair.Leaf, identity.DefaultTrustDomain)
	require.NoError(t, err)
	require.Equal(t, identity.Identity{TrustDomain: "cyborg", Role: identity.Host, Name: "h1"}, who)
	require.Equal(t, []string{"h1.example.org"}, pair.Leaf.DNSNames)
	require.Equal(t, "192.0.2.7", pair.Leaf.IPAddresses[0].String())
	require.WithinDuration(t, time.Now().Add(48*time.Hour), pair.Leaf.NotAfter, time.Minute)

	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(before))
	_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: pool})
	require.NoError(t, err)

	code, said, _ = run(t, "ca", "issue", "admin", "ada", "--dir", dir, "--out", "-", "--trust-domain", "lab")
	require.Zero(t, code)
	pair, err = tls.X509KeyPair([]byte(said), []byte(said))
	require.NoError(t, err, "whoever asks for it gets the key on standard output")
	require.Equal(t, "spiffe://lab/admin/ada", pair.Leaf.URIs[0].String())
}

// TestRequest: the key of a request stays where it was made.
func TestRequest(t *testing.T) {
	t.Parallel()
	dir, out, request := filepath.Join(t.TempDir(), "ca"), filepath.Join(t.TempDir(), "h1"), filepath.Join(t.TempDir(), "h1.csr")
	code, _, errOut := run(t, "ca", "init", "--dir", dir)
	require.Zero(t, code, errOut)

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{"h2"}}, key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(request, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), 0o600))

	code, _, errOut = run(t, "ca", "issue", "host", "h1", "--dir", dir, "--out", out, "--csr", request)
	require.Zero(t, code, errOut)
	require.NoFileExists(t, out+".key")
	text, err := os.ReadFile(out + ".crt")
	require.NoError(t, err)
	block, _ := pem.Decode(text)
	certificate, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	require.True(t, key.PublicKey.Equal(certificate.PublicKey))
	require.Empty(t, certificate.DNSNames)
	require.Equal(t, "spiffe://cyborg/host/h1", certificate.URIs[0].String())
}

// TestMistakes: nothing is written for a wrong command line.
func TestMistakes(t *testing.T) {
	t.Parallel()
	dir, out := filepath.Join(t.TempDir(), "ca"), filepath.Join(t.TempDir(), "x")
	code, _, errOut := run(t, "ca", "init", "--dir", dir)
	require.Zero(t, code, errOut)

	for _, args := range [][]string{
		{"host"},
		{"host", "h1", "more"},
		{"root", "h1"},
		{"host", "../h1"},
		{"admin", ".."},
		{"server", "s1"},
		{"server", "s1", "--csr", "/nowhere"},
		{"host", "h1", "--dns", "no name"},
		{"host", "h1", "--ip", "no address"},
		{"host", "h1", "--valid", "-1h"},
		{"host", "h1", "--trust-domain", "Lab"},
		{"host", "h1", "--csr", "/nowhere"},
		{"host", "h1", "--csr", filepath.Join(dir, "ca.crt")},
	} {
		code, said, errOut := run(t, append([]string{"ca", "issue", "--dir", dir, "--out", out}, args...)...)
		require.Equal(t, 2, code, "%v: %s", args, errOut)
		require.Empty(t, said)
		require.NotEmpty(t, errOut)
	}

	code, _, errOut = run(t, "ca", "issue", "host", "h1", "--dir", dir)
	require.Equal(t, 2, code, errOut)
	require.Contains(t, errOut, "--out")

	entries, err := os.ReadDir(filepath.Dir(out))
	require.NoError(t, err)
	require.Empty(t, entries)
}

// TestWhatIsSaidIsTrue: the authority cuts a life that is longer than its own, a
// certificate is no request, and the directories above that of the authority are
// open to others.
func TestWhatIsSaidIsTrue(t *testing.T) {
	t.Parallel()
	above := filepath.Join(t.TempDir(), "etc", "cyborg")
	dir, out := filepath.Join(above, "ca"), filepath.Join(t.TempDir(), "h1")
	code, _, errOut := run(t, "ca", "init", "--dir", dir)
	require.Zero(t, code, errOut)
	for path, mode := range map[string]os.FileMode{above: 0o755, dir: 0o700} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm(), path)
	}

	code, said, errOut := run(t, "ca", "issue", "host", "h1", "--dir", dir, "--out", out, "--valid", "1000000h")
	require.Zero(t, code, errOut)
	pair, err := tls.LoadX509KeyPair(out+".crt", out+".key")
	require.NoError(t, err)
	require.Contains(t, said, "valid until "+pair.Leaf.NotAfter.UTC().Format(time.RFC3339)+", when the authority ends.")
	_, said, _ = run(t, "ca", "issue", "host", "h1", "--dir", dir, "--out", out)
	require.NotContains(t, said, "when the authority ends")

	code, _, errOut = run(t, "ca", "issue", "host", "h1", "--dir", dir, "--out", out, "--csr", out+".crt")
	require.Equal(t, 2, code)
	require.Contains(t, errOut, `h1.crt holds no certificate request: it begins with "CERTIFICATE"`)
}
