package v2

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/api/web"
)

// Prefix is where the routes live. Links of upstream's documents lead below linkPrefix, whatever the service's place, so
// the same is served there.
const (
	Prefix     = "/v2"
	linkPrefix = "/accelerator/v2"
)

// bareTable are the first segments that upstream looks up below /v2 where they come without it. Its fifth, devices, is a
// list of /v1 here.
var bareTable = []string{"accelerator_requests", "attributes", "deployables", "device_profiles"}

// Route is one request that the API answers to whom policy lets.
type Route struct {
	Method  string
	Pattern string // below Prefix
	Rule    string // of policy, named as upstream names it
	Handle  web.Handler
}

// Within returns the path below Prefix, and whether it is there: without the slash at its end, and without the ".json"
// that upstream takes for a choice of content type.
func Within(path string) (string, bool) {
	rest, below := strings.CutPrefix(path, linkPrefix)
	if !below {
		rest, below = strings.CutPrefix(path, Prefix)
	}
	if !below {
		first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		rest, below = path, slices.Contains(bareTable, strings.TrimSuffix(first, ".json"))
	} else {
		rest = strings.TrimPrefix(rest, ".0") // the version's id, as /v2 tells it
	}
	if rest = strings.TrimSuffix(rest, "/"); rest != documentPath {
		rest = strings.TrimSuffix(rest, ".json")
	}
	return rest, below && (rest == "" || rest[0] == '/')
}

// ServeHTTP answers whatever Within says is here, in upstream's order: who asks, in which microversion, whether they
// may, and then what they ask.
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
			ctx := limiter.WithClass(auth.WithCaller(r.Context(), caller), limiter.ClassOf(r.Method))
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
		inner := *r.URL
		inner.Path, inner.RawPath = path+"/", "" // chi wants a path
		if path != "" {
			inner.Path = path
		}
		r.URL = &inner
		a.router.ServeHTTP(w, r)
		return nil
	}).ServeHTTP(w, r)
}

// serviceTokenHeader has the token of a service that asks for somebody.
const serviceTokenHeader = "X-Service-Token"

// patiently is for what a service such as Nova asks: it waits for its turn, since Nova gives up an instance at any refusal,
// but no longer than a bind may take. A bind looks at its time itself, and records when that is over.
func (a *API) neverRefuse(ctx context.Context, method string) (context.Context, context.CancelFunc) {
	if ctx = limiter.NeverRefuse(ctx); method == http.MethodPatch {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, a.config.BindTimeout)
}

// newRouter makes the router from the table, so that no route is without a rule.
func (a *API) newRouter() *chi.Mux {
	router := chi.NewRouter()
	router.Method(http.MethodGet, "/", named(Prefix, a.showVersion))
	router.Method(http.MethodGet, documentPath, named(Prefix+documentPath, a.showDocument))
	for _, route := range a.Routes() {
		router.Method(route.Method, route.Pattern, named(Prefix+route.Pattern, a.permitted(route)))
	}
	router.NotFound(func(w http.ResponseWriter, r *http.Request) { web.WriteError(w, r, noSuchPath()) })
	router.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		const ofOne = 2 // slashes; what is below one thing is an action, and upstream knows no reading of those
		if r.Method == http.MethodGet && strings.Count(r.URL.Path, "/") > ofOne {
			web.WriteError(w, r, noSuchPath())
			return
		}
		web.WriteError(w, r, wrongMethod(r.Method))
	})
	return router
}

func named(pattern string, handle web.Handler) http.Handler {
	return web.Handler(func(w http.ResponseWriter, r *http.Request) error {
		web.SetRoute(r.Context(), pattern)
		return handle(w, r)
	})
}

// permitted lets those through whom the route's rule lets.
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

// acceptsJSON refuses what asks for another answer than JSON.
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

// sendsJSON refuses a body that says to be something else than JSON.
func sendsJSON(r *http.Request) error {
	given := r.Header.Get("Content-Type")
	name, _, _ := strings.Cut(given, ";")
	if r.ContentLength == 0 || strings.EqualFold(strings.TrimSpace(name), "application/json") {
		return nil
	}
	return web.WithStatus(cyborg.Errorf(cyborg.ErrInvalid, "Unknown mimetype: %s", web.Shorten(given)).
		WithHint("Send application/json."), http.StatusUnsupportedMediaType)
}
