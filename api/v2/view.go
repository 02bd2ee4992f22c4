package v2

import (
	"net/http"
	"strings"
	"time"
)

// timeLayout is upstream's format of times: UTC, with a numeric offset.
const timeLayout = "2006-01-02T15:04:05-07:00"

// linkView is a link as OpenStack's APIs show it.
type linkView struct {
	Href string `json:"href"`
	Rel  string `json:"rel"`
}

// base returns the address that links begin with: the configured one, or that
// of the request.
func (a *API) base(r *http.Request) string {
	if a.config.PublicEndpoint != "" {
		return strings.TrimSuffix(a.config.PublicEndpoint, "/")
	}
	return requestHost(r)
}

// requestHost returns the scheme and host that the request was sent to.
func requestHost(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// selfLink returns the link to one member of a collection.
func (a *API) selfLink(r *http.Request, collection, id string) linkView {
	return linkView{Href: a.base(r) + linkPrefix + "/" + collection + "/" + id, Rel: "self"}
}

// viewTime formats a time; it returns nil for the zero time, so that it becomes
// null in JSON.
func viewTime(at time.Time) *string {
	if at.IsZero() {
		return nil
	}
	text := at.UTC().Format(timeLayout)
	return &text
}

// orNull returns nil for an empty text, so that it becomes null in JSON.
func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// each converts every value of a list. The result is never nil, so that an
// empty list becomes [] and not null.
func each[T, V any](values []T, view func(T) V) []V {
	out := make([]V, len(values))
	for i, value := range values {
		out[i] = view(value)
	}
	return out
}
