package pki

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
)

// temporalLeaf is what a held certificate is to hold.
func temporalLeaf(life time.Duration, names ...string) Leaf {
	return Leaf{Identity: identity.Identity{TrustDomain: "lab", Role: identity.Server, Name: "temporal"}, DNS: names, Valid: life}
}

// TestHeldCertificateIsRenewedWhileItsHolderRuns: at two thirds of its life. The
// key stays, because the holder may have derived something from it.
func TestHeldCertificateIsRenewedWhileItsHolderRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	read := func() tls.Certificate {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "t.pem"), filepath.Join(dir, "t.pem"))
		require.NoError(t, err)
		return pair
	}

	synctest.Test(t, func(t *testing.T) {
		authority, err := Make(filepath.Join(dir, "ca"))
		require.NoError(t, err)
		held, err := authority.Hold(filepath.Join(dir, "t.pem"), temporalLeaf(24*time.Hour, "a"))
		require.NoError(t, err)
		first := read()

		ctx, stop := context.WithCancel(t.Context())
		go held.Run(ctx, slog.New(slog.DiscardHandler))
		<-time.After(15 * time.Hour)
		require.Equal(t, first.Leaf.Raw, read().Leaf.Raw)
		<-time.After(2 * time.Hour)
		second := read()
		require.True(t, second.Leaf.NotAfter.After(first.Leaf.NotAfter))
		require.Equal(t, first.PrivateKey, second.PrivateKey)
		stop()
		synctest.Wait() // it may be looking at the file at this moment

		// What else has it made anew keeps the key, but not another authority.
		_, err = authority.Hold(filepath.Join(dir, "t.pem"), temporalLeaf(24*time.Hour, "b"))
		require.NoError(t, err)
		require.Equal(t, []string{"b"}, read().Leaf.DNSNames)
		require.Equal(t, first.PrivateKey, read().PrivateKey)

		other, err := Make(filepath.Join(dir, "ca2"))
		require.NoError(t, err)
		_, err = other.Hold(filepath.Join(dir, "t.pem"), temporalLeaf(24*time.Hour, "b"))
		require.NoError(t, err)
		require.NotEqual(t, first.PrivateKey, read().PrivateKey)
	})
}

// TestHeldCertificateThatCannotBeRead: the file stays as it is, because the key in it
// may be good.
func TestHeldCertificateThatCannotBeRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	authority, err := Make(filepath.Join(dir, "ca"))
	require.NoError(t, err)
	path := filepath.Join(dir, "t.pem")
	require.NoError(t, os.Symlink(path, path)) // for root, too, there is nothing to read

	_, err = authority.Hold(path, temporalLeaf(24*time.Hour))
	require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "cannot be read, and stays as it is")
	link, err := os.Readlink(path)
	require.NoError(t, err)
	require.Equal(t, path, link)

	// What is broken is replaced.
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, []byte("half"), 0o600))
	_, err = authority.Hold(path, temporalLeaf(24*time.Hour))
	require.NoError(t, err)
	_, err = tls.LoadX509KeyPair(path, path)
	require.NoError(t, err)
}

// TestAuthorityOfAnotherTime: an authority that was made under a wrong clock signs
// nothing that anybody would accept, and says what to do. What it has signed before
// goes on: the clock may be wrong only now.
func TestAuthorityOfAnotherTime(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, from := range map[string]time.Time{"past": now.Add(-2 * AuthorityLife), "future": now.Add(AuthorityLife)} {
		dir := t.TempDir()
		made, err := Make(dir)
		require.NoError(t, err)
		there := filepath.Join(dir, "there.pem")
		_, err = made.Hold(there, temporalLeaf(AuthorityLife))
		require.NoError(t, err)
		before, err := os.ReadFile(there)
		require.NoError(t, err)
		der, err := signItself(made.key, from, from.Add(AuthorityLife))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(made.CertificateFile(), pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: der}), 0o600))

		authority, err := Make(dir)
		require.NoError(t, err)
		_, err = authority.Hold(filepath.Join(dir, "t.pem"), temporalLeaf(AuthorityLife))
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), name)
		require.ErrorContains(t, err, "and now it is ", name)
		require.Contains(t, cyborg.AsError(err).Hint, map[string]string{"past": "The authority has ended", "future": "Look at this machine's clock"}[name])

		held, err := authority.Hold(there, temporalLeaf(AuthorityLife, "another"))
		require.NoError(t, err)
		after, err := os.ReadFile(there)
		require.NoError(t, err)
		require.Equal(t, before, after, name)

		var out bytes.Buffer
		ended, end := context.WithCancel(t.Context())
		end()
		held.Run(ended, slog.New(slog.NewTextHandler(&out, nil)))
		require.Contains(t, out.String(), "a certificate cannot be renewed", "at once")
		require.Contains(t, out.String(), "and now it is ", name)
	}
}
