package imagesource

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/cyborg-project/cyborg"
)

// reader reads an image of at most remaining bytes, and gives up when the
// transfer stands still.
type reader struct {
	content io.Reader
	closer  io.Closer
	cancel  context.CancelFunc
	source  string
	// remaining is how many more bytes may be read.
	remaining int64
	max       int64
	silence   time.Duration
}

// Read reads the next part. Errors are those of Open.
func (r *reader) Read(into []byte) (int, error) {
	// One byte more than allowed is read, to tell an image that is too large from
	// one that just fits.
	if int64(len(into)) > r.remaining+1 {
		into = into[:r.remaining+1]
	}

	still := time.AfterFunc(r.silence, r.cancel)
	n, err := r.content.Read(into)
	if !still.Stop() && err != nil {
		return n, cyborg.Errorf(cyborg.ErrUnavailable, "image source %s sent nothing for %s", r.source, r.silence)
	}

	if int64(n) > r.remaining {
		n = int(r.remaining)
		r.remaining = 0
		return n, tooLarge(r.source, r.max)
	}

	r.remaining -= int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		return n, cyborg.Errorf(cyborg.ErrUnavailable, "image source %s broke off: %w", r.source, err)
	}

	return n, err
}

// Close ends the transfer and releases the connection.
func (r *reader) Close() error {
	r.cancel()
	return r.closer.Close()
}

// refuseLocal returns the check of the address that a name resolved to, which
// the dialer calls right before it connects. The error is of kind ErrForbidden.
func refuseLocal(name string) func(ctx context.Context, network, address string, conn syscall.RawConn) error {
	return func(_ context.Context, _, address string, _ syscall.RawConn) error {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return err
		}
		ip, err := netip.ParseAddr(host)
		if err != nil {
			return err
		}

		ip = embeddedIPv4(ip)
		if isLocal(ip) {
			return cyborg.Errorf(cyborg.ErrForbidden, "image source %s is at %s, an address of this machine or its link", name, ip).
				WithHint("If that is meant, allow the address itself in images.allow.")
		}
		return nil
	}
}

// metadataTable lists the metadata services of clouds that are not at a
// link-local address: AWS over IPv6, Alibaba and Oracle. They hand out
// credentials to whoever asks from the machine.
var metadataTable = []netip.Addr{netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("192.0.0.192")}

// isLocal reports whether the address belongs to this machine, to its link, or
// to a cloud's metadata service.
func isLocal(ip netip.Addr) bool {
	return ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() || ip.IsMulticast() ||
		ip.Is4() && ip.As4()[0] == 0 || slices.Contains(metadataTable, ip.WithZone(""))
}

// embeddedIPv4 returns the IPv4 address to which an IPv6 address leads: mapped
// (RFC 4291), translated (64:ff9b::/96, RFC 6052), 6to4 (2002::/16, RFC 3056),
// or in the deprecated compatible form. Any other address is returned as it is.
// Without this an IPv6 notation would circumvent the check of the IPv4 address.
func embeddedIPv4(ip netip.Addr) netip.Addr {
	ip = ip.Unmap()
	if ip.Is4() || ip.IsLoopback() || ip.IsUnspecified() {
		return ip
	}

	bytes := ip.As16()

	switch {
	case netip.MustParsePrefix("64:ff9b::/96").Contains(ip), netip.MustParsePrefix("::/96").Contains(ip):
		return netip.AddrFrom4([4]byte(bytes[12:]))
	case netip.MustParsePrefix("2002::/16").Contains(ip):
		return netip.AddrFrom4([4]byte(bytes[2:6]))
	}

	return ip
}
