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

// longestReason is how much of a service's own words is repeated, in characters.
const longestReason = 300

// Explain turns what went wrong in a call of the service into a *cyborg.Error with a kind: Unavailable where the service
// is away, overloaded, broken or does not accept our own user; ErrNotFound, Changed (409, 412), Invalid and ErrTooLarge as it
// answered. An error that is explained already, and the end of ctx, stay as they are; nil stays nil. The cause is kept,
// so that gophercloud.ResponseCodeIs still knows the status.
func Explain(service string, err error) error {
	if err == nil {
		return nil
	}
	if explained, ok := errors.AsType[*cyborg.Error](err); ok {
		return explained
	}
	if locked, ok := errors.AsType[*gophercloud.ErrUnableToReauthenticate](err); ok { // it does not unwrap
		return Explain("identity", locked.ErrReauth)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	answer, ok := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err)
	if !ok {
		return said(cyborg.ErrUnavailable, err, "the service %s does not answer: %v", service, innermost(err)).
			WithHint("Look whether it runs and whether this server reaches it.")
	}
	kind := kindOf(answer.Actual)
	explained := said(kind, err, "the service %s answered %d to %s %s%s", service, answer.Actual, answer.Method, answer.URL, reason(answer.Body)+
		theirs(answer.ResponseHeader))
	if answer.Actual == http.StatusUnauthorized || answer.Actual == http.StatusForbidden {
		return explained.WithHint("Give the server's own user (openstack.username) the roles that it needs; see docs/openstack.md.")
	}
	return explained
}

// theirs names the request as the service's own log does.
func theirs(header http.Header) string {
	if id := requestIDIn(header); id != "" {
		return " (its request " + cyborg.Sanitize(id, 100) + ")"
	}
	return ""
}

// kindOf is what a status means to whoever asked us to ask. What the service does not let us do is no fault of theirs.
func kindOf(status int) cyborg.ErrorKind {
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

// cause is an error with words of ours.
type cause struct {
	text string
	err  error
}

func (c *cause) Error() string { return c.text }
func (c *cause) Unwrap() error { return c.err }

func said(kind cyborg.ErrorKind, err error, format string, args ...any) *cyborg.Error {
	return cyborg.Errorf(kind, "%w", &cause{fmt.Sprintf(format, args...), err})
}

// innermost leaves out what each layer says around a failed connection.
func innermost(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// reason is what the service says of its refusal, in one line: Keystone, Placement, Nova and Glance each have a shape.
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
