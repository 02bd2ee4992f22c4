package api

import (
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	v1 "github.com/cyborg-project/cyborg/api/v1"
	v2 "github.com/cyborg-project/cyborg/api/v2"
	"github.com/cyborg-project/cyborg/api/web"
)

type server struct {
	auth     *auth.Authenticator
	names    map[string]bool
	v1       *v1.API
	v2       *v2.API // nil where it is not served
	registry Registry
	ready    readiness
	document []byte
}

// route is one request that the server answers, with the role it needs.
type route struct {
	method  string
	paths   []string // the first names it
	role    auth.Role
	handler http.Handler
}

// routes is the table of everything that is served; the router is made from it, so nothing is without a role.
func (s *server) routes() []route {
	metrics := promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{})
	table := []route{
		{"GET", []string{"/"}, auth.Public, web.Handler(s.versions)},
		{"GET", []string{"/v1"}, auth.Public, web.Handler(s.version)},
		{"GET", []string{"/openapi.json"}, auth.Public, web.Handler(s.openAPI)},
		{"GET", []string{"/openapi.yaml"}, auth.Public, web.Handler(s.openAPISource)},
		{"GET", []string{"/healthz"}, auth.Public, web.Handler(healthz)},
		{"GET", []string{"/readyz"}, auth.Public, web.Handler(s.ready.serve)},
		{"GET", []string{"/metrics"}, auth.Reader, metrics},
	}
	for _, r := range s.v1.Routes() {
		table = append(table, route{r.Method, r.Paths(), r.Role, r.Handle})
	}
	return table
}

// handler serves /v2 apart from everything else: its paths, methods and errors follow rules of their own.
func (s *server) handler() http.Handler {
	router := s.guardBrowsers(s.router())
	if s.v2 == nil {
		return router
	}
	openStack := v2.WithErrors(s.guardBrowsers(s.v2))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := v2.Within(r.URL.Path); ok {
			openStack.ServeHTTP(w, r)
			return
		}
		router.ServeHTTP(w, r)
	})
}

func (s *server) router() *chi.Mux {
	router := chi.NewRouter()
	router.Use(middleware.StripSlashes, middleware.GetHead)
	for _, r := range s.routes() {
		handler := s.authorized(r)
		for _, path := range r.paths {
			router.Method(r.method, path, handler)
		}
	}
	router.NotFound(func(w http.ResponseWriter, r *http.Request) {
		web.WriteError(w, r, cyborg.Errorf(cyborg.ErrNotFound, "there is nothing at %s", r.URL.Path).
			WithHint("GET /openapi.json lists what there is."))
	})
	router.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		allowed := strings.Join(methodsAt(router, r.URL.Path), ", ")
		w.Header().Set("Allow", allowed)
		web.WriteError(w, r, web.MethodNotAllowed(r, allowed))
	})
	return router
}

// authorized lets the callers through whose role includes the route's.
func (s *server) authorized(of route) http.Handler {
	return web.Handler(func(w http.ResponseWriter, r *http.Request) error {
		web.SetRoute(r.Context(), of.paths[0])
		if of.role != auth.Public {
			caller, err := s.auth.Authenticate(r)
			if err != nil {
				return err
			}
			web.SetIdentity(r.Context(), caller.Identity())
			ctx := auth.WithCaller(r.Context(), caller)
			r = r.WithContext(ctx)
			if err := auth.Require(ctx, of.role, of.method+" "+of.paths[0]); err != nil {
				return err
			}
		}
		of.handler.ServeHTTP(w, r)
		return nil
	})
}

// methodsAt lists the methods that the path knows.
func methodsAt(router chi.Routes, path string) []string {
	path = "/" + strings.Trim(path, "/")
	var methods []string
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"} {
		tried := method
		if method == "HEAD" {
			tried = "GET"
		}
		if router.Match(chi.NewRouteContext(), tried, path) {
			methods = append(methods, method)
		}
	}
	return methods
}
