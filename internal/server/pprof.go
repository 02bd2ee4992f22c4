package server

import (
	"context"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/cyborg-project/cyborg/api"
)

// profileLimit is how long a profile may be taken.
const profileLimit = 10 * time.Minute

// profiles serves what go tool pprof asks for.
func (s *server) profiles() Part {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return Part{Name: "profiles", Run: func(ctx context.Context) error {
		return api.Serve(ctx, s.Listeners.pprof, mux, api.ServeOptions{Write: profileLimit, Log: s.Log})
	}}
}
