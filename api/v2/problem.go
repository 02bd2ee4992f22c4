package v2

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// errorMessage is the body of an error. The text of one that a handler made is JSON itself; that of one that the router
// made is plain (openstack/cyborg api/middleware/parsable_error.py).
type errorMessage struct {
	Message string `json:"error_message"`
}

// routerError is an error that says itself what its body's text is.
type routerError struct {
	error

	text string
}

func (e *routerError) Unwrap() error { return e.error }

// withText gives the error a status and a plain text, in upstream's words.
func withText(err *cyborg.Error, status int, text string) error {
	return &routerError{error: web.WithStatus(err, status), text: text}
}

func noSuchPath() error {
	return withText(cyborg.Errorf(cyborg.ErrNotFound, "there is no such path"), http.StatusNotFound,
		"404 Not Found\n\nThe resource could not be found.\n\n   ")
}

func wrongMethod(method string) error {
	return withText(cyborg.Errorf(cyborg.ErrInvalid, "the path does not know %s", web.Shorten(method)), http.StatusMethodNotAllowed,
		fmt.Sprintf("405 Method Not Allowed\n\nThe method %s is not allowed for this resource. \n\n ", web.Shorten(method)))
}

func notAcceptable(format string, args ...any) error {
	reason := fmt.Sprintf(format, args...)
	return withText(cyborg.Errorf(cyborg.ErrInvalid, "%s", reason), http.StatusNotAcceptable,
		"406 Not Acceptable\n\n"+reason+"\n\n ")
}

// WithErrors gives all errors of what it wraps the bodies that clients of upstream know, also those made elsewhere.
func WithErrors(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		web.SetErrorBody(r.Context(), errorBody)
		next.ServeHTTP(w, r)
	})
}

// errorBody is an error as clients of upstream know it. Who they are is asked in front of upstream's service, by
// Keystone's middleware, which has another shape.
func errorBody(given error, problem web.Problem) any {
	if problem.Status == http.StatusUnauthorized {
		return map[string]any{"error": map[string]any{"code": problem.Status, "title": "Unauthorized", "message": sentence(problem)}}
	}
	if plain, ok := errors.AsType[*routerError](given); ok {
		return errorMessage{plain.text}
	}
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

// sentence is what was wrong and what to do.
func sentence(problem web.Problem) string {
	if problem.Hint == "" {
		return problem.Detail
	}
	return problem.Detail + ". " + problem.Hint
}
