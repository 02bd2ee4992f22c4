package peeruser_test

import (
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/leaktest"
	"github.com/cyborg-project/cyborg/internal/needtest"
	"github.com/cyborg-project/cyborg/internal/peeruser"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// accepted listens at the address, has dial connect with it, and returns both
// ends.
func accepted(t *testing.T, network, listen string, dial func(address string) net.Conn) (here, there net.Conn) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), network, listen)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })

	there = dial(listener.Addr().String())
	here, err = listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, here.Close()) })
	return here, there
}

// requireAlike requires that both ways say the same of the other end, where the
// kernel answers questions.
func requireAlike(t *testing.T, here net.Conn, user uint32, open bool) {
	t.Helper()
	asked, searched, isOpen := peeruser.Both(here.LocalAddr().String(), here.RemoteAddr().String())
	require.Equal(t, open, isOpen[1])
	if open {
		require.Equal(t, user, searched)
	}
	if isOpen[0] {
		require.True(t, open)
		require.Equal(t, user, asked)
	}
}

// TestOf: the other end of a connection is this user's, while it is open.
func TestOf(t *testing.T) {
	t.Parallel()
	for network, listen := range map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0"} {
		if _, err := os.Stat("/proc/net/if_inet6"); err != nil && network == "tcp6" {
			continue // this machine has no IPv6
		}

		here, there := accepted(t, network, listen, func(address string) net.Conn {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), network, address)
			require.NoError(t, err)
			return conn
		})

		user, err := peeruser.Of(here.LocalAddr().String(), here.RemoteAddr().String())
		require.NoError(t, err)
		require.Equal(t, uint32(os.Geteuid()), user)
		requireAlike(t, here, user, true)

		// Who has sent something and is gone is nobody, and not root.
		require.NoError(t, there.Close())
		require.Eventually(t, func() bool { // a program that begins at this moment has it, too, until it runs
			_, err = peeruser.Of(here.LocalAddr().String(), here.RemoteAddr().String())
			return cyborg.ErrorKindOf(err) == cyborg.ErrUnavailable
		}, time.Minute, time.Millisecond)
		requireAlike(t, here, 0, false)
	}

	for _, peer := range []string{"127.0.0.1:1", "192.0.2.1:1234", "", "@", "localhost:80"} {
		_, err := peeruser.Of("127.0.0.1:6667", peer)
		require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err), peer)
	}
}

// TestOfWithoutAnswers: a kernel that answers no questions, or none about TCP, has the
// tables. Where it answers, nobody who closes connections has them read.
func TestOfWithoutAnswers(t *testing.T) {
	t.Parallel()
	here, there := accepted(t, "tcp4", "127.0.0.1:0", func(address string) net.Conn {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp4", address)
		require.NoError(t, err)
		return conn
	})
	defer there.Close()
	local, peer := here.LocalAddr().String(), here.RemoteAddr().String()
	for _, answer := range peeruser.NoAnswers() {
		user, searched, err := peeruser.Without(local, peer, answer)
		require.NoError(t, err)
		require.True(t, searched)
		require.Equal(t, uint32(os.Geteuid()), user)
	}
	_, _, err := peeruser.Without(local, peer, syscall.EPERM)
	require.ErrorIs(t, err, syscall.EPERM)

	if _, _, open := peeruser.Both(local, peer); !open[0] {
		return // this kernel answers none
	}
	_, searched, err := peeruser.Without(local, peer, nil)
	require.NoError(t, err)
	require.False(t, searched)

	_, searched, err = peeruser.Without(local, "127.0.0.1:1", nil)
	require.ErrorIs(t, err, syscall.ENOENT)
	require.False(t, searched, "there is no such end, but a listener here")
}

// TestOfIPv4ByIPv6: a program that knows IPv6 only may have an IPv4 connection.
func TestOfIPv4ByIPv6(t *testing.T) {
	t.Parallel()
	here, there := accepted(t, "tcp4", "127.0.0.1:0", func(address string) net.Conn {
		to, err := net.ResolveTCPAddr("tcp4", address)
		require.NoError(t, err)
		socket, err := syscall.Socket(syscall.AF_INET6, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, syscall.Connect(socket, &syscall.SockaddrInet6{Port: to.Port, Addr: [16]byte(to.IP.To16())}))
		file := os.NewFile(uintptr(socket), "socket")
		conn, err := net.FileConn(file)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		return conn
	})

	user, err := peeruser.Of(here.LocalAddr().String(), here.RemoteAddr().String())
	require.NoError(t, err)
	require.Equal(t, uint32(os.Geteuid()), user)
	requireAlike(t, here, user, true)
	require.NoError(t, there.Close())
}

// TestOfAnotherUser: root sees whose the other end is.
func TestOfAnotherUser(t *testing.T) {
	t.Parallel()
	needtest.Root(t) // who becomes another user

	const nobody = 65534
	here, _ := accepted(t, "tcp4", "127.0.0.1:0", func(address string) net.Conn {
		_, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		other := exec.CommandContext(t.Context(), "/bin/bash", "-c", `exec 3<>"/dev/tcp/127.0.0.1/$1"; read -r line <&3`, "bash", port)
		other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		require.NoError(t, other.Start())
		t.Cleanup(func() {
			_ = other.Process.Kill() // it may have ended
			_ = other.Wait()         // it was killed
		})
		return nil
	})

	user, err := peeruser.Of(here.LocalAddr().String(), here.RemoteAddr().String())
	require.NoError(t, err)
	require.Equal(t, uint32(nobody), user)
	requireAlike(t, here, user, true)
}
