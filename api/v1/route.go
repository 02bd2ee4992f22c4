package v1

import (
	"net/http"
	"strings"

	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/api/web"
)

// Prefix is the path below which the routes live. The seed contract has its
// routes without a prefix, so each route is served without it as well.
const Prefix = "/v1"

// Route is one request that the API answers.
type Route struct {
	Method  string
	Pattern string // the path below Prefix
	Role    auth.Role
	Handle  web.Handler
}

// Paths lists the patterns under which the route is served: with and without
// the prefix, and in the seed contract's singular. The first pattern is the one
// that the OpenAPI document, metrics and links use.
func (r Route) Paths() []string {
	paths := []string{Prefix + r.Pattern, r.Pattern}

	if rest, ok := strings.CutPrefix(r.Pattern, "/accelerators"); ok {
		paths = append(paths, Prefix+"/accelerator"+rest, "/accelerator"+rest)
	}

	return paths
}

// inClass returns the route with a handler that puts each request into the
// class of its HTTP method. The class decides which queue the request's calls
// of the store wait in.
func inClass(route Route) Route {
	class, handle := web.LimiterClass(route.Method), route.Handle
	route.Handle = func(w http.ResponseWriter, r *http.Request) error {
		return handle(w, r.WithContext(limiter.WithClass(r.Context(), class)))
	}
	return route
}

// canonicalPath returns the path of a request in the form of its route's first
// pattern. The fingerprint of an idempotent request uses it, so that a repeat
// under another alias is recognized.
func canonicalPath(r *http.Request) string {
	path := "/" + strings.Trim(strings.TrimPrefix(r.URL.EscapedPath(), Prefix+"/"), "/")

	if rest, ok := strings.CutPrefix(path, "/accelerator"); ok && (rest == "" || rest[0] == '/') {
		path = "/accelerators" + rest
	}

	return Prefix + path
}
