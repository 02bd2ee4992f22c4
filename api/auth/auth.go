// Package auth says who makes a request and what they may do: static bearer tokens, client certificates, or, where
// neither is configured, everybody who reaches the loopback listener. It knows no route and must not import handlers.
package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/cyborg-project/cyborg"
)

// Role is what a caller may do. Each may do what the one before it may.
type Role string

// The roles.
const (
	Public Role = "public" // everybody, without a credential: of routes only, no caller has it
	Reader Role = "reader" // reads everything
	Member Role = "member" // attaches, detaches and programs, and cancels and retries what it asked for
	Admin  Role = "admin"  // everything
)

// Roles lists the roles that a caller can have, the least first.
func Roles() []Role { return []Role{Reader, Member, Admin} }

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

// Includes says whether the bearer of this role may do what needs the other one.
func (r Role) Includes(needed Role) bool { return needed.rank() > 0 && r.rank() >= needed.rank() }

// Token is a static bearer token.
type Token struct {
	Name   string // who bears it, as histories name them
	Secret string
	Role   Role
}

// LogValue keeps the secret out of logs.
func (t Token) LogValue() slog.Value {
	return slog.GroupValue(slog.String("name", t.Name), slog.String("role", string(t.Role)))
}

// String keeps the secret out of what is printed.
func (t Token) String() string { return t.Name + " (" + string(t.Role) + ")" }

// Caller is who makes a request.
type Caller struct {
	Name string
	Role Role
}

// Local is the caller where no credential is configured.
func Local() Caller { return Caller{Name: "local", Role: Admin} }

// Config says which credentials are accepted. The zero value accepts everybody, as Local.
type Config struct {
	Tokens []Token
	// Certificates accepts client certificates that the listener has verified. The common name is the caller's name,
	// an organizational unit that names a role its role, and without one it is Reader.
	Certificates bool
}

// Authenticator finds out who makes a request.
type Authenticator struct {
	tokens       []hashedToken
	certificates bool
}

type hashedToken struct {
	hash   [sha256.Size]byte
	caller Caller
}

// New checks the configuration. The error is of kind Invalid and names the token, never its secret.
func New(config Config) (*Authenticator, error) {
	a := &Authenticator{certificates: config.Certificates}
	names, hashes := map[string]bool{}, map[[sha256.Size]byte]string{}
	for i, token := range config.Tokens {
		hash := sha256.Sum256([]byte(token.Secret))
		other, reused := hashes[hash]
		switch {
		case token.Name == "":
			return nil, cyborg.Errorf(cyborg.Invalid, "token %d has no name", i+1)
		case token.Secret == "":
			return nil, cyborg.Errorf(cyborg.Invalid, "token %q is empty", token.Name)
		case !token.Role.Includes(Reader):
			return nil, cyborg.Errorf(cyborg.Invalid, "token %q has role %q; the roles are %v", token.Name, token.Role, Roles())
		case names[token.Name]:
			return nil, cyborg.Errorf(cyborg.Invalid, "two tokens have the name %q", token.Name)
		case reused:
			return nil, cyborg.Errorf(cyborg.Invalid, "the tokens %q and %q are the same", other, token.Name)
		}
		names[token.Name], hashes[hash] = true, token.Name
		a.tokens = append(a.tokens, hashedToken{hash: hash, caller: Caller{Name: token.Name, Role: token.Role}})
	}
	return a, nil
}

// Open says that no credential is configured: everybody who reaches the listener is Local.
func (a *Authenticator) Open() bool { return len(a.tokens) == 0 && !a.certificates }

// Scheme says in words how callers prove who they are.
func (a *Authenticator) Scheme() string {
	switch {
	case a.Open():
		return "none: this listener is on loopback only, and everybody who reaches it is admin"
	case len(a.tokens) == 0:
		return "client certificate"
	case a.certificates:
		return "bearer token or client certificate"
	}
	return "bearer token"
}

// Authenticate finds the caller. The error is of kind Unauthenticated.
func (a *Authenticator) Authenticate(r *http.Request) (Caller, error) {
	if a.Open() {
		return Local(), nil
	}
	header := r.Header.Get("Authorization")
	if header == "" {
		if caller, ok := a.certified(r); ok {
			return caller, nil
		}
		return Caller{}, cyborg.Errorf(cyborg.Unauthenticated, "the request has no credential").
			WithHint("Send the header Authorization: Bearer <token>.")
	}
	scheme, secret, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return Caller{}, cyborg.Errorf(cyborg.Unauthenticated, "the Authorization header is not a bearer token").
			WithHint("Send the header Authorization: Bearer <token>.")
	}
	hash := sha256.Sum256([]byte(strings.TrimSpace(secret)))
	found := -1
	for i := range a.tokens { // all of them, so that the time says nothing
		if subtle.ConstantTimeCompare(hash[:], a.tokens[i].hash[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return Caller{}, cyborg.Errorf(cyborg.Unauthenticated, "nobody has this token").
			WithHint("Ask the operator of this server for a token, or check yours for missing characters.")
	}
	return a.tokens[found].caller, nil
}

func (a *Authenticator) certified(r *http.Request) (Caller, bool) {
	if !a.certificates || r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return Caller{}, false
	}
	subject := r.TLS.VerifiedChains[0][0].Subject
	caller := Caller{Name: subject.CommonName, Role: Reader}
	for _, unit := range subject.OrganizationalUnit {
		if role := Role(unit); role.Includes(caller.Role) {
			caller.Role = role
		}
	}
	return caller, caller.Name != ""
}

type callerKey struct{}

// WithCaller returns a context that knows the caller.
func WithCaller(ctx context.Context, caller Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, caller)
}

// CallerOf is the caller of the request that ctx belongs to; the zero Caller, who may do nothing, outside of one.
func CallerOf(ctx context.Context) Caller {
	caller, _ := ctx.Value(callerKey{}).(Caller)
	return caller
}

// Require returns an error of kind Forbidden unless the caller's role includes the needed one. What says, after "to",
// what was asked for.
func Require(ctx context.Context, needed Role, what string) error {
	caller := CallerOf(ctx)
	if caller.Role.Includes(needed) {
		return nil
	}
	return cyborg.Errorf(cyborg.Forbidden, "%s has the role %s, and to %s needs %s", caller.Name, caller.Role, what, needed).
		WithHint("%s", fmt.Sprintf("Use a token with the role %s.", needed))
}
