package v2

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/api/web"
)

// Prefix is the path that the routes are below. Upstream's links lead below
// linkPrefix, whatever path the service itself is at, so the same routes are
// served there too.
const (
	Prefix     = "/v2"
	linkPrefix = "/accelerator/v2"
)

// bareTable lists the collections that upstream also serves without /v2 in
// front. Upstream's fifth, devices, is missing here: /devices without a prefix
// is a list of /v1.
var bareTable = []string{"accelerator_requests", "attributes", "deployables", "device_profiles"}

// Route is one kind of request that the API serves.
type Route struct {
	Method  string
	Pattern string      // path below Prefix
	Rule    string      // policy rule that guards the route, under upstream's name
	Handle  web.Handler // called for authenticated callers whom the rule allows
}

// Within reports whether this API serves the path, and returns the part below
// Prefix. A slash at the end is removed, and so is ".json", which upstream
// takes for a choice of the content type.
func Within(path string) (string, bool) {
	rest, below := strings.CutPrefix(path, linkPrefix)
	if !below {
		rest, below = strings.CutPrefix(path, Prefix)
	}

	if !below {
		first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		rest, below = path, slices.Contains(bareTable, strings.TrimSuffix(first, ".json"))
	} else {
		rest = strings.TrimPrefix(rest, ".0") // "/v2.0": clients may use the version's id as the path
	}

	rest = strings.TrimSuffix(rest, "/")
	if rest != documentPath {
		rest = strings.TrimSuffix(rest, ".json")
	}

	return rest, below && (rest == "" || rest[0] == '/')
}

// ServeHTTP serves the paths that Within accepts. It checks in upstream's
// order, so that a wrong request gets the same error: authentication,
// microversion, permission, and then the request itself.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	web.Handler(func(w http.ResponseWriter, r *http.Request) error {
		path, _ := Within(r.URL.Path)
		public := r.Method == http.MethodGet && (path == "" || path == documentPath)

		if !public {
			caller, err := a.authenticator.Authenticate(r)
			if err != nil {
				return err
			}

			web.SetIdentity(r.Context(), caller.Identity())
			ctx := limiter.WithClass(auth.WithCaller(r.Context(), caller), web.LimiterClass(r.Method))

			// Nova gives up an instance at any refusal, so requests of services wait for
			// admission instead.
			if caller.Service() && r.Header.Get(serviceTokenHeader) != "" {
				var cancel context.CancelFunc
				ctx, cancel = a.neverRefuse(ctx, r.Method)
				defer cancel()
			}

			r = r.WithContext(ctx)
		}

		r, err := negotiate(w, r)
		if err != nil {
			return err
		}

		// The router sees the path below Prefix. The URL is copied, because a handler
		// must not change the one it was given.
		inner := *r.URL
		inner.Path, inner.RawPath = path+"/", "" // chi needs a path that is not empty
		if path != "" {
			inner.Path = path
		}

		r.URL = &inner

		a.router.ServeHTTP(w, r)
		return nil
	}).ServeHTTP(w, r)
}

// serviceTokenHeader carries the token of a service that asks on behalf of a
// user.
const serviceTokenHeader = "X-Service-Token"

// neverRefuse makes the requests of services such as Nova wait for admission
// instead of being refused when the server is busy, but no longer than a bind
// may take. A PATCH waits just as long, but its context has no deadline: a bind
// that ran out of time must still be recorded as failed.
func (a *API) neverRefuse(ctx context.Context, method string) (context.Context, context.CancelFunc) {
	if method == http.MethodPatch {
		return limiter.NeverRefuseBefore(ctx, time.Now().Add(a.config.BindTimeout)), func() {}
	}

	return context.WithTimeout(limiter.NeverRefuse(ctx), a.config.BindTimeout)
}

// newRouter makes the router from Routes, so that no route is without a policy
// rule.
func (a *API) newRouter() *chi.Mux {
	router := chi.NewRouter()
	router.Method(http.MethodGet, "/", named(Prefix, a.showVersion))
	router.Method(http.MethodGet, documentPath, named(Prefix+documentPath, a.showDocument))

	for _, route := range a.Routes() {
		router.Method(route.Method, route.Pattern, named(Prefix+route.Pattern, a.permitted(route)))
	}

	router.NotFound(func(w http.ResponseWriter, r *http.Request) { web.WriteError(w, r, noSuchPath()) })

	router.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		// Upstream has no GET for the actions below a member, such as
		// /devices/ID/enable, and answers them with 404, not 405.
		const ofOne = 2 // slashes in the path of one member
		if r.Method == http.MethodGet && strings.Count(r.URL.Path, "/") > ofOne {
			web.WriteError(w, r, noSuchPath())
			return
		}

		web.WriteError(w, r, wrongMethod(r.Method))
	})

	return router
}

// named sets the route's pattern, for metrics and logs, before the handler
// runs.
func named(pattern string, handle web.Handler) http.Handler {
	return web.Handler(func(w http.ResponseWriter, r *http.Request) error {
		web.SetRoute(r.Context(), pattern)
		return handle(w, r)
	})
}

// permitted checks the Accept header, the policy rule and the Content-Type, in
// this order, before it calls the handler.
func (a *API) permitted(route Route) web.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := acceptsJSON(r); err != nil {
			return err
		}
		if err := a.policy.Check(r.Context(), route.Rule); err != nil {
			return err
		}
		if err := sendsJSON(r); err != nil {
			return err
		}

		return route.Handle(w, r)
	}
}

// acceptsJSON rejects a request that does not accept JSON. As in upstream,
// weights in the Accept header are not considered.
func acceptsJSON(r *http.Request) error {
	ranges := r.Header.Values("Accept")
	if len(ranges) == 0 {
		return nil
	}

	for part := range strings.SplitSeq(strings.Join(ranges, ","), ",") {
		name, _, _ := strings.Cut(part, ";")
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "", "*/*", "application/*", "application/json":
			return nil
		}
	}

	return notAcceptable("The answers are application/json, and the header Accept is %q.", web.Shorten(strings.Join(ranges, ",")))
}

// sendsJSON rejects a body whose Content-Type is not JSON.
func sendsJSON(r *http.Request) error {
	given := r.Header.Get("Content-Type")
	name, _, _ := strings.Cut(given, ";")

	if r.ContentLength == 0 || strings.EqualFold(strings.TrimSpace(name), "application/json") {
		return nil
	}

	return web.WithStatus(cyborg.Errorf(cyborg.ErrInvalid, "Unknown mimetype: %s", web.Shorten(given)).
		WithHint("Send application/json."), http.StatusUnsupportedMediaType)
}
