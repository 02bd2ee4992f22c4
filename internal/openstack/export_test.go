package openstack

import (
	"net/http"
	"time"
)

// Patience is what a session's requests go through.
func Patience(limit time.Duration, next http.RoundTripper) http.RoundTripper {
	return &patience{limit: limit, next: next}
}
