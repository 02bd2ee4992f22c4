// Package openstack is the server's session with a cloud: the login of its own
// user at Keystone, the catalog, and clients of the services in the catalog.
// The packages below this one hold what is specific to one service. None of
// them may import the API, the store or a workflow.
package openstack

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/pki"
)

const (
	// renewBefore is how long before its end our own token is replaced. It is
	// longer than any request takes, so that a token does not end during a request.
	renewBefore = 2 * time.Minute
	// retryAfter is how long Keystone is left alone after a failed renewal, while
	// the old token is still good.
	retryAfter = 10 * time.Second
	// connections is how many idle connections to one service are kept.
	connections = 16
	// noToken stands for our own token until the first login. It is not empty,
	// because gophercloud logs in again on an empty token even if another goroutine
	// has just done so.
	noToken = "none"
)

// Session is our own user's session with the cloud. It logs in when it is first
// used, and again before its token ends. Its methods are safe for concurrent
// use.
type Session struct {
	config   config.OpenStack
	own      credentials
	identity string // base URL of Keystone's version 3
	provider *gophercloud.ProviderClient
	log      *slog.Logger

	mu        sync.RWMutex // guards the fields below
	catalog   []tokens.CatalogEntry
	user      string    // id of our own user
	expires   time.Time // end of our own token
	retryFrom time.Time // earliest time of the next renewal while the token is still good
}

// New prepares a session; it sends nothing yet. The error is of kind
// ErrInvalid: the URL of Keystone, the file of certificate authorities, or the
// entry of clouds.yaml cannot be used.
func New(c config.OpenStack, log *slog.Logger) (*Session, error) {
	own, err := credentialsOf(c)
	if err != nil {
		return nil, err
	}

	identity, err := identityURL(own.authURL)
	if err != nil {
		return nil, err
	}

	s := &Session{
		config: c, own: own, identity: identity, log: log,
		provider: &gophercloud.ProviderClient{IdentityBase: strings.TrimSuffix(identity, "v3/"), IdentityEndpoint: identity},
	}

	s.provider.UseTokenLock()
	s.provider.SetToken(noToken)
	s.provider.UserAgent.Prepend("cyborg/" + cyborg.Version)

	network, err := transport(c, own.tls, log)
	if err != nil {
		return nil, err
	}
	s.provider.HTTPClient = http.Client{
		CheckRedirect: checkRedirect, Transport: &traced{log: log, next: &idleTimeout{limit: c.Answer, next: network}},
	}

	s.provider.ReauthFunc = s.login
	s.provider.EndpointLocator = s.endpoint

	if parsed, err := url.Parse(identity); err == nil && parsed.Scheme == "http" && !loopback(parsed.Hostname()) {
		log.Warn("the password of our own user goes to Keystone unencrypted", slog.String("auth_url", own.authURL))
	}

	if own.tls.InsecureSkipVerify {
		log.Warn("certificates of OpenStack's services are not checked (openstack.insecure, or verify in clouds.yaml)")
	}

	return s, nil
}

// transport returns what sends the requests. The authorities of openstack.ca_file
// are those that the file has when a request begins.
func transport(c config.OpenStack, own *tls.Config, log *slog.Logger) (http.RoundTripper, error) {
	base := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: c.Connect, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   c.Connect,
		TLSClientConfig:       own,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   connections,
		IdleConnTimeout:       time.Minute,
		ExpectContinueTimeout: time.Second,
	}
	if c.CAFile == "" || own.InsecureSkipVerify {
		return base, nil
	}

	trusting, err := pki.NewClient(pki.ClientOptions{Files: pki.Files{CA: c.CAFile}, MinVersion: tls.VersionTLS12, Log: log})
	if err != nil {
		return nil, err
	}
	return trusting.Transport(base), nil
}

// maxRedirects is how many redirections of one request are followed.
const maxRedirects = 5

// checkRedirect allows a redirection only to the host that the request was sent
// to, or to the same host with https. Elsewhere, our own token, or during a
// login our password, would be disclosed to a host that neither the operator
// nor the catalog has named.
func checkRedirect(r *http.Request, previous []*http.Request) error {
	first := previous[0].URL
	safer := first.Scheme == "http" && r.URL.Scheme == "https" && r.URL.Hostname() == first.Hostname()

	switch {
	case len(previous) > maxRedirects:
		return cyborg.Errorf(cyborg.ErrUnavailable, "%s redirects more than %d times", first.Redacted(), maxRedirects)
	case !safer && (r.URL.Host != first.Host || r.URL.Scheme != first.Scheme):
		return cyborg.Errorf(cyborg.ErrUnavailable, "%s redirects to %s, which is not the same service", first.Redacted(), r.URL.Redacted()).
			WithHint("Correct the endpoint in Keystone's catalog, or openstack.endpoints.")
	}

	return nil
}

// Who returns our own user in words, or the application credential with which
// it logs in.
func (s *Session) Who() string { return s.own.who }

// AuthURL returns the configured address of Keystone.
func (s *Session) AuthURL() string { return s.own.authURL }

// Close closes idle connections.
func (s *Session) Close() { s.provider.HTTPClient.CloseIdleConnections() }

// Service returns a client of the service of that type (placement, compute,
// image) that sends our own token. It has no microversion; the caller sets it.
// Get a new client for each piece of work, because the catalog may change. The
// error is of kind ErrUnavailable if Keystone does not answer, if it refuses
// our login, or if the catalog lists no such service.
func (s *Session) Service(ctx context.Context, serviceType string) (*gophercloud.ServiceClient, error) {
	if err := s.ensure(ctx); err != nil {
		return nil, err
	}

	options := gophercloud.EndpointOpts{Type: serviceType}
	options.ApplyDefaults(serviceType)

	endpoint, err := s.endpoint(options)
	if err != nil {
		return nil, err
	}

	return &gophercloud.ServiceClient{ProviderClient: s.provider, Endpoint: endpoint, Type: serviceType}, nil
}

// Identity returns a client of Keystone at openstack.auth_url, whatever the
// catalog lists. Errors are those of Service.
func (s *Session) Identity(ctx context.Context) (*gophercloud.ServiceClient, error) {
	if err := s.ensure(ctx); err != nil {
		return nil, err
	}
	return s.keystone(s.provider), nil
}

// User returns the id of our own user. Errors are those of Service.
func (s *Session) User(ctx context.Context) (string, error) {
	if err := s.ensure(ctx); err != nil {
		return "", err
	}

	s.mu.RLock()
	defer s.mu.RUnlock()

	return s.user, nil
}

// Ping returns nil if Keystone accepts our login, otherwise an error of kind
// ErrUnavailable.
func (s *Session) Ping(ctx context.Context) error { return s.ensure(ctx) }

// keystone returns a client of Keystone that uses the given provider's token.
func (s *Session) keystone(provider *gophercloud.ProviderClient) *gophercloud.ServiceClient {
	return &gophercloud.ServiceClient{ProviderClient: provider, Endpoint: s.identity, Type: "identity"}
}

// ensure makes sure that we have a token that stays valid for a while. While
// Keystone is away, the present token is used until it expires.
func (s *Session) ensure(ctx context.Context) error {
	s.mu.RLock()
	expires, retryFrom, token := s.expires, s.retryFrom, s.provider.Token()
	s.mu.RUnlock()

	now := time.Now()
	good := now.Before(expires)
	if now.Before(expires.Add(-renewBefore)) || good && now.Before(retryFrom) {
		return nil
	}

	err := s.renew(ctx, token)
	if err != nil && good && ctx.Err() == nil {
		// The old token still works. Requests go on with it, and after retryAfter the
		// next one tries to renew it again.
		s.mu.Lock()
		s.retryFrom = time.Now().Add(retryAfter)
		s.mu.Unlock()
		return nil
	}

	return err
}

// renew replaces the given token, unless another goroutine has replaced it or
// is about to. It waits as long as ctx allows; the login itself goes on without
// ctx, because other goroutines may wait for it. done has room for the result,
// so that the goroutine ends even if nobody waits any more.
func (s *Session) renew(ctx context.Context, token string) error {
	done := make(chan error, 1)
	go func() { done <- s.provider.Reauthenticate(context.WithoutCancel(ctx), token) }()

	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// login gets a new token and the catalog. gophercloud calls it from one
// goroutine at a time, also after a service answered 401.
func (s *Session) login(ctx context.Context) error {
	// Several requests may wait for this login, so it must not end with the context
	// of the one that happened to come first.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.Connect+s.config.Answer)
	defer cancel()

	// A provider of its own: a 401 from Keystone during the login must not start
	// another login.
	alone := &gophercloud.ProviderClient{HTTPClient: s.provider.HTTPClient, UserAgent: s.provider.UserAgent}
	options := s.own.login

	result := tokens.Create(ctx, s.keystone(alone), &options)
	if result.Err != nil {
		return s.loginError(result.Err)
	}

	token, err := result.ExtractToken()
	if err != nil {
		return Explain("identity", err)
	}

	catalog, err := result.ExtractServiceCatalog()
	if err != nil {
		return Explain("identity", err)
	}

	user, err := result.ExtractUser()
	if err != nil {
		return Explain("identity", err)
	}

	s.mu.Lock()
	defer s.mu.Unlock() // the lock covers the token, too, so that ensure never sees a new token with the old end

	if err := s.provider.SetTokenAndAuthResult(result); err != nil {
		return Explain("identity", err)
	}

	s.catalog, s.expires, s.user = catalog.Entries, token.ExpiresAt, user.ID
	s.log.DebugContext(ctx, "logged in at Keystone", slog.String("own", s.own.who), slog.Time("until", token.ExpiresAt))

	return nil
}

// loginError explains a failed login. The error is always of kind
// ErrUnavailable or explained as such: the caller, who asked for something
// else, is not at fault.
func (s *Session) loginError(err error) error {
	answer, _ := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err)
	switch {
	// Keystone answers 404 for an application credential that was deleted.
	case answer.Actual == http.StatusUnauthorized, answer.Actual == http.StatusForbidden,
		answer.Actual == http.StatusNotFound && bytes.Contains(answer.Body, []byte("Application Credential")):
		return cyborg.Errorf(cyborg.ErrUnavailable, "Keystone does not let our own %s in", s.own.who).
			WithHint("The operator of this server must correct openstack.username, password, project_name and the domains, or the application credential.")

	case answer.Actual != 0:
		return cyborg.Errorf(cyborg.ErrUnavailable, "%w", Explain("identity", err))
	}

	return Explain("identity", err)
}

// endpoint returns the base URL of a service, with a slash at its end: the
// configured one, otherwise the catalog's. A service may be listed under
// several types (aliases); any of them will do.
func (s *Session) endpoint(options gophercloud.EndpointOpts) (string, error) {
	for _, configured := range s.config.Endpoints {
		if slices.Contains(options.Types(), configured.Service) {
			return gophercloud.NormalizeURL(configured.URL), nil
		}
	}

	s.mu.RLock()
	defer s.mu.RUnlock()

	known := false

	for _, service := range s.catalog {
		if !slices.Contains(options.Types(), service.Type) {
			continue
		}

		known = true
		for _, endpoint := range service.Endpoints {
			if endpoint.Interface == string(s.config.Interface) && s.inRegion(endpoint) {
				return gophercloud.NormalizeURL(endpoint.URL), nil
			}
		}
	}

	if !known {
		return "", cyborg.Errorf(cyborg.ErrUnavailable, "Keystone's catalog has no service of type %s", options.Type).
			WithHint("Register it in Keystone, or name its URL in openstack.endpoints.")
	}

	return "", cyborg.Errorf(cyborg.ErrUnavailable, "Keystone's catalog has no %s endpoint of the service %s%s",
		s.config.Interface, options.Type, s.regionText()).
		WithHint("Correct openstack.interface or openstack.region, or name its URL in openstack.endpoints.")
}

// inRegion reports whether an endpoint is in our region. Without a configured
// region, every endpoint is.
func (s *Session) inRegion(endpoint tokens.Endpoint) bool {
	return s.own.region == "" || endpoint.Region == s.own.region || endpoint.RegionID == s.own.region
}

// regionText names the configured region, as a part of an error.
func (s *Session) regionText() string {
	if s.own.region == "" {
		return ""
	}
	return " in the region " + s.own.region
}

// identityURL returns the base URL of Keystone's version 3 for an address with
// or without the version.
func identityURL(text string) (string, error) {
	parsed, err := url.Parse(text)
	if err != nil || parsed.Host == "" {
		return "", cyborg.Errorf(cyborg.ErrInvalid, "openstack.auth_url %q is not a URL", text)
	}

	parsed.Path = strings.TrimSuffix(strings.TrimRight(parsed.Path, "/"), "/v3") + "/v3/"
	parsed.RawQuery, parsed.Fragment = "", ""

	return parsed.String(), nil
}

// loopback reports whether the host is this machine, by its name or address.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
