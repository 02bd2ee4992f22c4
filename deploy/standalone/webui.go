package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/server"
)

const (
	// uiConnections is how many connections the Web UI takes at once. A browser opens
	// six, and who looks at Temporal are few people.
	uiConnections = 100
	// uiGrace is how long a request may take when the process stops. What the UI shows
	// is Temporal's, so nothing is lost with it.
	uiGrace = time.Second
)

// serveUI serves Temporal's Web UI until the context ends. Every user of the machine
// can connect to it, so it has the bounds of the API.
func serveUI(ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger) error {
	return api.Serve(ctx, listener, handler, api.ServeOptions{Connections: uiConnections, Grace: uiGrace, Name: "ui", Log: log})
}

// uiGuard returns the middleware in front of Temporal's Web UI. Where the API
// asks who its callers are, the UI does too: a browser sends a static token of the
// API as the password of HTTP Basic, because it has no other way to send one.
// Everybody with a token may look; only an admin may change something.
//
// The UI listens on loopback, where web pages reach it through their visitor's
// browser. So requests of foreign pages are refused in any case.
func uiGuard(c *config.Config) (func(http.Handler) http.Handler, error) {
	open := len(c.API.Tokens) == 0 && c.API.TLS.ClientCA == "" && !c.Keystone.Enabled
	browsers := web.GuardBrowsers(open)
	if open {
		return func(ui http.Handler) http.Handler { return web.Identified(browsers(ui)) }, nil
	}

	callers, err := auth.New(auth.Config{Tokens: server.Tokens(c.API)})
	if err != nil {
		return nil, err
	}

	return func(ui http.Handler) http.Handler {
		if len(c.API.Tokens) == 0 {
			return web.Identified(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				web.WriteError(w, r, cyborg.Errorf(cyborg.ErrForbidden, "a browser can show neither a token of Keystone nor a client certificate here").
					WithHint("To see Temporal's Web UI, add a token with the role reader to api.tokens, and give it as the password."))
			}))
		}
		return web.Identified(browsers(asked(callers, ui)))
	}, nil
}

// asked returns the UI behind the question for a token.
func asked(callers *auth.Authenticator, ui http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, token, _ := r.BasicAuth()
		attempt := r.Clone(r.Context())
		attempt.Header = http.Header{"X-Auth-Token": {token}}

		caller, err := callers.Authenticate(attempt)
		if err != nil {
			wrong := "Temporal's Web UI asks for a token of the API"
			if token != "" {
				wrong = "the password is no token of the API"
			}
			web.WriteError(w, r, askPassword{cyborg.Errorf(cyborg.ErrUnauthenticated, "%s", wrong).
				WithHint("Give one of api.tokens as the password; the user name does not matter.")})
			return
		}

		needed := auth.Admin
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			needed = auth.Reader
		}
		if !caller.Role.Includes(needed) {
			web.WriteError(w, r, cyborg.Errorf(cyborg.ErrForbidden, "the token %s has the role %s, and this needs %s", caller.Name, caller.Role, needed))
			return
		}

		// The UI would send the password on to Temporal.
		r.Header.Del("Authorization")
		ui.ServeHTTP(w, r)
	})
}

// askPassword is the error that has a browser ask its user for a token.
type askPassword struct{ error }

func (a askPassword) Unwrap() error { return a.error }

// Challenges returns the value of the header WWW-Authenticate.
func (askPassword) Challenges() []string {
	return []string{`Basic realm="Temporal of Cyborg: a token of the API is the password", charset="UTF-8"`}
}
