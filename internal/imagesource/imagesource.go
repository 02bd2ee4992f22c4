// Package imagesource opens images on http(s) servers that the operator has
// allowed, and on no others: a caller of the API names the source, and must not
// gain access to the server's network that way. It must not import the API or
// the store.
package imagesource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/contentrange"
)

// Options configure a source. The zero value of an optional field means its
// default.
type Options struct {
	// Allow lists the http and https URLs below which images may be fetched; an
	// empty list allows none. A host name in it that resolves to a loopback or
	// link-local address is refused nevertheless: otherwise whoever controls that
	// name's DNS could point it at services of this machine. Only localhost and
	// literal addresses may be local.
	Allow []string
	// Max is the size of the largest image in bytes; default 4 GiB.
	Max int64
	// Connect limits connecting, TLS included; default 10 s.
	Connect time.Duration
	// Answer limits the wait for the head of the answer; default 30 s.
	Answer time.Duration
	// Silence is how long a transfer may stand still; default 30 s.
	Silence time.Duration
}

// maxRedirects is how many redirects are followed. Each must lead below an
// allowed URL.
const maxRedirects = 3

// HTTP opens images on http and https servers.
type HTTP struct {
	allow   []*url.URL
	max     int64
	silence time.Duration
	client  *http.Client
}

// New makes a source. The error is of kind ErrInvalid and quotes the URL that
// cannot be allowed.
func New(options Options) (*HTTP, error) {
	h := &HTTP{
		max:     cmp.Or(options.Max, 4<<30),
		silence: cmp.Or(options.Silence, 30*time.Second),
	}

	for _, text := range options.Allow {
		allowed, err := url.Parse(text)
		if err != nil || (allowed.Scheme != "http" && allowed.Scheme != "https") || allowed.Host == "" || allowed.User != nil {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "%q cannot be allowed: it is not an http or https URL without a password", text)
		}
		h.allow = append(h.allow, allowed)
	}

	connect := cmp.Or(options.Connect, 10*time.Second)
	h.client = &http.Client{
		Transport: checkedRedirects{&http.Transport{
			DialContext:           guardedDial(connect),
			TLSHandshakeTimeout:   connect,
			ResponseHeaderTimeout: cmp.Or(options.Answer, 30*time.Second),
			DisableCompression:    true, // the checksum is that of the stored bytes
			ForceAttemptHTTP2:     true,
			MaxIdleConnsPerHost:   2,
			IdleConnTimeout:       30 * time.Second,
		}},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			req.Header.Del("Referer") // the query of the URL before may be a signature
			if len(via) > maxRedirects {
				return cyborg.Errorf(cyborg.ErrUnavailable, "the image source redirects more than %d times", maxRedirects)
			}
			// A redirect to http would give up the protection that the caller asked for.
			if via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
				return cyborg.Errorf(cyborg.ErrForbidden, "the image source redirects from https to %s", cyborg.ShowSource(req.URL.String()))
			}
			return h.check(req.URL)
		},
	}

	return h, nil
}

// checkedRedirects refuses a redirect to something that is not a URL, because
// the client's own error for it has all of its text, and that may be a secret.
type checkedRedirects struct{ *http.Transport }

// RoundTrip requests one URL.
func (c checkedRedirects) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := c.Transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}

	if location := answer.Header.Get("Location"); location != "" {
		if _, err := request.URL.Parse(location); err != nil {
			_ = answer.Body.Close() // the error says more
			return nil, cyborg.Errorf(cyborg.ErrUnavailable, "image source %s redirects to what is not a URL", cyborg.ShowSource(request.URL.String()))
		}
	}
	return answer, nil
}

// Close closes idle connections.
func (h *HTTP) Close() { h.client.CloseIdleConnections() }

// check returns an error of kind ErrForbidden unless the URL is below an
// allowed URL.
func (h *HTTP) check(source *url.URL) error {
	for _, allowed := range h.allow {
		if below(source, allowed) {
			return nil
		}
	}
	return cyborg.Errorf(cyborg.ErrForbidden, "images may not be fetched from %s", cyborg.ShowSource(source.String())).
		WithHint("The operator lists in images.allow the URLs below which they may.")
}

// below reports whether the source has the scheme, host and port of the allowed
// URL, and a path below its path.
func below(source, allowed *url.URL) bool {
	if source.Scheme != allowed.Scheme || !strings.EqualFold(source.Hostname(), allowed.Hostname()) || port(source) != port(allowed) {
		return false
	}
	if source.User != nil || path.Clean("/"+source.Path) != "/"+strings.TrimPrefix(source.Path, "/") {
		return false // a server could resolve ".." or "//" differently than this check does
	}

	if strings.ContainsAny(source.Path, `;\`) {
		return false // some servers take "\" for "/", and cut off what follows a ";"
	}

	root := strings.TrimSuffix(allowed.Path, "/")
	return source.Path == root || strings.HasPrefix(source.Path, root+"/")
}

// port is the URL's port, or the default one of its scheme.
func port(u *url.URL) string {
	if text := u.Port(); text != "" {
		return text
	}
	if u.Scheme == "https" {
		return "443"
	}
	return "80"
}

// guardedDial returns a dial function that refuses loopback and link-local
// addresses, unless the URL itself names one. The check is made on the resolved
// address right before the connection, so that DNS cannot answer differently in
// between.
func guardedDial(limit time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}

		dialer := &net.Dialer{Timeout: limit}
		if host != "localhost" && net.ParseIP(host) == nil {
			dialer.ControlContext = refuseLocal(host)
		}
		return dialer.DialContext(ctx, network, address)
	}
}

// Open returns the image from offset (in bytes) on, and the size of the whole
// image, or -1 where the server does not say. The caller closes the reader.
// Errors: ErrForbidden for a source that is not allowed, ErrNotFound where the
// server does not have it, ErrTooLarge, ErrInvalid for an offset beyond the
// end, ErrUnavailable for what may succeed later.
func (h *HTTP) Open(ctx context.Context, image cyborg.Image, offset int64) (io.ReadCloser, int64, error) {
	source, err := url.Parse(image.Source)
	if err != nil {
		return nil, 0, cyborg.Errorf(cyborg.ErrInvalid, "image source %q is not a URL", cyborg.ShowSource(image.Source))
	}
	// Redirects are checked as well; see New.
	if err := h.check(source); err != nil {
		return nil, 0, err
	}

	ctx, cancel := context.WithCancel(ctx) // the reader cancels it when it is closed or stands still
	answer, err := h.get(ctx, source, offset)
	if err != nil {
		cancel()
		return nil, 0, err
	}

	content, size, err := Content(answer, offset, h.max)
	if err != nil {
		cancel()
		_ = answer.Body.Close() // the error says more
		return nil, 0, err
	}

	return &reader{
		content: content, closer: answer.Body, cancel: cancel, source: cyborg.ShowSource(source.String()),
		remaining: h.max - offset, max: h.max, silence: h.silence,
	}, size, nil
}

// get requests the image from offset on, and returns the answer's head.
func (h *HTTP) get(ctx context.Context, source *url.URL, offset int64) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, source.String(), nil)
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "image source %q cannot be asked for", cyborg.ShowSource(source.String()))
	}

	request.Header.Set("User-Agent", "cyborg/"+cyborg.Version)
	if offset > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}

	answer, err := h.client.Do(request)
	if err == nil {
		return answer, nil
	}

	if e, ok := errors.AsType[*cyborg.Error](err); ok {
		return nil, e // a redirect or an address was refused
	}

	if ctx.Err() != nil {
		return nil, ctx.Err()
	}

	return nil, cyborg.Errorf(cyborg.ErrUnavailable, "image source %s does not answer: %w", cyborg.ShowSource(source.String()), errors.Unwrap(err))
}

// Content checks the head of a server's answer to a request for an image from
// offset (in bytes) on. It makes sure that the returned content begins at
// offset, and returns the size of the whole image, or -1 where the server does
// not say. Errors are those of Open; ErrTooLarge means more than limit bytes.
func Content(answer *http.Response, offset, limit int64) (io.Reader, int64, error) {
	source := cyborg.ShowSource(answer.Request.URL.String()) // as it may appear in errors

	switch {
	case answer.StatusCode == http.StatusOK || (answer.StatusCode == http.StatusPartialContent && offset > 0):
	case answer.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return nil, 0, cyborg.Errorf(cyborg.ErrInvalid, "image source %s has nothing at byte %d", source, offset)
	case answer.StatusCode == http.StatusNotFound || answer.StatusCode == http.StatusGone:
		return nil, 0, cyborg.Errorf(cyborg.ErrNotFound, "image source %s answers %s", source, answer.Status).
			WithHint("Check the image's URL.")
	case answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden:
		return nil, 0, cyborg.Errorf(cyborg.ErrForbidden, "image source %s answers %s", source, answer.Status).
			WithHint("Cyborg has no credential for it: the image must be readable without one.")
	case answer.StatusCode >= http.StatusInternalServerError || answer.StatusCode == http.StatusTooManyRequests:
		return nil, 0, cyborg.Errorf(cyborg.ErrUnavailable, "image source %s answers %s", source, answer.Status)
	default:
		return nil, 0, cyborg.Errorf(cyborg.ErrImageRejected, "image source %s answers %s", source, answer.Status)
	}

	size := answer.ContentLength // where a range was given, only that of the range; corrected below

	if answer.StatusCode == http.StatusPartialContent {
		begin, total, ok := contentrange.Parse(answer.Header.Get("Content-Range"))
		if !ok || begin != offset || begin == total { // an empty range is no part of the image
			return nil, 0, cyborg.Errorf(cyborg.ErrUnavailable, "image source %s answers with range %q, not from byte %d",
				source, answer.Header.Get("Content-Range"), offset)
		}
		size = total
	} else if offset > 0 { // the server does not know ranges and sends the image from its first byte
		if size >= 0 && offset > size {
			return nil, 0, cyborg.Errorf(cyborg.ErrInvalid, "image source %s has nothing at byte %d", source, offset)
		}
		if _, err := io.CopyN(io.Discard, answer.Body, offset); err != nil {
			return nil, 0, cyborg.Errorf(cyborg.ErrUnavailable, "image source %s broke off before byte %d: %w", source, offset, err)
		}
	}

	if size > limit {
		return nil, 0, tooLarge(source, limit)
	}

	return answer.Body, size, nil
}

// tooLarge is the error for an image above the limit.
func tooLarge(source string, limit int64) error {
	return cyborg.Errorf(cyborg.ErrTooLarge, "image %s is larger than %d bytes", source, limit).
		WithHint("The operator sets the limit with images.max.")
}
