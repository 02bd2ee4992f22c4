package v1

import (
	"net/http"
	"strings"

	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/web"
)

// Prefix is where the routes live; the seed contract has them without a prefix too.
const Prefix = "/v1"

// Route is one request that the API answers.
type Route struct {
	Method  string
	Pattern string // below Prefix
	Role    auth.Role
	Handle  web.Handler
}

// Paths lists the patterns under which the route is served: with the prefix and without, and the seed's singular for
// the plural. The first is the one that the OpenAPI document, metrics and links name.
func (r Route) Paths() []string {
	paths := []string{Prefix + r.Pattern, r.Pattern}
	if rest, ok := strings.CutPrefix(r.Pattern, "/accelerators"); ok {
		paths = append(paths, Prefix+"/accelerator"+rest, "/accelerator"+rest)
	}
	return paths
}

// canonicalPath is the path of a request as the first of its route's patterns would have it, so that the same request
// under another alias is the same.
func canonicalPath(r *http.Request) string {
	path := "/" + strings.Trim(strings.TrimPrefix(r.URL.EscapedPath(), Prefix+"/"), "/")
	if rest, ok := strings.CutPrefix(path, "/accelerator"); ok && (rest == "" || rest[0] == '/') {
		path = "/accelerators" + rest
	}
	return Prefix + path
}
