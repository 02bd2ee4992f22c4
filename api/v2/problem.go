package v2

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// errorMessage is the body of an error. Upstream has two forms: the message of
// an error that a handler raised is itself JSON; the message of an error that
// the router raised is plain text (openstack/cyborg
// api/middleware/parsable_error.py).
type errorMessage struct {
	Message string `json:"error_message"`
}

// routerError is an error whose message is a plain text, as upstream's router
// writes it.
type routerError struct {
	error

	text string
}

// Unwrap returns the error itself, so that its kind and status are found.
func (e *routerError) Unwrap() error { return e.error }

// withText gives an error a status and upstream's plain text.
func withText(err *cyborg.Error, status int, text string) error {
	return &routerError{error: web.WithStatus(err, status), text: text}
}

// noSuchPath is the error for a path that has no route.
func noSuchPath() error {
	return withText(cyborg.Errorf(cyborg.ErrNotFound, "there is no such path"), http.StatusNotFound,
		"404 Not Found\n\nThe resource could not be found.\n\n   ")
}

// wrongMethod is the error for a path whose routes do not have the method.
func wrongMethod(method string) error {
	return withText(cyborg.Errorf(cyborg.ErrInvalid, "the path does not know %s", web.Shorten(method)), http.StatusMethodNotAllowed,
		fmt.Sprintf("405 Method Not Allowed\n\nThe method %s is not allowed for this resource. \n\n ", web.Shorten(method)))
}

// notAcceptable is the error for a version or a content type that is not
// supported.
func notAcceptable(format string, args ...any) error {
	reason := fmt.Sprintf(format, args...)
	return withText(cyborg.Errorf(cyborg.ErrInvalid, "%s", reason), http.StatusNotAcceptable,
		"406 Not Acceptable\n\n"+reason+"\n\n ")
}

// WithErrors makes all errors of the handler have the bodies that clients of
// upstream expect, including errors that are raised outside of this package.
func WithErrors(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		web.SetErrorBody(r.Context(), errorBody)
		next.ServeHTTP(w, r)
	})
}

// errorBody returns the body of an error in upstream's form. A 401 has a form
// of its own, because upstream leaves it to Keystone's middleware in front of
// the service.
func errorBody(given error, problem web.Problem) any {
	if problem.Status == http.StatusUnauthorized {
		return map[string]any{"error": map[string]any{"code": problem.Status, "title": "Unauthorized", "message": sentence(problem)}}
	}

	if plain, ok := errors.AsType[*routerError](given); ok {
		return errorMessage{plain.text}
	}

	// WSME, upstream's framework, calls a caller's mistake Client and everything
	// else Server.
	code := "Client"
	if problem.Status >= http.StatusInternalServerError {
		code = "Server"
	}

	text, err := json.Marshal(sentence(problem))
	if err != nil { // a string always marshals
		panic(err)
	}

	return errorMessage{fmt.Sprintf(`{"faultcode": "%s", "faultstring": %s, "debuginfo": null}`, code, text)}
}

// sentence returns the problem's detail, followed by its hint if there is one.
func sentence(problem web.Problem) string {
	if problem.Hint == "" {
		return problem.Detail
	}
	return problem.Detail + ". " + problem.Hint
}
