// Package openstack is the server's session with a cloud: its own user at Keystone, the catalog, and clients for the
// services that the catalog lists. What is said to a service is in a package of its own below this one. It must not
// import the API, the store or a workflow.
package openstack

import (
	"bytes"
	"context"
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
)

const (
	// renewBefore is how long before its end our own token is replaced: longer than a request that carries it takes.
	renewBefore = 2 * time.Minute
	// retryAfter is how long Keystone is left alone then, while it does not answer and the old token is still good.
	retryAfter = 10 * time.Second
	// connections is how many idle connections to one service are kept.
	connections = 16
	// noToken stands for our own token until the first login. It is not empty, since gophercloud takes an empty one for leave to
	// log in although somebody else just has.
	noToken = "none"
)

// Session is our own user's session with the cloud. It logs in when it is first needed, and again when its token ends.
// Its methods may be called at once.
type Session struct {
	config   config.OpenStack
	own      credentials
	identity string // base URL of Keystone's version 3
	provider *gophercloud.ProviderClient
	log      *slog.Logger

	mu      sync.RWMutex
	catalog []tokens.CatalogEntry
	user    string
	expires time.Time
	retry   time.Time // not before this is a token replaced that is still good
}

// New prepares a session; nothing is asked of the cloud yet. The error is of kind ErrInvalid: the URL of Keystone, the
// authorities' file or the entry of clouds.yaml cannot be used.
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
	s.provider.HTTPClient = http.Client{CheckRedirect: nearby, Transport: &traced{log: log, next: &patience{limit: c.Answer, next: &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: c.Connect, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   c.Connect,
		TLSClientConfig:       own.tls,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   connections,
		IdleConnTimeout:       time.Minute,
		ExpectContinueTimeout: time.Second,
	}}}}
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

// mostRedirects is how many redirections of one request are followed.
const mostRedirects = 5

// nearby follows a redirection to where the request went, or to the same with https. Elsewhere our own token, and at the login
// our password, would be told to somebody that neither the operator nor the catalog has named.
func nearby(r *http.Request, before []*http.Request) error {
	asked := before[0].URL
	safer := asked.Scheme == "http" && r.URL.Scheme == "https" && r.URL.Hostname() == asked.Hostname()
	switch {
	case len(before) > mostRedirects:
		return cyborg.Errorf(cyborg.ErrUnavailable, "%s redirects more than %d times", asked.Redacted(), mostRedirects)
	case !safer && (r.URL.Host != asked.Host || r.URL.Scheme != asked.Scheme):
		return cyborg.Errorf(cyborg.ErrUnavailable, "%s redirects to %s, which is not the same service", asked.Redacted(), r.URL.Redacted()).
			WithHint("Correct the endpoint in Keystone's catalog, or openstack.endpoints.")
	}
	return nil
}

// Who is our own user, or the application credential with which it logs in, in words.
func (s *Session) Who() string { return s.own.who }

// AuthURL is where Keystone is.
func (s *Session) AuthURL() string { return s.own.authURL }

// Close closes idle connections.
func (s *Session) Close() { s.provider.HTTPClient.CloseIdleConnections() }

// Service returns a client of the service of that type (placement, compute, image), which carries our own token. It has
// no microversion yet; the caller sets it. Get one for each piece of work, since the catalog may change. Errors:
// Unavailable where Keystone does not answer or does not let us in, or where the catalog lists no such service.
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

// Identity returns a client of Keystone at openstack.auth_url, whatever the catalog says. Errors are those of Service.
func (s *Session) Identity(ctx context.Context) (*gophercloud.ServiceClient, error) {
	if err := s.ensure(ctx); err != nil {
		return nil, err
	}
	return s.keystone(s.provider), nil
}

// User is the id of our own user. Errors are those of Service.
func (s *Session) User(ctx context.Context) (string, error) {
	if err := s.ensure(ctx); err != nil {
		return "", err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.user, nil
}

// Ping says whether Keystone lets us in: nil, or an error of kind ErrUnavailable.
func (s *Session) Ping(ctx context.Context) error { return s.ensure(ctx) }

func (s *Session) keystone(provider *gophercloud.ProviderClient) *gophercloud.ServiceClient {
	return &gophercloud.ServiceClient{ProviderClient: provider, Endpoint: s.identity, Type: "identity"}
}

// ensure logs in unless we are and will be for a while.
func (s *Session) ensure(ctx context.Context) error {
	s.mu.RLock()
	expires, retry, token := s.expires, s.retry, s.provider.Token()
	s.mu.RUnlock()
	now := time.Now()
	good := now.Before(expires)
	if now.Before(expires.Add(-renewBefore)) || good && now.Before(retry) {
		return nil
	}
	err := s.renew(ctx, token)
	if err != nil && good && ctx.Err() == nil {
		s.mu.Lock()
		s.retry = time.Now().Add(retryAfter)
		s.mu.Unlock()
		return nil
	}
	return err
}

// renew replaces that token, unless somebody else has or is about to, and waits for it for as long as ctx allows; the login
// goes on.
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

// login gets a new token and the catalog. gophercloud calls it once at a time, also where a service answered 401.
func (s *Session) login(ctx context.Context) error {
	// Others may wait for the same login: it must not end with the request that happened to come first.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.Connect+s.config.Answer)
	defer cancel()
	alone := &gophercloud.ProviderClient{HTTPClient: s.provider.HTTPClient, UserAgent: s.provider.UserAgent}
	options := s.own.login
	result := tokens.Create(ctx, s.keystone(alone), &options)
	if result.Err != nil {
		return s.refused(result.Err)
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
	defer s.mu.Unlock() // who sees the new token sees how long it is good, too
	if err := s.provider.SetTokenAndAuthResult(result); err != nil {
		return Explain("identity", err)
	}
	s.catalog, s.expires, s.user = catalog.Entries, token.ExpiresAt, user.ID
	s.log.DebugContext(ctx, "logged in at Keystone", slog.String("own", s.own.who), slog.Time("until", token.ExpiresAt))
	return nil
}

// refused explains why we could not log in. Whatever Keystone says of that is no fault of whoever asked us for something else.
func (s *Session) refused(err error) error {
	said, _ := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err)
	switch {
	case said.Actual == http.StatusUnauthorized, said.Actual == http.StatusForbidden,
		said.Actual == http.StatusNotFound && bytes.Contains(said.Body, []byte("Application Credential")): // it was deleted
		return cyborg.Errorf(cyborg.ErrUnavailable, "Keystone does not let our own %s in", s.own.who).
			WithHint("The operator of this server corrects who it is: openstack.username, password, project_name and the domains, or the application credential.")
	case said.Actual != 0:
		return cyborg.Errorf(cyborg.ErrUnavailable, "%w", Explain("identity", err))
	}
	return Explain("identity", err)
}

// endpoint is the base URL of a service, with a slash at its end: the configured one, else the catalog's.
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

func (s *Session) inRegion(endpoint tokens.Endpoint) bool {
	return s.own.region == "" || endpoint.Region == s.own.region || endpoint.RegionID == s.own.region
}

func (s *Session) regionText() string {
	if s.own.region == "" {
		return ""
	}
	return " in the region " + s.own.region
}

// identityURL is the base URL of Keystone's version 3, from one with or without the version.
func identityURL(text string) (string, error) {
	parsed, err := url.Parse(text)
	if err != nil || parsed.Host == "" {
		return "", cyborg.Errorf(cyborg.ErrInvalid, "openstack.auth_url %q is not a URL", text)
	}
	parsed.Path = strings.TrimSuffix(strings.TrimRight(parsed.Path, "/"), "/v3") + "/v3/"
	parsed.RawQuery, parsed.Fragment = "", ""
	return parsed.String(), nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
