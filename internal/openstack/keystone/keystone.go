// Package keystone asks Keystone whether the tokens of callers are valid, and
// caches its answers. It must not import the API, the store or a workflow.
package keystone

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/openstack"
)

const (
	// refusalWindow is how long a token that Keystone has refused is refused
	// without asking again.
	refusalWindow = 10 * time.Second
	// awayWindow is how long Keystone is left alone after it did not answer.
	// Meanwhile, tokens in the cache are accepted at once, and for all others the
	// answer is that Keystone is not available.
	awayWindow = 2 * time.Second
	// askLimit bounds one request to Keystone, including a login of ours.
	askLimit = 8 * time.Second
	// defaultConfirm is the default of Options.Confirm.
	defaultConfirm = 2 * time.Second
	// expiredWindow is how long a cached answer about an expired token counts while
	// Keystone is away. Expired tokens are accepted only together with a service
	// token.
	expiredWindow = 15 * time.Minute
	// defaultDomain is the id of the domain that every Keystone begins with.
	defaultDomain = "default"
	// longestName is how much of a user's name is kept, in characters.
	longestName = 255
	// longestToken is more than any token of Keystone's has, in bytes.
	longestToken = 16 << 10
)

// Token is what Keystone returns about a valid token.
type Token struct {
	UserID string
	// User is the user's name. Names are unique within a domain only, so "@" and
	// the domain's name follow unless it is the default domain.
	User string

	// ProjectID, DomainID and System are the token's scope: at most one of them is
	// set.
	ProjectID, DomainID string
	System              bool

	// UserDomainID and ProjectDomainID are the domains of the user and of the
	// project.
	UserDomainID, ProjectDomainID string

	// AdminProject is false if Keystone has an admin project configured and the
	// token is for another project.
	AdminProject bool
	Roles        []string
	Expires      time.Time
}

// Options configure a validator.
type Options struct {
	// Revocation is how long an answer counts before Keystone is asked again. While
	// Keystone answers, a revoked token is accepted for at most as long.
	Revocation time.Duration
	// Tokens is the largest number of answers in the cache.
	Tokens   int
	Registry prometheus.Registerer
	Log      *slog.Logger
	// Confirm is how long a caller with a token in the cache waits for Keystone to
	// confirm it; after that, the cached answer counts. It also bounds the validation
	// of our own token after that of a caller's token has failed. The default is 2 s.
	Confirm time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Validator finds out whose a token is. Its methods are safe for concurrent
// use.
type Validator struct {
	session    *openstack.Session
	revocation time.Duration
	confirm    time.Duration
	now        func() time.Time
	log        *slog.Logger
	answers    *prometheus.CounterVec

	good    *lru.Cache[key, answer]
	refused *lru.Cache[key, time.Time] // end of the refusal; a cache of its own, so that made-up tokens evict no valid one

	flights singleflight.Group  // one request for all callers with the same token
	known   *semaphore.Weighted // limits the requests about tokens that are in the cache
	others  *limiter            // limits the requests about all other tokens
	away    atomic.Int64        // until when Keystone is left alone, in nanoseconds since 1970
}

// key identifies a token in the caches, together with the way it was asked
// about. The token itself is never kept.
type key struct {
	hash    [sha256.Size]byte
	expired bool // whether an expired token was to be accepted
}

// flight returns the key's name in the singleflight group.
func (k key) flight() string {
	if k.expired {
		return string(k.hash[:]) + "x"
	}
	return string(k.hash[:])
}

// answer is a cached answer of Keystone.
type answer struct {
	token Token
	at    time.Time // when Keystone was asked
}

// lasts reports whether the token has not expired, or does not need to.
func (a answer) lasts(mayBeExpired bool, now time.Time) bool {
	return mayBeExpired || now.Before(a.token.Expires)
}

// recent reports whether Keystone was asked so lately that a revocation since
// then may stay unnoticed.
func (a answer) recent(revocation time.Duration, now time.Time) bool {
	return now.Before(a.at.Add(revocation))
}

// New returns a validator that asks through the session. An error means that
// its metrics are registered already, or that Options.Tokens is not positive.
func New(session *openstack.Session, o Options) (*Validator, error) {
	v := &Validator{
		session: session, revocation: o.Revocation, confirm: cmp.Or(o.Confirm, defaultConfirm), now: o.Now, log: o.Log, known: semaphore.NewWeighted(maxRequests), others: newLimiter(),
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cyborg_keystone_tokens_total",
			Help: "Tokens of callers, by how they were checked: remembered, asked (Keystone said yes), refused (it said no), stale (it is away and said yes before), unavailable (it is away, or has too much to do with tokens of the same client).",
		}, []string{"answer"}),
	}

	if v.now == nil {
		v.now = time.Now
	}

	var err error
	if v.good, err = lru.New[key, answer](o.Tokens); err != nil {
		return nil, err
	}
	if v.refused, err = lru.New[key, time.Time](o.Tokens); err != nil {
		return nil, err
	}

	return v, o.Registry.Register(v.answers)
}

// Validate returns what the token is. client identifies the sender, an address
// or a service, for the limits on unknown tokens. mayBeExpired accepts an
// expired token for as long as Keystone allows it: for requests that a service
// makes on behalf of a user whose token has ended while the service was
// working. Errors: ErrUnauthenticated if Keystone does not know the token;
// ErrUnavailable if the token is not in the cache and Keystone does not answer,
// or too many requests wait for it already.
func (v *Validator) Validate(ctx context.Context, client, token string, mayBeExpired bool) (Token, error) {
	if !wellFormed(token) {
		return Token{}, v.refuse()
	}

	k, now := key{hash: sha256.Sum256([]byte(token)), expired: mayBeExpired}, v.now()

	known, ok := v.good.Get(k)
	ok = ok && known.lasts(mayBeExpired, now)
	if ok && known.recent(v.revocation, now) {
		v.answers.WithLabelValues("remembered").Inc()
		return known.token, nil
	}

	if until, refused := v.refused.Get(k); refused && now.Before(until) {
		return Token{}, v.refuse()
	}

	usable := ok && (now.Before(known.token.Expires) || now.Before(known.at.Add(expiredWindow)))

	if now.UnixNano() < v.away.Load() {
		return v.fallback(known, usable, nil)
	}

	// Tokens in the cache have a limit of their own, so that a flood of unknown
	// tokens does not delay known callers.
	acquire := func(ctx context.Context) (func(), error) { return v.others.acquire(ctx, client) }
	if ok {
		acquire = v.acquireKnown
	}

	// The request goes on without this caller's context, because other callers may
	// wait for the same answer.
	found := v.flights.DoChan(k.flight(), func() (any, error) { return v.ask(context.WithoutCancel(ctx), k, token, acquire) })

	var timeout <-chan time.Time
	if usable {
		timer := time.NewTimer(v.confirm)
		defer timer.Stop()

		timeout = timer.C
	}

	select {
	case result := <-found:
		switch {
		case result.Err == nil:
			v.answers.WithLabelValues("asked").Inc()
			return result.Val.(Token), nil //nolint:forcetypeassert // ask returns no other
		case cyborg.ErrorKindOf(result.Err) == cyborg.ErrUnauthenticated:
			return Token{}, v.refuse()
		}
		return v.fallback(known, usable, result.Err)
	case <-timeout:
		return v.fallback(known, usable, nil)
	case <-ctx.Done():
		return Token{}, ctx.Err()
	}
}

// fallback returns the cached answer where Keystone gives none, if it is
// usable; otherwise an error. err is why Keystone gave none; nil where Keystone
// was not asked, or not waited for any longer.
func (v *Validator) fallback(known answer, usable bool, err error) (Token, error) {
	if usable {
		v.answers.WithLabelValues("stale").Inc()
		return known.token, nil
	}

	v.answers.WithLabelValues("unavailable").Inc()
	if errors.Is(err, errOverloaded) {
		return Token{}, err
	}

	return Token{}, cyborg.Errorf(cyborg.ErrUnavailable, "Keystone does not answer, so the token cannot be checked").
		WithHint("Try again after the time in Retry-After.")
}

// refuse returns the error for a token that is not valid, and counts it.
func (v *Validator) refuse() error {
	v.answers.WithLabelValues("refused").Inc()
	return cyborg.Errorf(cyborg.ErrUnauthenticated, "the token is not valid: it has expired, was revoked, or was never issued").
		WithHint("Get another from Keystone.")
}

// ask asks Keystone, on behalf of all callers that wait for the same token, and
// caches the answer. It looks into the cache once more: another request about
// the token may have ended after the caller found nothing there.
func (v *Validator) ask(ctx context.Context, k key, token string, acquire func(context.Context) (func(), error)) (Token, error) {
	now := v.now()
	if known, ok := v.good.Get(k); ok && known.lasts(k.expired, now) && known.recent(v.revocation, now) {
		return known.token, nil
	}

	if until, refused := v.refused.Get(k); refused && now.Before(until) {
		return Token{}, unknown()
	}

	waiting, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()

	release, err := acquire(waiting)
	if err != nil {
		return Token{}, err
	}
	defer release()

	asked := v.now() // before the request: the answer is not newer than that
	valid, err := v.fetch(ctx, askLimit, token, k.expired)

	switch {
	case err == nil:
		v.good.Add(k, answer{token: valid, at: asked})
		return valid, nil
	case cyborg.ErrorKindOf(err) == cyborg.ErrUnauthenticated:
		v.cacheRefusal(k)
		if k.expired { // a token that is refused with its expiry ignored is refused without that, too
			v.cacheRefusal(key{hash: k.hash})
		}
		return Token{}, err
	}

	return Token{}, v.recordFailure(ctx, err)
}

// unknown is the error for a token that Keystone does not know.
func unknown() error {
	return cyborg.Errorf(cyborg.ErrUnauthenticated, "Keystone does not know the token")
}

// acquireKnown acquires a place for a request about a token that is in the
// cache.
func (v *Validator) acquireKnown(ctx context.Context) (func(), error) {
	if v.known.Acquire(ctx, 1) != nil {
		return nil, overloaded()
	}
	return func() { v.known.Release(1) }, nil
}

// cacheRefusal drops the cached answer and caches that Keystone has refused the
// token.
func (v *Validator) cacheRefusal(k key) {
	v.good.Remove(k)
	v.refused.Add(k, v.now().Add(refusalWindow))
}

// recordFailure logs that Keystone did not answer, and checks with our own
// token whether it is away altogether. Only then is it left alone for a while:
// otherwise anybody could cut off all callers with a made-up token that makes
// Keystone, or a proxy in front of it, fail.
func (v *Validator) recordFailure(ctx context.Context, err error) error {
	_, own, _ := v.flights.Do("own", func() (any, error) {
		_, err := v.fetch(ctx, v.confirm, "", false)
		return nil, err
	})

	why, hint := slog.String("error", err.Error()), slog.String("hint", cyborg.AsError(err).Hint)

	if own == nil || cyborg.ErrorKindOf(own) == cyborg.ErrUnauthenticated {
		v.log.WarnContext(ctx, "Keystone does not answer about one token, and answers about others", why, hint)
	} else {
		v.away.Store(v.now().Add(awayWindow).UnixNano())
		v.log.WarnContext(ctx, "Keystone does not answer about any token", why, hint)
	}

	return cyborg.Errorf(cyborg.ErrUnavailable, "%w", err)
}

// fetch asks Keystone about a token (GET /v3/auth/tokens, "Validate and show
// information for token"). An empty token stands for our own.
func (v *Validator) fetch(ctx context.Context, limit time.Duration, token string, mayBeExpired bool) (Token, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	client, err := v.session.Identity(ctx)
	if err != nil {
		return Token{}, err
	}

	if token == "" {
		token = client.Token()
	}

	url := client.ServiceURL("auth", "tokens") + "?nocatalog=1"
	if mayBeExpired {
		url += "&allow_expired=1"
	}

	var body struct {
		Token struct {
			User struct {
				ID, Name string
				Domain   struct{ ID, Name string }
			}
			Project struct {
				ID     string
				Domain struct{ ID string }
			}
			Domain       struct{ ID string }
			System       struct{ All bool }
			AdminProject *bool `json:"is_admin_project"`
			Roles        []struct{ Name string }
			Expires      time.Time `json:"expires_at"`
		}
	}

	_, err = client.Get(ctx, url, &body, &gophercloud.RequestOpts{MoreHeaders: map[string]string{"X-Subject-Token": token}}) //nolint:bodyclose // gophercloud closes what it decodes
	switch {
	case gophercloud.ResponseCodeIs(err, http.StatusNotFound), gophercloud.ResponseCodeIs(err, http.StatusBadRequest):
		return Token{}, unknown()
	case err != nil:
		return Token{}, openstack.Explain("identity", err)
	case body.Token.User.ID == "" || body.Token.Expires.IsZero():
		return Token{}, cyborg.Errorf(cyborg.ErrUnavailable, "Keystone's answer names no user or no end of the token")
	}

	valid := Token{
		UserID: body.Token.User.ID, User: body.Token.User.Name, ProjectID: body.Token.Project.ID, DomainID: body.Token.Domain.ID,
		UserDomainID: body.Token.User.Domain.ID, ProjectDomainID: body.Token.Project.Domain.ID,
		AdminProject: body.Token.AdminProject == nil || *body.Token.AdminProject, // as keystonemiddleware: X-Is-Admin-Project
		System:       body.Token.System.All, Expires: body.Token.Expires,
	}

	if domain := body.Token.User.Domain; domain.ID != defaultDomain && domain.Name != "" {
		valid.User += "@" + domain.Name
	}

	valid.User = cyborg.Sanitize(valid.User, longestName) // the name goes into records and logs
	for _, role := range body.Token.Roles {
		valid.Roles = append(valid.Roles, role.Name)
	}

	return valid, nil
}

// wellFormed reports whether Keystone can have issued the token: it is
// printable ASCII and no longer than a header may be.
func wellFormed(token string) bool {
	if token == "" || len(token) > longestToken {
		return false
	}

	for i := range len(token) {
		if token[i] <= ' ' || token[i] >= 0x7f {
			return false
		}
	}

	return true
}
