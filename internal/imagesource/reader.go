package imagesource

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
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
		return n, cyborg.Errorf(cyborg.Unavailable, "image source %s sent nothing for %s", r.source, r.silence)
	}
	if int64(n) > r.left {
		n = int(r.left)
		r.left = 0
		return n, tooLarge(r.source, r.max)
	}
	r.left -= int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		return n, cyborg.Errorf(cyborg.Unavailable, "image source %s broke off: %w", r.source, err)
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
		ip = ip.Unmap()
		if ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() || ip.IsMulticast() {
			return cyborg.Errorf(cyborg.Forbidden, "image source %s is at %s, an address of this machine or its link", name, ip).
				WithHint("If that is meant, allow the address itself in images.allow.")
		}
		return nil
	}
}
