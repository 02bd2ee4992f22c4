package imagesource

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// Whoever controls an allowed name could point it at what listens on this machine, or at a cloud's metadata service.
func TestNamesOfThisMachineAreRefused(t *testing.T) {
	t.Parallel()
	for ip, local := range map[string]bool{
		"127.0.0.1": true, "127.9.9.9": true, "::1": true, "::ffff:127.0.0.1": true, "0.0.0.0": true, "::": true,
		"169.254.169.254": true, "fe80::1": true, "224.0.0.1": true, "ff02::1": true,
		"192.0.2.7": false, "10.1.2.3": false, "2001:db8::7": false,
	} {
		err := refuseLocal("images.example.org")(t.Context(), "tcp", net.JoinHostPort(ip, "443"), nil)
		if local {
			require.Equal(t, cyborg.Forbidden, cyborg.KindOf(err), ip)
		} else {
			require.NoError(t, err, ip)
		}
	}
}
