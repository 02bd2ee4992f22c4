package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/images"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/contentrange"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/workflows"
)

const (
	// answerTimeout limits the exchange of one message.
	answerTimeout = 15 * time.Second
	// imageStallTimeout is how long the transfer of an image may stand still before
	// its connection is given up.
	imageStallTimeout = 60 * time.Second
	// maxAnswerSize is how many bytes of an answer are read at most: the
	// conductor's are far smaller.
	maxAnswerSize = 1 << 20

	reportPath     = "/agent/v1/reports"
	differencePath = "/agent/v1/differences"
	heartbeatPath  = "/agent/v1/heartbeats"
)

// endpoint is the client of the conductors' agent endpoints. If a conductor
// does not answer, it asks the next one, and from then on asks that one first.
type endpoint struct {
	urls []string
	host string // for which this agent speaks
	// first is the index in urls of the conductor to ask first.
	first  atomic.Int64
	client *http.Client
	// patience is how long a conductor may take to begin its answer where another
	// one is left to ask.
	patience time.Duration
	// proof is sent with the requests for images; see identity.
	proof string
}

// newEndpoint makes the client. It follows no redirects, so that only a
// configured conductor ever answers. identified is who the agent is to an https
// endpoint, and whom it trusts there; nil for an agent without certificates. dial
// makes the connections; nil means over the network.
func newEndpoint(host string, urls []string, identified *pki.Client, dial DialFunc) *endpoint {
	if dial == nil {
		dial = (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}

	trimmed := make([]string, len(urls))
	for n, one := range urls {
		trimmed[n] = strings.TrimRight(one, "/")
	}

	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           dial,
		TLSHandshakeTimeout:   5 * time.Second,
		ResponseHeaderTimeout: imageStallTimeout,
		IdleConnTimeout:       90 * time.Second,
		DisableCompression:    true, // the offsets of an image's parts count its own bytes
	}

	var trip http.RoundTripper = transport
	if identified != nil {
		trip = identified.Transport(transport)
	}

	return &endpoint{urls: trimmed, host: host, patience: answerTimeout, client: &http.Client{
		Transport:     trip,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (e *endpoint) close() { e.client.CloseIdleConnections() }

// post sends a message and reads the answer. The error has the kind that the
// conductor gave it, or is of kind ErrUnavailable where no conductor answered.
func (e *endpoint) post(ctx context.Context, path string, message, answer any) error {
	text, err := json.Marshal(message)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "a message to the conductor cannot be encoded: %w", err)
	}

	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()

	response, err := e.ask(ctx, func(ctx context.Context, base string) (*http.Request, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, bytes.NewReader(text))
		if err == nil {
			request.Header.Set("Content-Type", "application/json")
			request.Header.Set(agentapi.HostHeader, e.host)
			// A message may be repeated. An empty Idempotency-Key, which is not sent, tells
			// net/http so: it then sends the message again if the server closes the
			// connection at that moment.
			request.Header["Idempotency-Key"] = nil
		}
		return request, err
	})
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // it was only read

	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswerSize)).Decode(answer); err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the conductor's answer to %s cannot be read: %w", path, err)
	}

	return nil
}

// Image begins to fetch the image that conductors serve at the path, from the
// given byte where they can. The error is of kind ErrForbidden if the path is
// not that of an image.
func (e *endpoint) Image(ctx context.Context, path string, offset int64) (images.Download, error) {
	if err := checkImagePath(path); err != nil {
		return images.Download{}, err
	}

	parent := ctx
	ctx, cancel := context.WithCancelCause(parent)

	response, err := e.ask(ctx, func(ctx context.Context, base string) (*http.Request, error) { //nolint:bodyclose // Download closes it
		request, err := e.imageRequest(ctx, http.MethodGet, base+path)
		if err == nil && offset > 0 {
			request.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
		}
		return request, err
	})

	if _, none := errors.AsType[rangeNotSatisfiable](err); none && offset > 0 {
		cancel(nil)
		return e.Image(parent, path, 0) // the part from the earlier try is longer than the image, so it is not a part of it
	}

	if err != nil {
		cancel(nil)
		return images.Download{}, err
	}

	body := &stallingBody{body: response.Body, cancel: cancel}
	body.timer = time.AfterFunc(imageStallTimeout, func() {
		cancel(cyborg.Errorf(cyborg.ErrUnavailable, "the conductor sent nothing more of the image for %s", imageStallTimeout))
	})

	download := images.Download{ReadCloser: body, Size: response.ContentLength}
	if response.StatusCode == http.StatusPartialContent {
		begin, all, ok := contentrange.Parse(response.Header.Get("Content-Range"))
		if !ok {
			return images.Download{}, errors.Join(cyborg.Errorf(cyborg.ErrUnavailable,
				"the conductor sent a part of the image and %q does not say which", response.Header.Get("Content-Range")), body.Close())
		}
		download.Offset, download.Size = begin, all
	}

	return download, nil
}

// GiveBack tells a conductor that the image at the path is no longer needed. The error
// is of kind ErrForbidden if the path is not that of an image.
func (e *endpoint) GiveBack(ctx context.Context, path string) error {
	if err := checkImagePath(path); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	response, err := e.ask(ctx, func(ctx context.Context, base string) (*http.Request, error) {
		return e.imageRequest(ctx, http.MethodDelete, base+path)
	})
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// imageRequest makes a request about an image, with the agent's proof.
func (e *endpoint) imageRequest(ctx context.Context, method, url string) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err == nil && e.proof != "" {
		request.Header.Set(agentapi.ProofHeader, e.proof)
	}
	return request, err
}

// checkImagePath returns an error unless a path with its query is exactly as
// conductors write that of an image. It comes with a step and is appended to a
// conductor's URL: "@host/x" would lead to another host, and another path to
// something else than an image.
func checkImagePath(path string) error {
	parsed, err := url.Parse(path)
	if err == nil {
		text, _ := strings.CutPrefix(parsed.Path, workflows.ImagesPath)
		operation, bad := uuid.Parse(text)

		written, key := workflows.ImagesPath+operation.String(), parsed.Query().Get(workflows.ImageKey)
		if key != "" {
			written = workflows.ImageFetch(operation, key)
		}
		if bad == nil && path == written && url.QueryEscape(key) == key {
			return nil
		}
	}

	address, _, _ := strings.Cut(path, "?") // the query may be a secret
	return cyborg.Errorf(cyborg.ErrForbidden, "the step has an image fetched from %q, and agents fetch images from %s… of their conductors only",
		cyborg.Sanitize(address, longestText), workflows.ImagesPath)
}

// ask asks one conductor after the other until one answers with success or with
// a refusal. It asks the next one only if a conductor does not answer, or fails
// with a status of 500 or above. The one that has answered with success is asked
// first the next time. A refusal does not count: its reason may be that
// conductor's own configuration.
//
// A conductor that accepts connections and says nothing, because its process or
// its machine is frozen, must not use up the time of the others. Each may take
// an equal share of what is left, and the last one all of it. The one that was
// given up may still do what it was asked: reports and heartbeats have numbers,
// and an image may be asked for, or given back, twice.
func (e *endpoint) ask(ctx context.Context, request func(context.Context, string) (*http.Request, error)) (*http.Response, error) {
	var failures []error

	first := e.first.Load()
	for n := range len(e.urls) {
		at := (int(first) + n) % len(e.urls)
		limited, answered, end := e.limit(ctx, len(e.urls)-n)

		made, err := request(limited, e.urls[at])
		if err != nil {
			end()
			return nil, cyborg.Errorf(cyborg.ErrInternal, "a request to the conductor cannot be made: %w", err)
		}

		response, err := e.client.Do(made)
		if err == nil && !answered() {
			err = errors.Join(context.Cause(limited), response.Body.Close())
		}

		switch {
		case err != nil && ctx.Err() != nil:
			end()
			return nil, noAnswer(append(failures, context.Cause(ctx)))
		case err != nil && limited.Err() != nil:
			failures = append(failures, context.Cause(limited))
			end()
			continue
		case err != nil:
			failures = append(failures, withoutQuery(err))
			end()
			continue
		}

		if response.StatusCode == http.StatusOK || response.StatusCode == http.StatusPartialContent || response.StatusCode == http.StatusNoContent {
			e.first.CompareAndSwap(first, int64(at))
			response.Body = &endingBody{response.Body, end}
			return response, nil
		}

		failure := withRetryAfter(response, readProblem(response))
		end()
		if response.StatusCode == http.StatusRequestedRangeNotSatisfiable {
			return nil, rangeNotSatisfiable{failure}
		}
		if response.StatusCode < http.StatusInternalServerError {
			return nil, failure
		}

		failures = append(failures, failure)
	}

	return nil, noAnswer(failures)
}

// noAnswer is the error where no conductor could answer.
func noAnswer(failures []error) error {
	return cyborg.Errorf(cyborg.ErrUnavailable, "no conductor could answer: %w", errors.Join(failures...))
}

// limit returns the context for asking one conductor, of so many that are left.
// It ends when the conductor's share of the time is over. answered ends the
// limit, and returns false where the time was over before. end releases the
// context.
func (e *endpoint) limit(ctx context.Context, left int) (limited context.Context, answered func() bool, end func()) {
	limited, cancel := context.WithCancelCause(ctx)
	end = func() { cancel(nil) }
	if left == 1 {
		return limited, func() bool { return true }, end
	}

	share := e.patience
	if deadline, ok := ctx.Deadline(); ok {
		share = min(share, time.Until(deadline)/time.Duration(left))
	}
	timer := time.AfterFunc(share, func() {
		cancel(cyborg.Errorf(cyborg.ErrUnavailable, "a conductor has not answered within %s", share.Round(time.Millisecond)))
	})
	return limited, timer.Stop, end
}

// endingBody is the body of an answer, whose context ends when it is closed.
type endingBody struct {
	io.ReadCloser
	end func()
}

// Close closes the body, and ends its context.
func (b *endingBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// withoutQuery removes the query from the URL in an error: it may hold the
// secret of a one-time URL, which must not reach a log.
func withoutQuery(err error) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		address, _, _ := strings.Cut(failed.URL, "?")
		return &url.Error{Op: failed.Op, URL: address, Err: failed.Err}
	}
	return err
}

// rangeNotSatisfiable is the error for an answer that the requested part of an
// image does not exist.
type rangeNotSatisfiable struct{ error }

func (e rangeNotSatisfiable) Unwrap() error { return e.error }

// longestText is how many characters of the conductor's texts are kept.
const longestText = 1000

// retryAfter is an error whose answer said after which time to try again.
type retryAfter struct {
	error
	after time.Duration
}

func (e retryAfter) Unwrap() error { return e.error }

// withRetryAfter adds the wait that an answer demands, if it has one, to its
// error. The wait is limited: a conductor must not silence an agent for long.
func withRetryAfter(response *http.Response, err error) error {
	seconds, bad := strconv.Atoi(response.Header.Get("Retry-After"))
	if bad != nil || seconds <= 0 {
		return err
	}

	return retryAfter{err, min(time.Duration(seconds)*time.Second, lastRetry)}
}

// readProblem turns an answer that is no success into an error, with the kind
// that the conductor sent or else the kind that fits the status. The texts are
// sanitised, as they end up in logs and on terminals.
func readProblem(response *http.Response) error {
	defer func() { _ = response.Body.Close() }() // it was only read
	var problem struct {
		Kind    cyborg.ErrorKind `json:"kind"`
		Message string           `json:"message"`
		Detail  string           `json:"detail"`
		Hint    string           `json:"hint"`
	}

	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerSize))
	if err == nil {
		err = json.Unmarshal(text, &problem)
	}

	message := problem.Detail
	if message == "" {
		message = problem.Message
	}
	if err != nil || message == "" {
		message = "the conductor answered " + response.Status
	}

	kind := problem.Kind
	if !slices.Contains(cyborg.ErrorKinds(), kind) {
		kind = kindOfStatus(response.StatusCode)
	}

	failure := cyborg.Errorf(kind, "%s", cyborg.Sanitize(message, longestText))
	if problem.Hint != "" {
		failure = failure.WithHint("%s", cyborg.Sanitize(problem.Hint, longestText))
	}

	return failure
}

// kindOfStatus is the kind of error for a status without a known kind in the
// body, such as one from a proxy. The agent tries again, and with the next
// conductor, so each failure of a server is ErrUnavailable here, and so is a
// range that cannot be satisfied. The kindOfStatus of internal/apiclient, whose
// answers a person reads, tells failures apart; that of internal/openstack is
// about the answers of other services.
func kindOfStatus(status int) cyborg.ErrorKind {
	switch status {
	case http.StatusRequestedRangeNotSatisfiable:
		return cyborg.ErrUnavailable
	case http.StatusUnauthorized:
		return cyborg.ErrUnauthenticated
	case http.StatusForbidden:
		return cyborg.ErrForbidden
	case http.StatusNotFound:
		return cyborg.ErrNotFound
	case http.StatusRequestEntityTooLarge:
		return cyborg.ErrTooLarge
	case http.StatusTooManyRequests:
		return cyborg.ErrOverloaded
	}
	if status >= http.StatusBadRequest && status < http.StatusInternalServerError {
		return cyborg.ErrInvalid
	}

	return cyborg.ErrUnavailable
}

// stallingBody is the body of an image that cancels its connection when nothing
// arrives for imageStallTimeout.
type stallingBody struct {
	body   io.ReadCloser
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// Read reads what the conductor has sent.
func (b *stallingBody) Read(buffer []byte) (int, error) {
	n, err := b.body.Read(buffer)
	if n > 0 {
		b.timer.Reset(imageStallTimeout)
	}
	return n, err
}

// Close ends the transfer.
func (b *stallingBody) Close() error {
	b.timer.Stop()
	err := b.body.Close()
	b.cancel(nil)
	return err
}
