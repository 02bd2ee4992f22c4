// Package keystone asks Keystone whether tokens of callers are good, and remembers what it said. It must not import the
// API, the store or a workflow.
package keystone

import (
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
	// refusalWindow is how long a token that Keystone refused is refused without asking again.
	refusalWindow = 10 * time.Second
	// awayWindow is how long Keystone is left alone after it did not answer: tokens that are remembered are taken at once
	// meanwhile, and others are answered that Keystone is away.
	awayWindow = 2 * time.Second
	// askLimit bounds one question, a login of ours included.
	askLimit = 8 * time.Second
	// ownLimit bounds the question about our own token, after one about another's came to nothing.
	ownLimit = 2 * time.Second
	// patience is how long the caller of a token that was good lately waits for Keystone to say so again.
	patience = 2 * time.Second
	// expiredWindow is how long a token that has expired, and came with a service token, is taken while Keystone is away.
	expiredWindow = 15 * time.Minute
	// defaultDomain is the id of the domain that Keystone makes itself.
	defaultDomain = "default"
	// longestName is how much of a user's name is kept, in characters.
	longestName = 255
	// longestToken is more than any token of Keystone's has, in bytes.
	longestToken = 16 << 10
)

// Token is what Keystone says of a token that is good.
type Token struct {
	UserID string
	// User is the user's name, with @ and the domain's where that is not the default one: names are only unique in one.
	User string
	// ProjectID, DomainID and System are what it is for: one of them, or nothing.
	ProjectID, DomainID string
	System              bool
	// UserDomainID and ProjectDomainID are the domains in which these are.
	UserDomainID, ProjectDomainID string
	// AdminProject is false where Keystone has a project for its administrators and the token is for another.
	AdminProject bool
	Roles        []string
	Expires      time.Time
}

// Options configure a validator.
type Options struct {
	// Revocation is how long an answer is believed before Keystone is asked again.
	Revocation time.Duration
	// Tokens is how many answers are remembered at most.
	Tokens   int
	Registry prometheus.Registerer
	Log      *slog.Logger
	// Now is the clock; time.Now where it is nil.
	Now func() time.Time
}

// Validator says whose tokens are. Its methods may be called at once.
type Validator struct {
	session    *openstack.Session
	revocation time.Duration
	now        func() time.Time
	log        *slog.Logger
	answers    *prometheus.CounterVec

	good    *lru.Cache[key, answer]
	refused *lru.Cache[key, time.Time] // until when; of its own, so that made-up tokens push no good one out
	asking  singleflight.Group
	known   *semaphore.Weighted // places of tokens that were good lately
	others  *places
	away    atomic.Int64 // until when Keystone is left alone, in nanoseconds since 1970
}

// key stands for a token, which is never kept itself, and for how it was asked about.
type key struct {
	hash    [sha256.Size]byte
	expired bool // whether it may have expired
}

func (k key) flight() string {
	if k.expired {
		return string(k.hash[:]) + "x"
	}
	return string(k.hash[:])
}

type answer struct {
	token Token
	at    time.Time // when Keystone was asked
}

// New returns a validator that asks through the session. The error says that its metrics are registered already.
func New(session *openstack.Session, o Options) (*Validator, error) {
	v := &Validator{
		session: session, revocation: o.Revocation, now: o.Now, log: o.Log, known: semaphore.NewWeighted(atOnce), others: newPlaces(),
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cyborg_keystone_tokens_total",
			Help: "Tokens of callers by how it was known what they are: remembered, asked (Keystone said yes), refused (it said no), stale (it is away and said yes before), unavailable (it is away, or has too much to do with tokens of the same client).",
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

// Validate says what the token is that the client, an address or a service, has sent. MayBeExpired takes one that has expired, for
// as long as Keystone allows: that is for requests that a service makes for a user, whose token ended while the service worked. Errors: Unauthenticated where
// Keystone does not know the token; Unavailable where it does not answer and the token is not remembered.
func (v *Validator) Validate(ctx context.Context, client, token string, mayBeExpired bool) (Token, error) {
	if !wellFormed(token) {
		return Token{}, v.refuse()
	}
	k, now := key{hash: sha256.Sum256([]byte(token)), expired: mayBeExpired}, v.now()
	known, ok := v.good.Get(k)
	ok = ok && (mayBeExpired || now.Before(known.token.Expires))
	if ok && now.Before(known.at.Add(v.revocation)) {
		v.answers.WithLabelValues("remembered").Inc()
		return known.token, nil
	}
	if until, refused := v.refused.Get(k); refused && now.Before(until) {
		return Token{}, v.refuse()
	}
	usable := ok && (now.Before(known.token.Expires) || now.Before(known.at.Add(expiredWindow)))
	if now.UnixNano() < v.away.Load() {
		return v.without(known, usable, nil)
	}
	take := func(ctx context.Context) (func(), error) { return v.others.take(ctx, client) }
	if ok {
		take = v.again
	}
	found := v.asking.DoChan(k.flight(), func() (any, error) { return v.ask(context.WithoutCancel(ctx), k, token, take) })
	var enough <-chan time.Time
	if usable {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		enough = timer.C
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
		return v.without(known, usable, result.Err)
	case <-enough:
		return v.without(known, usable, nil)
	case <-ctx.Done():
		return Token{}, ctx.Err()
	}
}

// without answers where Keystone does not, because of err.
func (v *Validator) without(known answer, usable bool, err error) (Token, error) {
	if usable {
		v.answers.WithLabelValues("stale").Inc()
		return known.token, nil
	}
	v.answers.WithLabelValues("unavailable").Inc()
	if errors.Is(err, errCrowded) {
		return Token{}, err
	}
	return Token{}, cyborg.Errorf(cyborg.ErrUnavailable, "Keystone does not answer, so that nobody can say whose token this is").
		WithHint("Try again after the time in Retry-After.")
}

func (v *Validator) refuse() error {
	v.answers.WithLabelValues("refused").Inc()
	return cyborg.Errorf(cyborg.ErrUnauthenticated, "the token is not valid: it has expired, was revoked, or never was one").
		WithHint("Get another from Keystone.")
}

// ask asks Keystone, for all who wait for the same token, and remembers what it says.
func (v *Validator) ask(ctx context.Context, k key, token string, take func(context.Context) (func(), error)) (Token, error) {
	waiting, cancel := context.WithTimeout(ctx, placeLimit)
	defer cancel()
	leave, err := take(waiting)
	if err != nil {
		return Token{}, err
	}
	defer leave()
	asked := v.now()
	said, err := v.fetch(ctx, askLimit, token, k.expired)
	switch {
	case err == nil:
		v.good.Add(k, answer{token: said, at: asked})
		return said, nil
	case cyborg.ErrorKindOf(err) == cyborg.ErrUnauthenticated:
		v.forget(k)
		if k.expired { // and is not known even so
			v.forget(key{hash: k.hash})
		}
		return Token{}, err
	}
	return Token{}, v.absent(ctx, err)
}

// again takes a place for a token that was good lately.
func (v *Validator) again(ctx context.Context) (func(), error) {
	if v.known.Acquire(ctx, 1) != nil {
		return nil, crowded()
	}
	return func() { v.known.Release(1) }, nil
}

// forget remembers that Keystone refused the token when it was asked so.
func (v *Validator) forget(k key) {
	v.good.Remove(k)
	v.refused.Add(k, v.now().Add(refusalWindow))
}

// absent says in the log that Keystone did not answer, and remembers it where it says nothing of our own token either: anybody
// can make up a token over which Keystone, or what stands before it, stumbles.
func (v *Validator) absent(ctx context.Context, err error) error {
	_, own, _ := v.asking.Do("own", func() (any, error) {
		_, err := v.fetch(ctx, ownLimit, "", false)
		return nil, err
	})
	why, hint := slog.String("error", err.Error()), slog.String("hint", cyborg.AsError(err).Hint)
	if own == nil || cyborg.ErrorKindOf(own) == cyborg.ErrUnauthenticated {
		v.log.WarnContext(ctx, "Keystone cannot say whose a token is, and can of others", why, hint)
	} else {
		v.away.Store(v.now().Add(awayWindow).UnixNano())
		v.log.WarnContext(ctx, "Keystone cannot say whose tokens are", why, hint)
	}
	return cyborg.Errorf(cyborg.ErrUnavailable, "%w", err)
}

// fetch is one request to Keystone (GET /v3/auth/tokens, "Validate and show information for token"); about our own token where
// it names none.
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
		return Token{}, cyborg.Errorf(cyborg.ErrUnauthenticated, "Keystone does not know the token")
	case err != nil:
		return Token{}, openstack.Explain("identity", err)
	case body.Token.User.ID == "" || body.Token.Expires.IsZero():
		return Token{}, cyborg.Errorf(cyborg.ErrUnavailable, "Keystone's answer names no user or no end of the token")
	}
	said := Token{
		UserID: body.Token.User.ID, User: body.Token.User.Name, ProjectID: body.Token.Project.ID, DomainID: body.Token.Domain.ID,
		UserDomainID: body.Token.User.Domain.ID, ProjectDomainID: body.Token.Project.Domain.ID,
		AdminProject: body.Token.AdminProject == nil || *body.Token.AdminProject, // as keystonemiddleware: X-Is-Admin-Project
		System:       body.Token.System.All, Expires: body.Token.Expires,
	}
	if domain := body.Token.User.Domain; domain.ID != defaultDomain && domain.Name != "" {
		said.User += "@" + domain.Name
	}
	said.User = cyborg.Sanitize(said.User, longestName) // it comes into records and logs
	for _, role := range body.Token.Roles {
		said.Roles = append(said.Roles, role.Name)
	}
	return said, nil
}

// wellFormed says whether Keystone can have issued such a token: printable ASCII, and not longer than a header may be.
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
