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
	serviceType = "placement"
	// Microversions of Placement that we speak, minor of 1. What is the least for: 26, to reserve all of an inventory; what
	// the most gives: 37, to move a provider below another one.
	leastMinor, mostMinor = 26, 39
	// largestAnswer is how much of an answer is read, in bytes; the tree of one host is far smaller.
	largestAnswer = 16 << 20
)

// Session gives a client of a service with our own token; that of package openstack does.
type Session interface {
	Service(ctx context.Context, serviceType string) (*gophercloud.ServiceClient, error)
}

// Client speaks to Placement. Its methods may be called at once.
//
// Errors: Unavailable and Timeout where Placement does not answer or is broken; Changed where somebody else changed the
// same at the same time, so that it has to be read again; Invalid, ErrNotFound and Unsupported where it refuses.
type Client struct {
	session Session
	// Answered, where given, is told of each answer: its request's method, and its status, 0 for none.
	Answered func(method string, status int)

	mu      sync.Mutex
	version string // negotiated; empty before that
	traits  map[string]bool
	classes map[string]bool
}

// New returns a client; nothing is asked of Placement yet.
func New(session Session) *Client {
	return &Client{session: session, traits: map[string]bool{}, classes: map[string]bool{}}
}

// Negotiate settles the microversion: the highest that both sides speak. It is asked once, at the first call. The error is
// of kind ErrUnsupported where Placement is too old.
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

// minor is the second part of a version 1.N, and -1 for any other text.
func minor(version string) int {
	text, ok := strings.CutPrefix(version, "1.")
	n, err := strconv.Atoi(text)
	if !ok || err != nil {
		return -1
	}
	return n
}

// do sends a request in the negotiated version. Statuses that are not among ok are errors.
func (c *Client) do(ctx context.Context, method, path string, in, out any, ok ...int) (int, error) {
	version, err := c.Negotiate(ctx)
	if err != nil {
		return 0, err
	}
	return c.send(ctx, version, method, path, in, out, ok...)
}

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
			WithHint("Look whether something else answers at its endpoint.")
	}
	return status, nil
}

// ensureTraits sees to it that Placement knows the traits: it makes custom ones, and returns the standard ones that it does
// not know. What is known is remembered.
func (c *Client) ensureTraits(ctx context.Context, traits []string) (unknown []string, err error) {
	c.mu.Lock()
	asked := slices.DeleteFunc(slices.Clone(traits), func(trait string) bool { return c.traits[trait] })
	c.mu.Unlock()
	for part := range slices.Chunk(asked, 50) { // a URL has an end
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

// ensureClass makes a custom resource class, unless it is there.
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

// forget asks again what Placement knows: it refused something, and somebody may have deleted what nobody used.
func (c *Client) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.traits)
	clear(c.classes)
}

// wrong is an answer that does not fit the request.
func wrong(format string, args ...any) error {
	return cyborg.Errorf(cyborg.ErrUnavailable, "Placement answered %s", fmt.Sprintf(format, args...))
}
