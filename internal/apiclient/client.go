// Package apiclient is the Go client of REST /v1. It speaks in the domain's types and gives every failure as a
// *cyborg.Error. It imports the root package and the standard library only: never the server, the database or Temporal.
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
)

// DefaultURL is where a standalone listens when nobody says otherwise.
const DefaultURL = "http://127.0.0.1:6666"

const (
	dialTimeout = 5 * time.Second
	// maxBody bounds an answer that is read into memory: a page of 1,000 accelerators with long specs fits ten times.
	maxBody = 64 << 20
	// tries is how often a request is sent that may be repeated and whose connection broke before the answer.
	tries = 3
)

// Options say where the API is and how to prove who asks. The zero value talks to DefaultURL without a credential.
type Options struct {
	URL   string
	Token string // bearer token
	// CACert is a PEM file of the authorities to trust instead of the system's.
	CACert string
	// Cert and Key are PEM files of the client's certificate; both or none.
	Cert string
	Key  string
	// UserAgent is sent with each request.
	UserAgent string
}

// Client talks to one API. It is safe for concurrent use.
type Client struct {
	base  *url.URL
	token string
	agent string
	http  *http.Client
}

// New makes a client; it does not talk to the API yet. A bad URL or certificate file is an error of kind ErrInvalid.
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

// URL is the API's address, without /v1.
func (c *Client) URL() string { return c.base.String() }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

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

// Async asks for the operation at once instead of its end (Prefer: respond-async, RFC 7240).
func Async() Option { return func(h http.Header) { h.Set("Prefer", "respond-async") } }

// Key makes the request safe to repeat: the API answers every repeat with the operation that the first one started.
// A request without one gets a key of its own, so that a connection that breaks can be tried again.
func Key(key string) Option { return func(h http.Header) { h.Set("Idempotency-Key", key) } }

// IfMatch makes the change conditional on the version that was read.
func IfMatch(etag string) Option { return func(h http.Header) { h.Set("If-Match", etag) } }

type request struct {
	method  string
	path    string // below the base, escaped, beginning with /v1
	query   url.Values
	body    any // marshalled as JSON; nil for none
	options []Option
}

// Answer is what the API answered to a change.
type Answer struct {
	Status   int
	Location string
	ETag     string
	// Operation is set where the work goes on (202): it is what the API calls it at that moment.
	Operation *Operation
	body      []byte
}

// Created is the UUID of what the answer's Location names.
func (a Answer) Created() (uuid.UUID, error) {
	id, err := uuid.Parse(a.Location[strings.LastIndex(a.Location, "/")+1:])
	if err != nil {
		return uuid.UUID{}, cyborg.Errorf(cyborg.ErrInternal, "the API answered %d with Location %q, which ends in no UUID",
			a.Status, a.Location)
	}
	return id, nil
}

// decode reads the body of an answer other than 202.
func (a Answer) decode(out any) error {
	if err := json.Unmarshal(a.body, out); err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "the API's answer is not what was expected: %w", err).
			WithHint("Is the URL that of a Cyborg API of this release?")
	}
	return nil
}

// get asks for a document and decodes it.
func (c *Client) get(ctx context.Context, path string, query url.Values, out any) (Answer, error) {
	answer, err := c.send(ctx, request{method: http.MethodGet, path: path, query: query})
	if err != nil {
		return answer, err
	}
	return answer, answer.decode(out)
}

// change sends a request that changes something and reads the operation of a 202.
func (c *Client) change(ctx context.Context, req request) (Answer, error) {
	req.options = append([]Option{Key(uuid.NewString())}, req.options...)
	answer, err := c.send(ctx, req)
	if connectionBroke(err) {
		return answer, cyborg.AsError(err).WithHint("It may have been admitted all the same: see `cyborg operation list`.")
	}
	if err != nil || answer.Status != http.StatusAccepted {
		return answer, err
	}
	answer.Operation = &Operation{}
	return answer, answer.decode(answer.Operation)
}

// send sends the request and reads the whole answer. Every request of this client can be repeated without harm: reads,
// and changes that carry a key. So one whose connection broke before the answer is sent again.
func (c *Client) send(ctx context.Context, req request) (Answer, error) {
	var payload []byte
	if req.body != nil {
		var err error
		if payload, err = json.Marshal(req.body); err != nil {
			return Answer{}, cyborg.Errorf(cyborg.ErrInvalid, "cannot write the request as JSON: %w", err)
		}
	}
	var broke error // what an earlier try ended with
	for try := 1; ; try++ {
		answer, err := c.sendOnce(ctx, req, payload)
		if err != nil && broke != nil && connectionRefused(err) {
			err = broke // that the API went away in the middle tells more than that it is away now
		}
		if !connectionBroke(err) || try == tries || ctx.Err() != nil {
			return answer, err
		}
		broke = err
		if pause(ctx, time.Duration(try)*200*time.Millisecond) != nil {
			return answer, err
		}
	}
}

func (c *Client) sendOnce(ctx context.Context, req request, payload []byte) (Answer, error) {
	resp, err := c.open(ctx, req, payload)
	if err != nil {
		return Answer{}, err
	}
	defer drop(resp)
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return Answer{}, c.unreachable(ctx, err)
	}
	if len(body) > maxBody {
		return Answer{}, cyborg.Errorf(cyborg.ErrInternal, "the API's answer is larger than %d bytes", maxBody)
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		return Answer{}, newProblem(resp, body)
	}
	return Answer{
		Status: resp.StatusCode, Location: resp.Header.Get("Location"), ETag: resp.Header.Get("ETag"), body: body,
	}, nil
}

// open sends the request once and returns the answer with its body unread.
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

// drop closes an answer's body. Reading is over then, and nothing is to be learnt from a close that fails.
func drop(resp *http.Response) { _ = resp.Body.Close() }

// connectionBroke says that the API was reached and then the connection ended before the answer did.
func connectionBroke(err error) bool {
	_, broke := errors.AsType[*brokenConnection](err)
	return broke
}

func connectionRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// pause waits, or returns the context's error if that ends first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
