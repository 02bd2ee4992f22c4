package apiclient

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/cyborg-project/cyborg"
)

// Version is what an API tells every caller about itself.
type Version struct {
	Product        string `json:"product"`
	Release        string `json:"release"`
	Authentication string `json:"authentication"` // how callers prove who they are
}

// Version reads what the API is; it needs no credential.
func (c *Client) Version(ctx context.Context) (version Version, err error) {
	_, err = c.get(ctx, "/v1", nil, &version)
	return version, err
}

// Caller is the identity that the API has recognized.
type Caller struct {
	Name string    `json:"name"`
	Role string    `json:"role"` // reader, member or admin
	Time time.Time `json:"time"` // by the server's clock

	Warnings []Warning `json:"warnings,omitempty"` // what the server's set-up leaves open; for admins
}

// Warning is one thing that a server's set-up leaves open, and its remedy.
type Warning struct {
	Check string `json:"check"` // what was looked at
	Found string `json:"found"`
	Do    string `json:"do"`
}

// Caller asks the API who this client is.
func (c *Client) Caller(ctx context.Context) (caller Caller, err error) {
	_, err = c.get(ctx, "/v1/caller", nil, &caller)
	return caller, err
}

// Check is the result of one of the API's dependencies, such as its database.
type Check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// TookMS is the duration of the check in milliseconds.
	TookMS float64 `json:"took_ms"`
	Detail string  `json:"detail"`
}

// Readiness reads whether the API's dependencies answer. It returns the checks
// also where the API is not ready (503), since these checks are what the caller
// wants to know.
func (c *Client) Readiness(ctx context.Context) ([]Check, error) {
	var ready struct {
		Checks []Check `json:"checks"`
	}
	resp, err := c.open(ctx, request{method: http.MethodGet, path: "/readyz", query: url.Values{"verbose": {""}}}, nil)
	if err != nil {
		return nil, err
	}
	defer drop(resp)

	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&ready); err != nil || len(ready.Checks) == 0 {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "the API does not say whether it is ready: %w", errors.Join(err, errors.New(resp.Status)))
	}

	return ready.Checks, nil
}

// ServerCertificate returns the certificate that the API presents, or nil
// without TLS.
func (c *Client) ServerCertificate(ctx context.Context) (*x509.Certificate, error) {
	resp, err := c.open(ctx, request{method: http.MethodGet, path: "/healthz"}, nil)
	if err != nil {
		return nil, err
	}
	defer drop(resp)

	if resp.TLS == nil || len(resp.TLS.PeerCertificates) == 0 {
		return nil, nil //nolint:nilnil // no TLS is an answer, too
	}

	return resp.TLS.PeerCertificates[0], nil
}
