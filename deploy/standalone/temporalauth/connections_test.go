package temporalauth

import (
	"bytes"
	"crypto/x509"
	"errors"
	"log/slog"
	"math"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/identity"
)

// pipes is a listener whose clients are in the process.
type pipes struct{ net.Listener }

func (pipes) Accept() (net.Conn, error) {
	server, _ := net.Pipe()
	return server, nil
}

// open accepts a connection, which counts for whom it is once its handshake is over.
func (c *connections) open(t *testing.T) *connection {
	t.Helper()
	accepted, err := c.Accept()
	require.NoError(t, err)
	return accepted.(*connection)
}

// isOpen says whether a connection was left alone.
func (c *connection) isOpen() bool {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	return !c.closed
}

// TestConnectionsAreBounded: whoever opens connections without end, and shows no
// certificate there, takes no more files than the frontend may have, locks nobody
// out, and closes nobody's connection who has shown one.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	c := &connections{Listener: pipes{}, limit: 3}

	known := c.open(t)
	require.NoError(t, known.identify(as(host, "h1")))
	first, second := c.open(t), c.open(t)
	third := c.open(t)
	require.False(t, first.isOpen(), "it has waited for longest")
	require.True(t, known.isOpen() && second.isOpen() && third.isOpen())
	require.ErrorIs(t, first.identify(as(host, "h1")), net.ErrClosed)
	require.Equal(t, 3, c.count)

	require.NoError(t, second.identify(as(host, "h2")))
	require.NoError(t, third.identify(as(host, "h3")))
	fourth := c.open(t)
	require.False(t, fourth.isOpen(), "all others are known")

	for _, one := range []*connection{known, known, second, third} { // gRPC closes some twice
		require.NoError(t, one.Close())
	}
	require.Zero(t, c.count)
	require.Zero(t, c.fresh.Len())
	require.Empty(t, c.of.of, "what has ended costs no memory")
}

// TestConnectionsOfOneAreBounded: one certificate gets only so many connections,
// unless it is that of a server, and takes none from others.
func TestConnectionsOfOneAreBounded(t *testing.T) {
	t.Parallel()
	revoked := as(host, "gone")
	revoked.err = cyborg.Errorf(cyborg.ErrForbidden, "it is revoked")
	pretended := as(server, "gone")
	pretended.err = revoked.err

	for _, who := range []caller{as(host, "h1"), as(identity.Admin, "a"), as(identity.Member, "m"), revoked, pretended, {err: revoked.err}} {
		c := &connections{Listener: pipes{}, limit: 10 * mostOfOne}
		last := c.open(t)
		require.NoError(t, last.identify(who))
		for range mostOfOne - 1 {
			require.NoError(t, c.open(t).identify(who))
		}
		further := c.open(t)
		require.ErrorContains(t, further.identify(who), "has 20 connections open already", "%s", who)
		require.NoError(t, further.Close())
		require.NoError(t, c.open(t).identify(as(host, "another")))
		require.NoError(t, c.open(t).identify(as(host, "gone")), "the host has a new certificate")

		require.NoError(t, last.Close())
		require.NoError(t, c.open(t).identify(who))
	}

	c := &connections{Listener: pipes{}, limit: 10 * mostOfOne}
	for range 2 * mostOfOne {
		require.NoError(t, c.open(t).identify(as(server, "s")))
		require.NoError(t, c.open(t).identify(caller{self: true}))
	}
}

// TestRefusedConnectionsAreClosed: what is open under a certificate that is refused by
// now keeps nothing from the same host's agent with its next one, and nobody else
// loses a connection.
func TestRefusedConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	config, revoked := settings(), map[*x509.Certificate]bool{}
	config.Refuse = func(certificate *x509.Certificate) error {
		if revoked[certificate] {
			return cyborg.Errorf(cyborg.ErrForbidden, "it is revoked")
		}
		return nil
	}
	g, err := New(config)
	require.NoError(t, err)
	c := g.bound(pipes{}).(*connections)

	with := func(role identity.Role, name string) (caller, *connection) {
		who, one := as(role, name), c.open(t)
		who.certificate = &x509.Certificate{}
		require.NoError(t, one.identify(who))
		return who, one
	}
	gone, first := with(host, "h1")
	for range mostOfOne - 1 {
		require.NoError(t, c.open(t).identify(gone))
	}
	_, other := with(host, "h2")
	_, s := with(server, "s1")
	nobody := c.open(t)
	require.NoError(t, nobody.identify(caller{err: errors.New("no certificate")}))
	waiting := c.open(t)
	ctx := first.begin(t.Context())

	g.CloseRefused()
	require.True(t, first.isOpen())

	revoked[gone.certificate] = true
	g.CloseRefused()
	require.False(t, first.isOpen())
	require.Error(t, ctx.Err(), "its calls end")
	for _, one := range []*connection{other, s, nobody, waiting} {
		require.True(t, one.isOpen())
	}
	with(host, "h1")
	require.Len(t, c.shown, 3, "what has ended costs no memory")
}

// TestFewFilesAreTold: where the process may not open enough files for the connections
// of the frontend, there are fewer, and it is told which limit does that.
func TestFewFilesAreTold(t *testing.T) {
	t.Parallel()
	var told []uint64
	tell := func(clamped int, files uint64) { told = append(told, uint64(clamped), files) }

	require.Equal(t, 1, clampToFiles(1, shareOfFiles, tell))
	require.Empty(t, told)

	clamped := clampToFiles(math.MaxInt32, shareOfFiles, tell) // no machine allows six times as many files
	require.Len(t, told, 2)
	require.Equal(t, []uint64{uint64(clamped), told[1]}, told)
	require.Equal(t, told[1]/shareOfFiles, told[0])

	var log bytes.Buffer
	g := newGuard(t)
	g.log = slog.New(slog.NewTextHandler(&log, nil))
	few := g.bound(pipes{}).(*connections).limit < mostConnections
	require.Equal(t, few, strings.Contains(log.String(), "level=WARN") && strings.Contains(log.String(), "open_files_needed=120000"), &log)
}
