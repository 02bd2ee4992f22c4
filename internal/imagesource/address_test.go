package imagesource

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// TestLocalAddressesAreRefused: whoever controls an allowed name could point it
// to a service on this machine, or to a cloud's metadata service.
func TestLocalAddressesAreRefused(t *testing.T) {
	t.Parallel()
	for ip, local := range map[string]bool{
		"127.0.0.1": true, "127.9.9.9": true, "::1": true, "::ffff:127.0.0.1": true, "0.0.0.0": true, "::": true,
		"169.254.169.254": true, "fe80::1": true, "224.0.0.1": true, "ff02::1": true,
		"0.1.2.3": true, "fe80::1%eth0": true, "64:ff9b::7f00:1": true, "64:ff9b::a9fe:a9fe": true, "2002:7f00:1::": true, "::127.0.0.1": true,
		"fd00:ec2::254": true, "100.100.100.200": true, "192.0.0.192": true, "64:ff9b::c000:207": false, "2002:c000:207::1": false,
		"192.0.2.7": false, "10.1.2.3": false, "2001:db8::7": false,
	} {
		err := refuseLocal("images.example.org")(t.Context(), "tcp", net.JoinHostPort(ip, "443"), nil)
		if local {
			require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(err), ip)
		} else {
			require.NoError(t, err, ip)
		}
	}
}
