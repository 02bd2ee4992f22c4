package api

import (
	"net"
	"net/http"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// guardBrowsers keeps foreign web pages from acting through their visitor's
// browser. It refuses requests that change something and come from a page of
// another origin. If no credential is needed, it also refuses every request
// that addresses this server by a name that is not its own: the browser of a
// visitor reaches the loopback listener without any credential.
func (s *server) guardBrowsers(next http.Handler) http.Handler {
	crossOrigin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.auth.Open() && !s.names[hostName(r.Host)] {
			web.WriteError(w, r, cyborg.Errorf(cyborg.ErrForbidden, "this server is not called %q", r.Host).
				WithHint("Call it 127.0.0.1 or localhost, or configure tokens."))
			return
		}

		if err := crossOrigin.Check(r); err != nil {
			web.WriteError(w, r, cyborg.Errorf(cyborg.ErrForbidden, "a web page of another origin may not do this: %w", err))
			return
		}

		next.ServeHTTP(w, r)
	})
}

// loopbackNames returns the names by which a listener without credentials may
// be addressed.
func loopbackNames(more []string) map[string]bool {
	names := map[string]bool{"localhost": true, "127.0.0.1": true, "::1": true}
	for _, name := range more {
		names[strings.ToLower(name)] = true
	}

	return names
}

// hostName returns the name in a Host header, without its port, in lower case.
func hostName(hostPort string) string {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = hostPort
	}

	return strings.ToLower(strings.Trim(host, "[]"))
}
