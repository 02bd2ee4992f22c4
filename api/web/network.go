package web

import (
	"net"
	"net/http"
	"net/netip"
)

// ClientNetwork returns where a request comes from, for shares that nobody may
// have several of: the address, or of IPv6 the network of 64 bits, because one
// machine may choose any address in it.
func ClientNetwork(r *http.Request) string {
	const bits = 64

	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}

	address, err := netip.ParseAddr(host)
	if err != nil {
		return host // a name, or a socket
	}

	address = address.Unmap()
	if address.Is4() {
		return address.String()
	}
	return netip.PrefixFrom(address.WithZone(""), bits).Masked().String()
}
