package openstack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cyborg-project/cyborg"
)

// tokensPath is how the URLs end where Keystone gives out tokens and says whether
// they are good.
const tokensPath = "/auth/tokens" //nolint:gosec // the path of a URL

// longestReason is how much of a service's own error text is repeated, in
// characters.
const longestReason = 300

// Explain turns the error of a call to the service into a *cyborg.Error with a
// kind. It is ErrUnavailable if the service is away, overloaded, broken, or
// does not accept our own user. ErrNotFound, ErrChanged (409, 412), ErrInvalid
// and ErrTooLarge follow the status. An error that is explained already and an
// error of ctx stay as they are; nil stays nil. The cause is kept, so that
// gophercloud.ResponseCodeIs still finds the status.
func Explain(service string, err error) error {
	if err == nil {
		return nil
	}

	if explained, ok := errors.AsType[*cyborg.Error](err); ok {
		return explained
	}

	if locked, ok := errors.AsType[*gophercloud.ErrUnableToReauthenticate](err); ok { // this type has no Unwrap
		return Explain("identity", locked.ErrReauth)
	}

	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}

	answer, ok := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err)
	if !ok {
		return newError(cyborg.ErrUnavailable, err, "the service %s does not answer: %v", service, innermost(err)).
			WithHint("Check that it runs and that this server reaches it.")
	}

	// What was wrong with a login may be told with the password in it, and with a
	// token, with the token.
	said := ""
	if path, _, _ := strings.Cut(answer.URL, "?"); !strings.HasSuffix(path, tokensPath) {
		said = reason(answer.Body)
	}

	kind := kindOfStatus(answer.Actual)
	explained := newError(kind, err, "the service %s answered %d to %s %s%s", service, answer.Actual, answer.Method, answer.URL, said+
		requestIDText(answer.ResponseHeader))

	if answer.Actual == http.StatusUnauthorized || answer.Actual == http.StatusForbidden {
		return explained.WithHint("Give the server's own user (openstack.username) the roles that it needs; see docs/openstack.md.")
	}

	return explained
}

// requestIDText returns the service's own id of the request, as a part of a
// sentence, so that its log can be searched.
func requestIDText(header http.Header) string {
	if id := requestIDIn(header); id != "" {
		return " (its request " + cyborg.Sanitize(id, 100) + ")"
	}
	return ""
}

// kindOfStatus maps the status of a service's answer to the kind of error that
// our caller sees. A refusal of our own user (401, 403) is not the caller's
// fault, so it becomes ErrUnavailable like a failure of the service. That makes
// it another table than the kindOfStatus of our own clients, workers/agent and
// internal/apiclient.
func kindOfStatus(status int) cyborg.ErrorKind {
	switch status {
	case http.StatusNotFound:
		return cyborg.ErrNotFound
	case http.StatusConflict, http.StatusPreconditionFailed:
		return cyborg.ErrChanged
	case http.StatusRequestEntityTooLarge:
		return cyborg.ErrTooLarge
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return cyborg.ErrInvalid
	}
	return cyborg.ErrUnavailable
}

// cause is an error with a text of ours. It keeps the original error for
// errors.As.
type cause struct {
	text string
	err  error
}

// Error returns the text.
func (c *cause) Error() string { return c.text }

// Unwrap returns the original error.
func (c *cause) Unwrap() error { return c.err }

// newError makes an error of that kind from a text and its cause.
func newError(kind cyborg.ErrorKind, err error, format string, args ...any) *cyborg.Error {
	return cyborg.Errorf(kind, "%w", &cause{fmt.Sprintf(format, args...), err})
}

// innermost returns the root cause, without what each layer adds to the error
// of a failed connection.
func innermost(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// reason returns the service's own explanation of a refusal, in one line and
// with ": " in front. Keystone, Placement, Nova and Glance each use another
// shape of JSON; an unknown shape has no reason.
func reason(body []byte) string {
	var shapes struct {
		Error  struct{ Message string }  `json:"error"`
		Errors []struct{ Detail string } `json:"errors"`
	}

	text := ""
	if err := json.Unmarshal(body, &shapes); err == nil {
		text = shapes.Error.Message
		if len(shapes.Errors) > 0 {
			text = shapes.Errors[0].Detail
		}
	}

	if text == "" {
		var named map[string]struct{ Message string }
		if err := json.Unmarshal(body, &named); err == nil {
			for _, fault := range named {
				text = fault.Message
			}
		}
	}

	text = strings.Join(strings.Fields(text), " ")
	if text == "" {
		return ""
	}
	return ": " + cyborg.Sanitize(text, longestReason)
}
