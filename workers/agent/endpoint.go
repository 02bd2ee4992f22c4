package agent

import (
	"bytes"
	"context"
	"crypto/tls"
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

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/activities/agent/images"
)

const (
	// answerWithin bounds an exchange of messages.
	answerWithin = 15 * time.Second
	// imageStalls is how long an image may bring nothing more before its connection is given up.
	imageStalls = 60 * time.Second
	// answerSize bounds what is read of an answer, in bytes.
	answerSize = 1 << 20

	reportPath     = "/agent/v1/reports"
	differencePath = "/agent/v1/differences"
	heartbeatPath  = "/agent/v1/heartbeats"
)

// endpoint is the conductors' agent endpoint. Where one does not answer, the next is asked, and stays the first to ask.
type endpoint struct {
	urls   []string
	first  atomic.Int64
	client *http.Client
}

func newEndpoint(urls []string, config *tls.Config) *endpoint {
	trimmed := make([]string, len(urls))
	for n, one := range urls {
		trimmed[n] = strings.TrimRight(one, "/")
	}
	return &endpoint{urls: trimmed, client: &http.Client{
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			TLSClientConfig:       config,
			TLSHandshakeTimeout:   5 * time.Second,
			ResponseHeaderTimeout: imageStalls,
			IdleConnTimeout:       90 * time.Second,
			DisableCompression:    true, // a part of an image must be of its bytes
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (e *endpoint) close() { e.client.CloseIdleConnections() }

// post sends a message and reads the answer. The error has the kind that the conductor gave it, or is of kind
// Unavailable where no conductor answered.
func (e *endpoint) post(ctx context.Context, path string, message, answer any) error {
	text, err := json.Marshal(message)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "a message to the conductor cannot be encoded: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	response, err := e.ask(ctx, func(ctx context.Context, base string) (*http.Request, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, bytes.NewReader(text))
		if err == nil {
			request.Header.Set("Content-Type", "application/json")
			// Messages may be repeated: where the server closes the connection just then, net/http sends it again. An empty
			// key says so to net/http, and is not sent.
			request.Header["Idempotency-Key"] = nil
		}
		return request, err
	})
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	if err := json.NewDecoder(io.LimitReader(response.Body, answerSize)).Decode(answer); err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the conductor's answer to %s cannot be read: %w", path, err)
	}
	return nil
}

// Image begins to fetch what conductors give at the path, from the given byte where they can.
func (e *endpoint) Image(ctx context.Context, path string, offset int64) (images.Download, error) {
	parent := ctx
	ctx, cancel := context.WithCancelCause(parent)
	response, err := e.ask(ctx, func(ctx context.Context, base string) (*http.Request, error) { //nolint:bodyclose // Download closes it
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
		if err == nil && offset > 0 {
			request.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
		}
		return request, err
	})
	if _, none := errors.AsType[noSuchPart](err); none && offset > 0 {
		cancel(nil)
		return e.Image(parent, path, 0) // what there is of it is not a part of this image
	}
	if err != nil {
		cancel(nil)
		return images.Download{}, err
	}
	body := &stallingBody{body: response.Body, cancel: cancel}
	body.timer = time.AfterFunc(imageStalls, func() {
		cancel(cyborg.Errorf(cyborg.ErrUnavailable, "the conductor sent nothing more of the image for %s", imageStalls))
	})
	download := images.Download{ReadCloser: body, Size: response.ContentLength}
	if response.StatusCode == http.StatusPartialContent {
		begin, all, ok := parseContentRange(response.Header.Get("Content-Range"))
		if !ok {
			return images.Download{}, errors.Join(cyborg.Errorf(cyborg.ErrUnavailable,
				"the conductor sent a part of the image and %q does not say which", response.Header.Get("Content-Range")), body.Close())
		}
		download.Offset, download.Size = begin, all
	}
	return download, nil
}

// GiveBack tells a conductor that a one-time URL is needed no more.
func (e *endpoint) GiveBack(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	response, err := e.ask(ctx, func(ctx context.Context, base string) (*http.Request, error) {
		return http.NewRequestWithContext(ctx, http.MethodDelete, base+path, nil)
	})
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// parseContentRange reads "bytes 5-9/10", with the size "*" where it is not known (RFC 9110 §14.4).
func parseContentRange(text string) (begin, all int64, ok bool) {
	span, size, ok1 := strings.Cut(strings.TrimPrefix(text, "bytes "), "/")
	first, _, ok2 := strings.Cut(span, "-")
	begin, err := strconv.ParseInt(first, 10, 64)
	if !ok1 || !ok2 || err != nil || begin < 0 || !strings.HasPrefix(text, "bytes ") {
		return 0, 0, false
	}
	if size == "*" {
		return begin, -1, true
	}
	all, err = strconv.ParseInt(size, 10, 64)
	return begin, all, err == nil && all >= begin
}

// ask asks one conductor after the other until one answers with success, or with an error of its own.
func (e *endpoint) ask(ctx context.Context, request func(context.Context, string) (*http.Request, error)) (*http.Response, error) {
	var failures []error
	first := e.first.Load()
	for n := range len(e.urls) {
		at := (int(first) + n) % len(e.urls)
		made, err := request(ctx, e.urls[at])
		if err != nil {
			return nil, cyborg.Errorf(cyborg.ErrInternal, "a request to the conductor cannot be made: %w", err)
		}
		response, err := e.client.Do(made)
		if err != nil {
			if ctx.Err() != nil {
				failures = append(failures, context.Cause(ctx))
				break
			}
			failures = append(failures, withoutQuery(err))
			continue
		}
		if response.StatusCode == http.StatusOK || response.StatusCode == http.StatusPartialContent || response.StatusCode == http.StatusNoContent {
			e.first.CompareAndSwap(first, int64(at))
			return response, nil
		}
		failure := postponed(response, readProblem(response))
		if response.StatusCode == http.StatusRequestedRangeNotSatisfiable {
			return nil, noSuchPart{failure}
		}
		if response.StatusCode < http.StatusInternalServerError {
			return nil, failure
		}
		failures = append(failures, failure)
	}
	return nil, cyborg.Errorf(cyborg.ErrUnavailable, "no conductor could answer: %w", errors.Join(failures...))
}

// withoutQuery takes the query from the URL in an error: the secret of a one-time URL is no word for logs.
func withoutQuery(err error) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		address, _, _ := strings.Cut(failed.URL, "?")
		return &url.Error{Op: failed.Op, URL: address, Err: failed.Err}
	}
	return err
}

// noSuchPart is the answer that the asked part of an image does not exist.
type noSuchPart struct{ error }

func (e noSuchPart) Unwrap() error { return e.error }

// longestText is how many characters of what the conductor says are taken at most.
const longestText = 1000

// comeAgain is an answer that asks to wait before the next try.
type comeAgain struct {
	error
	after time.Duration
}

func (e comeAgain) Unwrap() error { return e.error }

// postponed adds to an error when the answer wants to be asked again, if it says so.
func postponed(response *http.Response, err error) error {
	seconds, bad := strconv.Atoi(response.Header.Get("Retry-After"))
	if bad != nil || seconds <= 0 {
		return err
	}
	return comeAgain{err, min(time.Duration(seconds)*time.Second, lastRetry)}
}

// readProblem turns an answer that is no success into an error of the kind that the conductor says, or that the status
// suggests.
func readProblem(response *http.Response) error {
	defer func() { _ = response.Body.Close() }() // it was only read
	var problem struct {
		Kind    cyborg.ErrorKind `json:"kind"`
		Message string           `json:"message"`
		Detail  string           `json:"detail"`
		Hint    string           `json:"hint"`
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, answerSize))
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

// stallingBody gives up a connection that brings nothing more.
type stallingBody struct {
	body   io.ReadCloser
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// Read reads what the conductor sent.
func (b *stallingBody) Read(buffer []byte) (int, error) {
	n, err := b.body.Read(buffer)
	if n > 0 {
		b.timer.Reset(imageStalls)
	}
	return n, err
}

// Close ends the connection.
func (b *stallingBody) Close() error {
	b.timer.Stop()
	err := b.body.Close()
	b.cancel(nil)
	return err
}
