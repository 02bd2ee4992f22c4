// Package apiclient is the Go client of the REST API, /v1. It uses the types of
// the root package, and returns every failure of the API as an error from which
// cyborg.AsError gets a *cyborg.Error. It must never import the server, the
// database or Temporal.
package apiclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/clock"
)

// DefaultURL is where a standalone process listens by default.
const DefaultURL = "http://127.0.0.1:6666"

const (
	// dialTimeout bounds the TCP connect and the TLS handshake, each.
	dialTimeout = 5 * time.Second

	// maxBody bounds an answer that is read into memory. A page of 1,000
	// accelerators with long specs fits ten times.
	maxBody = 64 << 20

	// tries is how often a request is sent in all when its connection breaks before
	// the answer.
	tries = 3
)

// Options configure a Client. The zero value talks to DefaultURL without a
// credential.
type Options struct {
	// URL is the API's base; a trailing /v1 is allowed.
	URL string
	// Token is sent as a bearer token.
	Token string

	// CACert is a PEM file of the authorities to trust, in place of the system's.
	CACert string
	// Cert and Key are the PEM files of the client's certificate; either both or
	// none.
	Cert string
	Key  string

	// UserAgent is sent with each request, for the server's log.
	UserAgent string
}

// Client talks to one API. It is safe for concurrent use; Close releases its
// idle connections.
type Client struct {
	base  *url.URL
	token string
	agent string
	http  *http.Client
}

// New returns a client without connecting to the API. A bad URL or certificate
// file is an error of kind ErrInvalid.
func New(opts Options) (*Client, error) {
	if opts.URL == "" {
		opts.URL = DefaultURL
	}

	base, err := url.Parse(opts.URL)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "%q is not the URL of an API", opts.URL).
			WithHint("It looks like %s or https://cyborg.example.org:6666.", DefaultURL)
	}

	base.Path = strings.TrimSuffix(strings.TrimSuffix(base.Path, "/"), "/v1")

	trust, err := tlsConfig(opts)
	if err != nil {
		return nil, err
	}

	return &Client{
		base: base, token: opts.Token, agent: opts.UserAgent,
		// The client has no overall timeout: a synchronous change and an event stream
		// take as long as they take. Callers bound a request by its context.
		http: &http.Client{
			Transport: &http.Transport{
				Proxy:               http.ProxyFromEnvironment,
				DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
				TLSHandshakeTimeout: dialTimeout,
				TLSClientConfig:     trust,
				ForceAttemptHTTP2:   true,
				MaxIdleConnsPerHost: 16,
				IdleConnTimeout:     time.Minute,
			},
		},
	}, nil
}

// URL returns the API's base URL, without /v1.
func (c *Client) URL() string { return c.base.String() }

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// tlsConfig reads the certificates of the options.
func tlsConfig(opts Options) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if opts.CACert != "" {
		pem, err := os.ReadFile(opts.CACert)
		if err != nil {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "cannot read the authorities' certificates: %w", err)
		}

		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "%s holds no PEM certificate", opts.CACert)
		}
	}

	if (opts.Cert == "") != (opts.Key == "") {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "a client certificate needs its key, and a key its certificate")
	}

	if opts.Cert != "" {
		pair, err := tls.LoadX509KeyPair(opts.Cert, opts.Key)
		if err != nil {
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "cannot use the client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}

	return config, nil
}

// Option changes how one request is sent.
type Option func(http.Header)

// Async asks the API to answer at once with the operation, and not to wait for
// its end (Prefer: respond-async, RFC 7240).
func Async() Option { return func(h http.Header) { h.Set("Prefer", "respond-async") } }

// Key sets the Idempotency-Key: the API answers each repetition of the request
// with the operation that the first one started. A change without this option
// gets a random key, so that it can be sent again after a broken connection.
func Key(key string) Option { return func(h http.Header) { h.Set("Idempotency-Key", key) } }

// IfMatch makes the change conditional: it fails with ErrChanged unless the
// resource still has this ETag.
func IfMatch(etag string) Option { return func(h http.Header) { h.Set("If-Match", etag) } }

// request is one request to the API.
type request struct {
	method string
	// path begins with /v1 and is escaped already; the base URL goes before it.
	path  string
	query url.Values

	// body is encoded as JSON; nil sends none.
	body    any
	options []Option
}

// Answer is the API's answer to a change.
type Answer struct {
	Status   int
	Location string
	ETag     string

	// Operation is set where the work continues (202), with its state at the time
	// of the answer.
	Operation *Operation

	body []byte
}

// Created returns the UUID at the end of the answer's Location.
func (a Answer) Created() (uuid.UUID, error) {
	id, err := uuid.Parse(a.Location[strings.LastIndex(a.Location, "/")+1:])
	if err != nil {
		return uuid.UUID{}, cyborg.Errorf(cyborg.ErrInternal, "the API answered %d with Location %q, which ends in no UUID",
			a.Status, a.Location)
	}
	return id, nil
}

// decode decodes the body of the answer.
func (a Answer) decode(out any) error {
	if err := json.Unmarshal(a.body, out); err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "the API's answer is not what was expected: %w", err).
			WithHint("Is the URL that of a Cyborg API of this release?")
	}
	return nil
}

// get reads a resource and decodes it.
func (c *Client) get(ctx context.Context, path string, query url.Values, out any) (Answer, error) {
	answer, err := c.send(ctx, request{method: http.MethodGet, path: path, query: query})
	if err != nil {
		return answer, err
	}
	return answer, answer.decode(out)
}

// change sends a request that changes something, and decodes the operation of a
// 202.
func (c *Client) change(ctx context.Context, req request) (Answer, error) {
	// The caller's options come last, so that a Key among them wins.
	req.options = append([]Option{Key(uuid.NewString())}, req.options...)

	answer, err := c.send(ctx, req)

	// The last try broke, too, so nobody knows whether the API has admitted the
	// request.
	if connectionBroke(err) {
		return answer, cyborg.AsError(err).WithHint("It may have been admitted all the same: see `cyborg operation list`.")
	}

	if err != nil || answer.Status != http.StatusAccepted {
		return answer, err
	}

	answer.Operation = &Operation{}
	return answer, answer.decode(answer.Operation)
}

// send sends the request and reads the whole answer. A request whose connection
// broke before the answer is sent again. That is safe for each request of this
// client: it either reads, or carries an idempotency key.
func (c *Client) send(ctx context.Context, req request) (Answer, error) {
	var payload []byte
	if req.body != nil {
		var err error
		if payload, err = json.Marshal(req.body); err != nil {
			return Answer{}, cyborg.Errorf(cyborg.ErrInvalid, "cannot write the request as JSON: %w", err)
		}
	}

	// broke is the broken connection of an earlier try.
	var broke error
	for try := 1; ; try++ {
		answer, err := c.sendOnce(ctx, req, payload)
		if err != nil && broke != nil && connectionRefused(err) {
			// Report that the API ended in the middle of the request, rather than that it
			// is down now: the request may have been admitted.
			err = broke
		}

		if !connectionBroke(err) || try == tries || ctx.Err() != nil {
			return answer, err
		}

		broke = err
		if clock.Sleep(ctx, time.Duration(try)*200*time.Millisecond) != nil {
			return answer, err
		}
	}
}

// sendOnce sends the request once and reads its whole answer. A status of 300
// or more becomes a *Problem.
func (c *Client) sendOnce(ctx context.Context, req request, payload []byte) (Answer, error) {
	resp, err := c.open(ctx, req, payload)
	if err != nil {
		return Answer{}, err
	}
	defer drop(resp)

	// One byte more than allowed tells a body that is too large from one of exactly
	// the limit.
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return Answer{}, c.unreachable(ctx, err)
	}

	if len(body) > maxBody {
		return Answer{}, cyborg.Errorf(cyborg.ErrInternal, "the API's answer is larger than %d bytes", maxBody)
	}

	if resp.StatusCode >= http.StatusMultipleChoices {
		return Answer{}, c.problem(resp, body)
	}

	return Answer{
		Status: resp.StatusCode, Location: resp.Header.Get("Location"), ETag: resp.Header.Get("ETag"), body: body,
	}, nil
}

// open sends the request once, and returns the answer with its body unread. The
// caller closes the body.
func (c *Client) open(ctx context.Context, req request, payload []byte) (*http.Response, error) {
	target := c.base.String() + req.path
	if len(req.query) > 0 {
		target += "?" + req.query.Encode()
	}

	httpReq, err := http.NewRequestWithContext(ctx, req.method, target, bytes.NewReader(payload))
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "cannot make a request to %s: %w", target, err)
	}

	httpReq.Header.Set("Accept", "application/json, application/problem+json")
	if payload != nil {
		httpReq.Header.Set("Content-Type", "application/json")
	}
	if c.agent != "" {
		httpReq.Header.Set("User-Agent", c.agent)
	}
	if c.token != "" {
		httpReq.Header.Set("Authorization", "Bearer "+c.token)
	}

	for _, option := range req.options {
		option(httpReq.Header)
	}

	resp, err := c.http.Do(httpReq)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}

	return resp, nil
}

// drop closes an answer's body. Its error is ignored: everything that is needed
// was read before.
func drop(resp *http.Response) { _ = resp.Body.Close() }

// connectionBroke reports whether the API was reached, and the connection ended
// before the answer did.
func connectionBroke(err error) bool {
	_, broke := errors.AsType[*brokenConnection](err)
	return broke
}

// connectionRefused reports whether no process listens at the address.
func connectionRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
