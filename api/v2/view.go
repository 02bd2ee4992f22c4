package v2

import (
	"net/http"
	"strings"
	"time"
)

// timeLayout is how upstream writes times: in UTC, with the offset in numbers.
const timeLayout = "2006-01-02T15:04:05-07:00"

type linkView struct {
	Href string `json:"href"`
	Rel  string `json:"rel"`
}

// base is the address that links begin with: the configured one, else that of the request.
func (a *API) base(r *http.Request) string {
	if a.config.PublicEndpoint != "" {
		return strings.TrimSuffix(a.config.PublicEndpoint, "/")
	}
	return requestHost(r)
}

func requestHost(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

// selfLink links to one thing of a collection.
func (a *API) selfLink(r *http.Request, collection, id string) linkView {
	return linkView{Href: a.base(r) + linkPrefix + "/" + collection + "/" + id, Rel: "self"}
}

// viewTime shows a time; nil for the zero time, which becomes null.
func viewTime(at time.Time) *string {
	if at.IsZero() {
		return nil
	}
	text := at.UTC().Format(timeLayout)
	return &text
}

// orNull is nil for an empty text, which becomes null.
func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// each shows every one of a list; never nil, so that an empty list is one.
func each[T, V any](values []T, view func(T) V) []V {
	out := make([]V, len(values))
	for i, value := range values {
		out[i] = view(value)
	}
	return out
}
