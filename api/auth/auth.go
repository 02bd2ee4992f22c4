// Package auth finds out who makes a request and what they may do: by tokens of
// Keystone, static tokens, or client certificates. If none of them is
// configured, everybody who reaches the loopback listener is admin. It knows no
// route and must not import handlers.
package auth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/limiter"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/identity"
)

// Role is what a caller may do on /v1. Each role includes the roles before it.
type Role string

// The roles.
const (
	Public Role = "public" // everybody, without a credential; only routes need it; no caller has it
	Reader Role = "reader" // reads everything
	Member Role = "member" // also attaches, detaches and programs, and cancels and retries its own operations
	Admin  Role = "admin"  // everything
)

// Roles lists the roles that a caller can have, the least powerful first.
func Roles() []Role { return []Role{Reader, Member, Admin} }

// rank orders the roles; 0 for what is no role.
func (r Role) rank() int {
	switch r {
	case Public:
		return 1
	case Reader:
		return 2
	case Member:
		return 3
	case Admin:
		return 4
	}

	return 0
}

// Includes reports whether a caller with this role may do what needs the other
// role.
func (r Role) Includes(needed Role) bool { return needed.rank() > 0 && r.rank() >= needed.rank() }

// Token is a static bearer token.
type Token struct {
	Name   string // the name of its bearer in histories
	Secret string
	Role   Role

	// Project is the project on /v2. Without one, a member has a project of its
	// own, and everybody else none.
	Project string
}

// LogValue keeps the secret out of logs.
func (t Token) LogValue() slog.Value {
	return slog.GroupValue(slog.String("name", t.Name), slog.String("role", string(t.Role)))
}

// String keeps the secret out of printed text.
func (t Token) String() string { return t.Name + " (" + string(t.Role) + ")" }

// ServiceRole is the role by which a service token shows that a service, such
// as Nova, makes the request.
const ServiceRole = "service"

// Caller is who makes a request.
type Caller struct {
	Name string
	// ID tells callers with the same name apart; see cyborg.Actor.
	ID string
	// Role is what the caller may do on /v1; empty for nothing.
	Role Role

	// UserID and Project are Keystone's ids; empty for callers that Keystone does
	// not know.
	UserID, Project string
	// UserDomain and ProjectDomain are the ids of the domains of the user and of
	// the project.
	UserDomain, ProjectDomain string
	// Roles are the names that policy rules ask for: those of the Keystone token,
	// or those that Role stands for.
	Roles []string
	// AdminProject is true unless Keystone sets an admin project and the caller's
	// token is for another project.
	AdminProject bool
	// System says that the token is for the whole cloud, and for no project.
	System bool
	// Domain is the id of the domain that the token is for; such a token is for no
	// project. It is empty for all other tokens.
	Domain string

	// ServiceUser, ServiceUserDomain, ServiceProject and ServiceProjectDomain are
	// ids from the service token that came with the request.
	ServiceUser, ServiceUserDomain, ServiceProject, ServiceProjectDomain string
	// ServiceRoles are the roles of the service token; empty if there was none.
	ServiceRoles []string
}

// Has reports whether the caller has the role under its name in policy rules,
// in upper or lower case.
func (c Caller) Has(role string) bool {
	return slices.ContainsFunc(c.Roles, func(has string) bool { return strings.EqualFold(has, role) })
}

// Service reports whether a service, such as Nova, makes the request on the
// caller's behalf.
func (c Caller) Service() bool { return len(c.ServiceRoles) > 0 }

// Actor returns the caller as the records name it.
func (c Caller) Actor(requestID string) cyborg.Actor {
	return cyborg.Actor{Name: c.Name, ID: c.ID, Project: c.Project, RequestID: requestID}
}

// Identity returns the caller as log and audit trail name it.
func (c Caller) Identity() web.Identity {
	return web.Identity{Name: c.Name, ID: c.UserID, Project: c.Project, Roles: c.Roles}
}

// Static returns the caller of a static token. On /v2 its role stands for the
// roles that Keystone's administrators give: admin implies manager, member and
// reader, and an admin is a service as well. Members have a project each, so
// that none can delete what another one has.
func Static(name string, role Role) Caller {
	return callerWithRole("token/"+name, name, role)
}

// callerWithRole returns a caller that Keystone does not know.
func callerWithRole(id, name string, role Role) Caller {
	caller := Caller{Name: name, ID: id, Role: role, AdminProject: true}

	switch role {
	case Admin:
		caller.Roles, caller.ServiceRoles = []string{"admin", "manager", "member", "reader", ServiceRole}, []string{ServiceRole}
	case Member:
		caller.Roles, caller.Project = []string{"member", "reader"}, id
	case Reader:
		caller.Roles = []string{"reader"}
	case Public:
	}

	return caller
}

// Local returns the caller of a listener that asks for no credential: an admin.
func Local() Caller { return callerWithRole("local", "local", Admin) }

// Config says which credentials are accepted. The zero value accepts everybody,
// as Local.
type Config struct {
	Tokens []Token

	// Certificates accepts client certificates that the listener has verified. The
	// URI says the caller's role and name (internal/identity); nothing else in the
	// certificate counts, and those of hosts and servers are no callers.
	Certificates bool

	// TrustDomain is that of the certificates; default identity.DefaultTrustDomain.
	TrustDomain string

	// Keystone says how tokens of Keystone are accepted.
	Keystone Keystone
}

// Authenticator finds out who makes a request.
type Authenticator struct {
	tokens       []hashedToken
	certificates bool
	trustDomain  string
	keystone     Keystone
}

// hashedToken is a static token with its hash instead of its secret.
type hashedToken struct {
	hash   [sha256.Size]byte
	caller Caller
}

// New checks the configuration. The error is of kind ErrInvalid; it names the
// wrong token, and never its secret.
func New(config Config) (*Authenticator, error) {
	a := &Authenticator{
		certificates: config.Certificates, trustDomain: cmp.Or(config.TrustDomain, identity.DefaultTrustDomain), keystone: config.Keystone,
	}
	names, hashes := map[string]bool{}, map[[sha256.Size]byte]string{}

	for i, token := range config.Tokens {
		hash := sha256.Sum256([]byte(token.Secret))
		other, reused := hashes[hash]

		switch {
		case token.Name == "":
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "token %d has no name", i+1)
		case token.Secret == "":
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "token %q is empty", token.Name)
		case !token.Role.Includes(Reader):
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "token %q has role %q; the roles are %v", token.Name, token.Role, Roles())
		case names[token.Name]:
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "two tokens have the name %q", token.Name)
		case reused:
			return nil, cyborg.Errorf(cyborg.ErrInvalid, "the tokens %q and %q are the same", other, token.Name)
		}

		names[token.Name], hashes[hash] = true, token.Name
		caller := Static(token.Name, token.Role)
		if token.Project != "" {
			caller.Project = token.Project
		}
		a.tokens = append(a.tokens, hashedToken{hash: hash, caller: caller})
	}

	return a, nil
}

// Open reports whether no credential is configured, so that everybody who
// reaches the listener is Local.
func (a *Authenticator) Open() bool {
	return len(a.tokens) == 0 && !a.certificates && a.keystone.Validator == nil
}

// Scheme says in words how callers prove who they are.
func (a *Authenticator) Scheme() string {
	var schemes []string
	if a.keystone.Validator != nil {
		schemes = append(schemes, "Keystone token")
	}
	if len(a.tokens) > 0 {
		schemes = append(schemes, "bearer token")
	}
	if a.certificates {
		schemes = append(schemes, "client certificate")
	}

	if len(schemes) == 0 {
		return "none: this listener is on loopback only, and everybody who reaches it is admin"
	}
	return strings.Join(schemes, " or ")
}

// Authenticate finds the caller. The error is of kind ErrUnauthenticated, with
// the values of WWW-Authenticate (Challenges), of kind ErrForbidden for a
// certificate that is nobody's here, or of kind ErrUnavailable if Keystone does
// not answer.
func (a *Authenticator) Authenticate(r *http.Request) (Caller, error) {
	if a.Open() {
		return Local(), nil
	}

	caller, err := a.authenticate(r)
	if cyborg.ErrorKindOf(err) == cyborg.ErrUnauthenticated {
		err = &challengeError{error: err, challenges: a.challenges()}
	}

	return caller, err
}

// authenticate looks for a credential in this order: the header X-Auth-Token,
// the header Authorization, and the client certificate.
func (a *Authenticator) authenticate(r *http.Request) (Caller, error) {
	if token := r.Header.Get(tokenHeader); token != "" {
		return a.tokenCaller(r, token)
	}

	header := r.Header.Get("Authorization")
	if header == "" {
		return a.certificateCaller(r)
	}

	scheme, secret, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return Caller{}, cyborg.Errorf(cyborg.ErrUnauthenticated, "the Authorization header is not a bearer token").WithHint("%s", a.credentialHint())
	}

	return a.tokenCaller(r, strings.TrimSpace(secret))
}

// static finds the caller of a static token.
func (a *Authenticator) static(secret string) (Caller, bool) {
	hash := sha256.Sum256([]byte(secret))
	found := -1
	// All tokens are compared, in constant time, so that the time of an answer does
	// not reveal which token is nearly right.
	for i := range a.tokens {
		if subtle.ConstantTimeCompare(hash[:], a.tokens[i].hash[:]) == 1 {
			found = i
		}
	}

	if found < 0 {
		return Caller{}, false
	}
	return a.tokens[found].caller, true
}

// unknownToken returns the error for a token that is not known here.
func unknownToken() error {
	return cyborg.Errorf(cyborg.ErrUnauthenticated, "this token is not valid here").
		WithHint("Ask the operator of this server for a token, or check yours for missing characters.")
}

// credentialHint says how to send a credential.
func (a *Authenticator) credentialHint() string {
	if a.keystone.Validator != nil {
		return "Send a token of Keystone in the header X-Auth-Token."
	}
	return "Send the header Authorization: Bearer <token>."
}

// challenges returns the values of the header WWW-Authenticate.
func (a *Authenticator) challenges() []string {
	var all []string
	if a.keystone.Validator != nil {
		all = append(all, fmt.Sprintf("Keystone uri=%q", a.keystone.URI))
	}

	// An answer 401 must have at least one challenge.
	if len(a.tokens) > 0 || len(all) == 0 {
		all = append(all, `Bearer realm="cyborg"`)
	}

	return all
}

// challengeError is an error with the values of the header WWW-Authenticate for
// its answer.
type challengeError struct {
	error

	challenges []string
}

func (r *challengeError) Unwrap() error { return r.error }

// Challenges returns the values of the header WWW-Authenticate.
func (r *challengeError) Challenges() []string { return r.challenges }

// certificateCaller finds the caller of a verified client certificate. A
// certificate that is nobody's is an error of its own, so that its holder learns
// why.
func (a *Authenticator) certificateCaller(r *http.Request) (Caller, error) {
	none := cyborg.Errorf(cyborg.ErrUnauthenticated, "the request has no credential").WithHint("%s", a.credentialHint())
	if !a.certificates {
		return Caller{}, none
	}

	who, err := identity.OfConnection(r.TLS, a.trustDomain)
	if cyborg.ErrorKindOf(err) == cyborg.ErrUnauthenticated {
		return Caller{}, none
	}
	if err != nil {
		return Caller{}, err
	}

	// The ID has no role in it, so what somebody has stays theirs with another role.
	switch who.Role {
	case identity.Admin, identity.Member, identity.Reader:
		return callerWithRole("certificate/"+who.Name, who.Name, Role(who.Role)), nil
	case identity.Host, identity.Server:
	}
	return Caller{}, cyborg.Errorf(cyborg.ErrForbidden, "the certificate is that of %s, and a %s is no caller of the API", who, who.Role).
		WithHint("Use a certificate with the role admin, member or reader, or a token.")
}

type callerKey struct{}

// WithCaller returns a context that has the caller. Where there is too much to
// do, its requests wait in the line of the caller's project, or of the caller
// alone: whoever has many tokens of one project gets no more turns than others.
func WithCaller(ctx context.Context, caller Caller) context.Context {
	ctx = limiter.WithCaller(ctx, cmp.Or(caller.Project, caller.ID))
	return context.WithValue(ctx, callerKey{}, caller)
}

type proofKey struct{}

// WithProof returns a context whose request StillProven can ask about again.
func WithProof(ctx context.Context, authenticate func() (Caller, error)) context.Context {
	return context.WithValue(ctx, proofKey{}, authenticate)
}

// StillProven returns an error, of kind ErrUnauthenticated or ErrForbidden, where the
// request that ctx belongs to would be refused by now, or come from a caller with
// another role: its token was revoked, or has expired. It is for requests that go on
// for longer than that may take. While nobody can say that, it returns nil; the next
// call asks again.
func StillProven(ctx context.Context) error {
	authenticate, _ := ctx.Value(proofKey{}).(func() (Caller, error))
	if authenticate == nil {
		return nil
	}

	now, err := authenticate()
	if kind := cyborg.ErrorKindOf(err); kind == cyborg.ErrUnauthenticated || kind == cyborg.ErrForbidden {
		return err
	}
	if before := CallerOf(ctx); err == nil && now.Role != before.Role {
		return cyborg.Errorf(cyborg.ErrForbidden, "%s had the role %q, and has %q now", now.Name, before.Role, now.Role)
	}
	return nil
}

// CallerOf returns the caller of the request that ctx belongs to. Outside of a
// request it is the zero Caller, who may do nothing.
func CallerOf(ctx context.Context) Caller {
	caller, _ := ctx.Value(callerKey{}).(Caller)
	return caller
}

// Require returns an error of kind ErrForbidden unless the caller's role
// includes the needed role. The action completes the sentences "to … needs …"
// and "none of them may …" in the messages.
func Require(ctx context.Context, needed Role, action string) error {
	caller := CallerOf(ctx)

	switch {
	case caller.Role.Includes(needed):
		return nil
	case caller.Role == "" && caller.UserID != "":
		return cyborg.Errorf(cyborg.ErrForbidden, "%s has the Keystone roles [%s], and none of them may %s", caller.Name, strings.Join(caller.Roles, " "), action).
			WithHint("The option keystone.%s_roles lists the Keystone roles that may. With a role in a project only, use /v2.", needed)
	}

	has := "has no role"
	if caller.Role != "" {
		has = "has the role " + string(caller.Role)
	}

	return cyborg.Errorf(cyborg.ErrForbidden, "%s %s, and to %s needs the role %s", cmp.Or(caller.Name, "the caller"), has, action, needed).
		WithHint("Use a token with the role %s.", needed)
}
