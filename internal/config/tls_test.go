package config_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
)

// authority signs certificates for one test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

// newAuthority makes an authority and writes its certificate as ca.crt.
func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}

	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)

	a := &authority{cert: cert, key: key, dir: t.TempDir()}
	a.write(t, a.file("ca.crt"), "CERTIFICATE", der)
	return a
}

// file is the path of one of the authority's files.
func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// write writes a PEM file.
func (a *authority) write(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// issue writes a certificate for the common name, and its key, as name.crt and
// name.key.
func (a *authority) issue(t *testing.T, name, commonName string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)

	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: commonName},
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}

	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	require.NoError(t, err)
	a.write(t, a.file(name+".crt"), "CERTIFICATE", der)

	der, err = x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	a.write(t, a.file(name+".key"), "EC PRIVATE KEY", der)
}

// shake makes one connection and returns the common names of the certificates:
// the server's as the client saw it, and the client's as the server saw it.
func shake(t *testing.T, server, client *tls.Config) (atClient, atServer string, err error) {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", server)
	require.NoError(t, err)
	defer listener.Close()

	type seen struct {
		name string
		err  error
	}

	done := make(chan seen, 1)
	go func() {
		accepted, err := listener.Accept()
		if err != nil {
			done <- seen{err: err}
			return
		}
		defer accepted.Close()

		connection, ok := accepted.(*tls.Conn)
		if !ok {
			done <- seen{err: net.ErrClosed}
			return
		}

		err = connection.HandshakeContext(t.Context())

		name := ""
		if peers := connection.ConnectionState().PeerCertificates; len(peers) > 0 {
			name = peers[0].Subject.CommonName
		}
		done <- seen{name: name, err: err}
	}()

	connection, err := tls.Dial("tcp", listener.Addr().String(), client)
	if err == nil {
		defer connection.Close()
		atClient = connection.ConnectionState().PeerCertificates[0].Subject.CommonName
	}

	other := <-done
	if err == nil {
		err = other.err
	}
	return atClient, other.name, err
}

// TestMutualTLS: each side accepts only a peer whose certificate its authority
// has signed.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.issue(t, "server", "server")
	a.issue(t, "agent", "host-1")

	server, err := config.ServerTLS{Cert: a.file("server.crt"), Key: a.file("server.key"), ClientCA: a.file("ca.crt")}.
		Listener(tls.RequireAndVerifyClientCert)
	require.NoError(t, err)

	client, err := config.ClientTLS{Cert: a.file("agent.crt"), Key: a.file("agent.key"), CA: a.file("ca.crt")}.Client()
	require.NoError(t, err)

	atClient, atServer, err := shake(t, server, client)
	require.NoError(t, err)
	require.Equal(t, "server", atClient)
	require.Equal(t, "host-1", atServer)

	nameless, err := config.ClientTLS{CA: a.file("ca.crt")}.Client()
	require.NoError(t, err)
	_, _, err = shake(t, server, nameless)
	require.Error(t, err, "a client without a certificate is refused")

	stranger, err := config.ClientTLS{}.Client()
	require.NoError(t, err)
	_, _, err = shake(t, server, stranger)
	require.Error(t, err, "the system's authorities did not sign the server's certificate")
}

// TestACertificateIsReplacedWithoutARestart: a new pair of files is used from
// the next connection on, and an unusable one never.
func TestACertificateIsReplacedWithoutARestart(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.issue(t, "server", "old")
	server, err := config.ServerTLS{Cert: a.file("server.crt"), Key: a.file("server.key")}.Listener(tls.NoClientCert)
	require.NoError(t, err)
	client, err := config.ClientTLS{CA: a.file("ca.crt")}.Client()
	require.NoError(t, err)

	name, _, err := shake(t, server, client)
	require.NoError(t, err)
	require.Equal(t, "old", name)

	require.NoError(t, os.WriteFile(a.file("server.crt"), []byte("half written"), 0o600))
	name, _, err = shake(t, server, client)
	require.NoError(t, err, "the last good pair stays in use")
	require.Equal(t, "old", name)

	a.issue(t, "server", "new")
	later := time.Now().Add(time.Second) // some file systems keep times in whole seconds
	require.NoError(t, os.Chtimes(a.file("server.crt"), later, later))
	name, _, err = shake(t, server, client)
	require.NoError(t, err)
	require.Equal(t, "new", name)
}

func TestUnusableTLSIsRefused(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.issue(t, "one", "one")
	a.issue(t, "two", "two")
	none, err := config.ServerTLS{}.Listener(tls.NoClientCert)
	require.NoError(t, err)
	require.Nil(t, none)

	_, err = config.ServerTLS{Cert: a.file("one.crt"), Key: a.file("two.key")}.Listener(tls.NoClientCert)
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))

	_, err = config.ClientTLS{Cert: a.file("one.crt"), Key: a.file("missing")}.Client()
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))

	for _, file := range []string{"missing", "one.key"} {
		_, err = config.ClientTLS{CA: a.file(file)}.Client()
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), file)
	}
}

// A listener may be addressed by the names in its certificate.
func TestNamesOfTheCertificate(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.issue(t, "server", "server")
	given := config.ServerTLS{Cert: a.file("server.crt"), Key: a.file("server.key")}
	require.Equal(t, []string{"127.0.0.1"}, given.Names())
	require.Empty(t, config.ServerTLS{}.Names())
	require.Empty(t, config.ServerTLS{Cert: "/nowhere", Key: "/nowhere"}.Names())
}
