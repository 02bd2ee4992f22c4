package web

import (
	"net"
	"net/http"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// GuardBrowsers returns a middleware that keeps foreign web pages from acting
// through their visitor's browser. It refuses requests that change something
// and come from a page of another origin. If no credential is needed (open), it
// also refuses those that only ask: the page cannot read the answer, but what it
// costs to give it. And it refuses every request that addresses this server by a name that is
// neither one of loopback nor one of more (the names in its certificate, and
// those that are configured): a page could have made the name up
// (DNS rebinding), and the browser of a visitor reaches a loopback listener
// without any credential.
func GuardBrowsers(open bool, more ...string) func(http.Handler) http.Handler {
	crossOrigin := http.NewCrossOriginProtection()
	names := map[string]bool{"localhost": true}
	for _, name := range more {
		names[strings.ToLower(name)] = true
	}

	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if name := hostName(r.Host); open && !names[name] && !net.ParseIP(name).IsLoopback() {
				WriteError(w, r, cyborg.Errorf(cyborg.ErrForbidden, "this server is not called %q", r.Host).
					WithHint("Call it 127.0.0.1 or localhost, or have callers prove who they are."))
				return
			}

			if open && foreign(r) {
				WriteError(w, r, cyborg.Errorf(cyborg.ErrForbidden, "a web page of another origin may ask nothing here").
					WithHint("Enter the URL yourself."))
				return
			}

			if err := crossOrigin.Check(r); err != nil {
				WriteError(w, r, cyborg.Errorf(cyborg.ErrForbidden, "a web page of another origin may not do this: %w", err))
				return
			}

			next.ServeHTTP(w, r)
		})
	}
}

// foreign reports whether a browser says that a page of another origin makes the
// request. Another program says nothing.
func foreign(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return false
	}
	return true
}

// hostName returns the name in a Host header, without its port, in lower case.
func hostName(hostPort string) string {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = hostPort
	}

	return strings.ToLower(strings.Trim(host, "[]"))
}
