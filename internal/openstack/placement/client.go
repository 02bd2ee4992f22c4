package placement

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/openstack"
)

const (
	// serviceType is Placement's type in the catalog.
	serviceType = "placement"
	// leastMinor and mostMinor are the microversions that this client can use, 1.26
	// to 1.39. 1.26 is the first in which all of an inventory can be reserved; 1.37
	// and later can move a provider below another parent.
	leastMinor, mostMinor = 26, 39
	// largestAnswer is how much of an answer is read, in bytes; the tree of one
	// host is far smaller.
	largestAnswer = 16 << 20
)

// Session makes clients that send our own token to OpenStack's services;
// *openstack.Session implements it.
type Session interface {
	Service(ctx context.Context, serviceType string) (*gophercloud.ServiceClient, error)
}

// Client is a client of Placement. Its methods are safe for concurrent use.
//
// Errors: ErrUnavailable and ErrTimeout if Placement does not answer or is
// broken; ErrChanged if somebody else has changed the same provider at the same
// time, so that it has to be read again; ErrInvalid, ErrNotFound and
// ErrUnsupported for refusals.
type Client struct {
	session Session
	// Answered, unless nil, is called after each request with its method and the
	// status of the answer, or 0 without one.
	Answered func(method string, status int)

	mu      sync.Mutex      // guards the fields below; it is never held during a request
	version string          // the negotiated microversion; empty before the negotiation
	traits  map[string]bool // traits that Placement is known to have
	classes map[string]bool // custom resource classes that Placement is known to have
}

// New returns a client; it sends nothing yet.
func New(session Session) *Client {
	return &Client{session: session, traits: map[string]bool{}, classes: map[string]bool{}}
}

// Negotiate returns the microversion in use: the highest that both sides know.
// Placement is asked once, at the first call. The error is of kind
// ErrUnsupported if Placement is too old.
func (c *Client) Negotiate(ctx context.Context) (string, error) {
	c.mu.Lock()
	version := c.version
	c.mu.Unlock()
	if version != "" {
		return version, nil
	}

	var root struct {
		Versions []struct {
			ID         string `json:"id"`
			MinVersion string `json:"min_version"`
			MaxVersion string `json:"max_version"`
		} `json:"versions"`
	}

	if _, err := c.send(ctx, "", http.MethodGet, "", nil, &root, http.StatusOK); err != nil {
		return "", err
	}

	for _, v := range root.Versions {
		least, most := minor(v.MinVersion), minor(v.MaxVersion)
		if least < 0 || most < 0 {
			continue
		}

		use := min(most, mostMinor)
		if use < leastMinor || use < least {
			return "", cyborg.Errorf(cyborg.ErrUnsupported, "Placement speaks versions %s to %s; we need one from 1.%d to 1.%d",
				v.MinVersion, v.MaxVersion, leastMinor, mostMinor).WithHint("Upgrade Placement.")
		}

		version = "1." + strconv.Itoa(use)
		c.mu.Lock()
		c.version = version

		c.mu.Unlock()
		return version, nil
	}

	return "", cyborg.Errorf(cyborg.ErrUnavailable, "what answers at Placement's endpoint lists no version 1 of it").
		WithHint("Correct the placement endpoint in Keystone's catalog, or openstack.endpoints.")
}

// minor returns the second part of a version 1.N, or -1 for any other text.
func minor(version string) int {
	text, ok := strings.CutPrefix(version, "1.")
	n, err := strconv.Atoi(text)

	if !ok || err != nil {
		return -1
	}
	return n
}

// do sends a request with the negotiated microversion, and returns the status
// of the answer. A status that is not among ok is an error.
func (c *Client) do(ctx context.Context, method, path string, in, out any, ok ...int) (int, error) {
	version, err := c.Negotiate(ctx)
	if err != nil {
		return 0, err
	}
	return c.send(ctx, version, method, path, in, out, ok...)
}

// send sends a request with that microversion, or without one if it is empty,
// and decodes the answer into out. A 404 that is among ok leaves out as it is.
func (c *Client) send(ctx context.Context, version, method, path string, in, out any, ok ...int) (status int, err error) {
	if c.Answered != nil {
		defer func() { c.Answered(method, status) }()
	}

	service, err := c.session.Service(ctx, serviceType)
	if err != nil {
		return 0, err
	}

	service.Type, service.Microversion = serviceType, version
	options := &gophercloud.RequestOpts{JSONBody: in, OkCodes: ok, KeepResponseBody: true}

	answer, err := service.Request(ctx, method, service.ServiceURL()+path, options)
	if refusal, answered := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err); answered {
		status = refusal.Actual
	}

	if err != nil {
		return status, openstack.Explain(serviceType, err)
	}
	defer answer.Body.Close()

	status = answer.StatusCode
	body, err := io.ReadAll(io.LimitReader(answer.Body, largestAnswer))
	if err != nil {
		return status, openstack.Explain(serviceType, err)
	}

	if out == nil || len(bytes.TrimSpace(body)) == 0 || status == http.StatusNotFound {
		return status, nil
	}

	if err := json.Unmarshal(body, out); err != nil {
		return status, cyborg.Errorf(cyborg.ErrUnavailable, "what Placement answered to %s /%s cannot be read: %w", method, path, err).
			WithHint("Check whether something else answers at its endpoint.")
	}

	return status, nil
}

// ensureTraits makes sure that Placement has the traits. It creates custom
// ones, and returns the standard ones that Placement does not know. What
// Placement has is remembered, so that each trait is asked about once.
func (c *Client) ensureTraits(ctx context.Context, traits []string) (unknown []string, err error) {
	c.mu.Lock()
	asked := slices.DeleteFunc(slices.Clone(traits), func(trait string) bool { return c.traits[trait] })
	c.mu.Unlock()

	for part := range slices.Chunk(asked, 50) { // a longer list could exceed what servers accept as a URL
		var answer struct {
			Traits []string `json:"traits"`
		}

		if _, err := c.do(ctx, http.MethodGet, "traits?name=in:"+strings.Join(part, ","), nil, &answer, http.StatusOK); err != nil {
			return nil, err
		}

		for _, trait := range part {
			known := slices.Contains(answer.Traits, trait)
			switch {
			case !known && !strings.HasPrefix(trait, custom):
				unknown = append(unknown, trait)
				continue
			case !known:
				if _, err := c.do(ctx, http.MethodPut, "traits/"+trait, nil, nil, http.StatusCreated, http.StatusNoContent); err != nil {
					return nil, err
				}
			}

			c.mu.Lock()
			c.traits[trait] = true
			c.mu.Unlock()
		}
	}

	return unknown, nil
}

// ensureClass creates a custom resource class unless it exists. Standard
// classes always exist.
func (c *Client) ensureClass(ctx context.Context, class string) error {
	c.mu.Lock()
	known := c.classes[class]
	c.mu.Unlock()

	if known || !strings.HasPrefix(class, custom) {
		return nil
	}

	if _, err := c.do(ctx, http.MethodPut, "resource_classes/"+class, nil, nil, http.StatusCreated, http.StatusNoContent); err != nil {
		return err
	}

	c.mu.Lock()
	c.classes[class] = true

	c.mu.Unlock()
	return nil
}

// forget drops what is remembered of Placement's traits and classes. After a
// refusal they are asked about again, because Placement's operator may have
// deleted some that nobody used.
func (c *Client) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()

	clear(c.traits)
	clear(c.classes)
}

// unexpected is the error for an answer that does not fit the request.
func unexpected(format string, args ...any) error {
	return cyborg.Errorf(cyborg.ErrUnavailable, "Placement answered %s", fmt.Sprintf(format, args...))
}
