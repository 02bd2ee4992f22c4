package openstack

import (
	"net/http"
	"time"
)

// IdleTimeout gives tests the transport with the idle timeout.
func IdleTimeout(limit time.Duration, next http.RoundTripper) http.RoundTripper {
	return &idleTimeout{limit: limit, next: next}
}
