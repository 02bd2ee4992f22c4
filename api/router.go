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

// server is what the handlers of this package share.
type server struct {
	auth     *auth.Authenticator
	names    []string // further names by which it may be addressed without credentials
	v1       *v1.API
	v2       *v2.API // nil where it is not served
	registry Registry
	ready    readiness
	document []byte // the OpenAPI document of /v1, as JSON
}

// route is one request that the server answers, with the role that it needs.
type route struct {
	method  string
	paths   []string // the first is its name in logs and metrics
	role    auth.Role
	handler http.Handler
}

// routes lists everything that is served outside /v2. The router is made from
// this list, so no route can be served without a role.
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

// handler returns the handler of everything. /v2 has its own router, because
// its paths, methods and errors follow OpenStack's rules.
func (s *server) handler() http.Handler {
	guard := web.GuardBrowsers(s.auth.Open(), s.names...)
	router := guard(s.router())
	if s.v2 == nil {
		return router
	}

	openStack := v2.WithErrors(guard(s.v2))

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := v2.Within(r.URL.Path); ok {
			openStack.ServeHTTP(w, r)
			return
		}
		router.ServeHTTP(w, r)
	})
}

// router returns the router of everything outside /v2.
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

// authorized returns the route's handler behind a check of the caller: only
// callers whose role includes the route's role pass. Public routes do not look
// at the caller at all.
func (s *server) authorized(of route) http.Handler {
	return web.Handler(func(w http.ResponseWriter, r *http.Request) error {
		web.SetRoute(r.Context(), of.paths[0])

		if of.role != auth.Public {
			caller, err := s.auth.Authenticate(r)
			if err != nil {
				return err
			}

			web.SetIdentity(r.Context(), caller.Identity())
			asked := r
			ctx := auth.WithProof(auth.WithCaller(r.Context(), caller), func() (auth.Caller, error) { return s.auth.Authenticate(asked) })
			r = r.WithContext(ctx)

			if err := auth.Require(ctx, of.role, of.method+" "+of.paths[0]); err != nil {
				return err
			}
		}

		of.handler.ServeHTTP(w, r)
		return nil
	})
}

// methodsAt lists the methods with which the path can be requested, for the
// header Allow.
func methodsAt(router chi.Routes, path string) []string {
	path = "/" + strings.Trim(path, "/")
	var methods []string

	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"} {
		// HEAD is served by the handler of GET, and is unknown to the router itself.
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
