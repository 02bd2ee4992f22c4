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

// reader reads an image, no more than the limit, and gives up when it stands still.
type reader struct {
	content io.Reader
	closer  io.Closer
	cancel  context.CancelFunc
	source  string
	left    int64
	max     int64
	silence time.Duration
}

// Read reads the next part. Errors are those of Open.
func (r *reader) Read(into []byte) (int, error) {
	if int64(len(into)) > r.left+1 {
		into = into[:r.left+1] // one more than allowed tells too large from just right
	}
	still := time.AfterFunc(r.silence, r.cancel)
	n, err := r.content.Read(into)
	if !still.Stop() && err != nil {
		return n, cyborg.Errorf(cyborg.ErrUnavailable, "image source %s sent nothing for %s", r.source, r.silence)
	}
	if int64(n) > r.left {
		n = int(r.left)
		r.left = 0
		return n, tooLarge(r.source, r.max)
	}
	r.left -= int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		return n, cyborg.Errorf(cyborg.ErrUnavailable, "image source %s broke off: %w", r.source, err)
	}
	return n, err
}

// Close ends the transfer.
func (r *reader) Close() error {
	r.cancel()
	return r.closer.Close()
}

// refuseLocal is called with the address that a name resolved to, right before the connection.
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
		if ip = embedded(ip); isLocal(ip) {
			return cyborg.Errorf(cyborg.ErrForbidden, "image source %s is at %s, an address of this machine or its link", name, ip).
				WithHint("If that is meant, allow the address itself in images.allow.")
		}
		return nil
	}
}

// metadataTable are the addresses of clouds' metadata services that are not link-local: of AWS over IPv6, Alibaba and Oracle.
var metadataTable = []netip.Addr{netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("192.0.0.192")}

// isLocal says whether the address is of this machine, of its link, or of the service that tells a machine its secrets.
func isLocal(ip netip.Addr) bool {
	return ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() || ip.IsMulticast() ||
		ip.Is4() && ip.As4()[0] == 0 || slices.Contains(metadataTable, ip.WithZone(""))
}

// embedded is the IPv4 address that an IPv6 address leads to: mapped (RFC 4291), translated (64:ff9b::/96, RFC 6052), 6to4
// (2002::/16, RFC 3056), or in the old compatible form; else the address itself.
func embedded(ip netip.Addr) netip.Addr {
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
