package server

import (
	"context"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/cyborg-project/cyborg/api"
	"github.com/cyborg-project/cyborg/api/web"
)

// profileLimit bounds the time for one answer, and with it the length of a
// profile.
const profileLimit = 10 * time.Minute

// profiles returns the part that serves go tool pprof on server.pprof_listen.
func (s *server) profiles() Part {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)

	// The listener is on loopback and asks for no credential.
	handler := web.GuardBrowsers(true)(mux)

	return Part{Name: "profiles", Run: func(ctx context.Context) error {
		return api.Serve(ctx, s.Listeners.pprof, handler, api.ServeOptions{Write: profileLimit, Connections: 20, Log: s.Log})
	}}
}
