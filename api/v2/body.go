package v2

import (
	"net/http"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// body reads the request's body as JSON: objects as map[string]any, lists as
// []any, whole numbers as int64. The error is of kind ErrInvalid if the body is
// empty or no JSON.
func (a *API) body(w http.ResponseWriter, r *http.Request) (any, error) {
	text, err := web.ReadBody(w, r, a.config.BodyLimit)
	if err != nil {
		return nil, err
	}

	if strings.TrimSpace(string(text)) == "" {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the request has no body").WithHint("Send JSON.")
	}

	value, err := web.ParseJSON(text)
	if cyborg.ErrorKindOf(err) == cyborg.ErrInvalid {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "Request is not in valid JSON format: %s", err.Error())
	}

	return value, err
}

// object reads the body of a request that takes no arguments. The body must be
// a JSON object; its members are returned.
func (a *API) object(w http.ResponseWriter, r *http.Request) (map[string]any, error) {
	if q := readArguments(r); q.err != nil {
		return nil, q.err
	}

	body, err := a.body(w, r)
	if err != nil {
		return nil, err
	}

	members, ok := body.(map[string]any)
	if !ok {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the body is %s, not an object", web.Describe(body))
	}

	return members, nil
}

// ignoredBody reads and discards the body of a request that needs none. As in
// upstream, a body that is there must be JSON.
func (a *API) ignoredBody(w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength == 0 {
		return nil
	}
	_, err := a.body(w, r)
	return err
}

// writeEmpty answers with a status and no body.
func writeEmpty(w http.ResponseWriter, status int) error {
	if status != http.StatusNoContent { // RFC 9110 forbids a Content-Length on a 204
		w.Header().Set("Content-Length", "0")
	}
	w.WriteHeader(status)
	return nil
}
