package apiclient

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// Problem is an error answer of the API (RFC 9457). It wraps the *cyborg.Error
// that the API sent, or one made from the HTTP status where something else
// answered, such as a proxy.
type Problem struct {
	Status     int           // HTTP status
	RequestID  string        // finds the request in the server's log
	RetryAfter time.Duration // zero where the API did not say
	Err        *cyborg.Error
}

// Error returns the API's message.
func (p *Problem) Error() string { return p.Err.Error() }

// Unwrap returns the *cyborg.Error.
func (p *Problem) Unwrap() error { return p.Err }

// problemBody is the body of application/problem+json as /v1 writes it.
type problemBody struct {
	Title     string           `json:"title"`
	Detail    string           `json:"detail"`
	Kind      cyborg.ErrorKind `json:"kind"`
	Hint      string           `json:"hint"`
	RequestID string           `json:"request_id"`
	Operation uuid.UUID        `json:"operation_id"`
	After     cyborg.Cursor    `json:"after"`
}

// Limits of what is taken from an error answer: a proxy or another service may
// send anything.
const (
	longestText       = 1000 // characters
	longestRetryAfter = 3600 // seconds
)

// problem converts an error answer to a request of this client. The API tells who has
// sent no credential which header to send; who uses this client gives it a token.
func (c *Client) problem(resp *http.Response, body []byte) *Problem {
	problem := newProblem(resp, body)
	if problem.Err.Kind == cyborg.ErrUnauthenticated && c.token == "" && strings.Contains(problem.Err.Hint, "the header Authorization") {
		problem.Err.Hint = "Name the file of a token with --token-file, or set CYBORG_TOKEN; or name a client certificate with --cert and --key."
	}
	return problem
}

// newProblem converts an error answer.
func newProblem(resp *http.Response, body []byte) *Problem {
	problem := &Problem{Status: resp.StatusCode, RequestID: cyborg.Sanitize(resp.Header.Get("X-Openstack-Request-Id"), longestText)}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		problem.RetryAfter = time.Duration(min(seconds, longestRetryAfter)) * time.Second
	}

	// net/http's server has no other way to say this.
	if resp.StatusCode == http.StatusBadRequest && strings.HasPrefix(string(body), "Client sent an HTTP request to an HTTPS server.") {
		problem.Err = cyborg.Errorf(cyborg.ErrInvalid, "%s speaks https, not http", resp.Request.URL.Host).WithHint("Write https:// in --url or CYBORG_URL.")
		return problem
	}

	var parsed problemBody
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if media != "application/problem+json" || json.Unmarshal(body, &parsed) != nil || parsed.Kind == "" {
		problem.Err = cyborg.Errorf(kindOfStatus(resp.StatusCode), "%s answered %s", resp.Request.URL.Redacted(), cyborg.Sanitize(resp.Status, longestText)).
			WithHint("This is not how a Cyborg API reports an error; check the URL, and any proxy on the way.")
		return problem
	}

	message := cmp.Or(parsed.Detail, parsed.Title, resp.Status)
	if parsed.RequestID != "" {
		problem.RequestID = cyborg.Sanitize(parsed.RequestID, longestText)
	}

	if !slices.Contains(cyborg.ErrorKinds(), parsed.Kind) { // a later release has a new kind
		parsed.Kind = kindOfStatus(resp.StatusCode)
	}

	problem.Err = &cyborg.Error{
		Kind: parsed.Kind, Message: cyborg.Sanitize(message, longestText), Hint: cyborg.Sanitize(parsed.Hint, longestText),
		Operation: parsed.Operation, After: parsed.After,
	}

	return problem
}

// kindOfStatus is the kind of an error that has none of its own, such as a
// proxy's. A person reads it, so failures of a server are told apart; in the
// kindOfStatus of workers/agent, which tries all of them again, they are one.
// Only a Cyborg says that an event is gone, because readers go on after that.
func kindOfStatus(status int) cyborg.ErrorKind {
	switch status {
	case http.StatusUnauthorized:
		return cyborg.ErrUnauthenticated
	case http.StatusForbidden:
		return cyborg.ErrForbidden
	case http.StatusNotFound:
		return cyborg.ErrNotFound
	case http.StatusTooManyRequests:
		return cyborg.ErrOverloaded
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return cyborg.ErrUnavailable
	case http.StatusGatewayTimeout:
		return cyborg.ErrTimeout
	}

	if status < http.StatusInternalServerError {
		return cyborg.ErrInvalid
	}

	return cyborg.ErrInternal
}

// brokenConnection marks an error of a connection that ended before its answer:
// the API may have received the request.
type brokenConnection struct{ err error }

func (b *brokenConnection) Error() string { return b.err.Error() }
func (b *brokenConnection) Unwrap() error { return b.err }

// unreachable converts an error of the transport to one sentence about why no
// answer came, with a hint. The end of the context is returned as its cause.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // the prefix has the method and the URL once more
	}

	at := c.base.Redacted()
	switch {
	case connectionRefused(err):
		return cyborg.Errorf(cyborg.ErrUnavailable, "nothing listens at %s: %w", at, syscall.ECONNREFUSED).
			WithHint("Start one with `make run` or `cyborg-standalone`, or say where yours is with --url or CYBORG_URL.")
	case isCertificateError(err):
		return cyborg.Errorf(cyborg.ErrUnavailable, "the certificate of %s is not trusted: %w", at, err).
			WithHint("Name the file of its authority with --cacert or CYBORG_CACERT.")
	case isRefusedCertificate(err):
		return cyborg.Errorf(cyborg.ErrUnauthenticated, "%s refuses the client's certificate, or that there is none: %w", at, err).
			WithHint("Name a certificate that its authority has signed, and the key, with --cert and --key, or CYBORG_CERT and CYBORG_KEY.")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return cyborg.Errorf(cyborg.ErrUnavailable, "%s closed the connection before it answered: %w", at, &brokenConnection{err})
	}

	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return cyborg.Errorf(cyborg.ErrUnavailable, "cannot find the host of %s: %w", at, dns).WithHint("Check --url or CYBORG_URL.")
	}

	// net/http has no type for this error.
	if strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		return cyborg.Errorf(cyborg.ErrUnavailable, "%s speaks http, not https", at).WithHint("Check --url or CYBORG_URL.")
	}

	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return cyborg.Errorf(cyborg.ErrUnavailable, "%s does not answer: %w", at, err).WithHint("Check --url or CYBORG_URL.")
	}

	return cyborg.Errorf(cyborg.ErrUnavailable, "cannot talk to %s: %w", at, err).WithHint("Check that it is Cyborg's API, and check --url or CYBORG_URL.")
}

// isRefusedCertificate reports whether the server wants another certificate of the
// client than the one that was shown, if any.
func isRefusedCertificate(err error) bool {
	alert, ok := errors.AsType[*net.OpError](err)
	return ok && alert.Op == "remote error" && strings.Contains(alert.Error(), "certificate") // as crypto/tls names an alert of the other end
}

// isCertificateError reports whether the server's certificate is not trusted.
func isCertificateError(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	_, ok := errors.AsType[x509.UnknownAuthorityError](err)
	return ok
}
