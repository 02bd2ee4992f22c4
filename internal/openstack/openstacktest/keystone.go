// Package openstacktest is a Keystone for tests. It issues, validates and
// revokes tokens over HTTP as Keystone's version 3 does, and can be away, slow
// or broken. Only tests import it.
package openstacktest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg/internal/config"
)

// The server's own user and its application credential.
const (
	OwnUser       = "cyborg"
	OwnUserID     = "u-cyborg"
	OwnPassword   = "cyborg-password-0123456789"
	OwnCredential = "4c5b9a7ed7f14e3a9d1f0c8c5a3b2e10"
	OwnSecret     = "cyborg-application-secret-0123456789"
)

// Token is the content of a token.
type Token struct {
	UserID, User         string
	UserDomain           string // name of the user's domain; empty: the default one
	ProjectID, ProjectIs string // the project's id and name
	DomainID             string // of a token for a domain
	System               bool   // the token is for the whole system
	OtherProject         bool   // Keystone has an admin project, and the token is for another one
	Roles                []string
	Expires              time.Time // zero: an hour from now
}

// Keystone is a Keystone that one test uses. Its methods are safe for
// concurrent use.
type Keystone struct {
	URL    string
	server *httptest.Server

	mu        sync.Mutex // guards the fields below
	tokens    map[string]Token
	own       map[string]bool // tokens of our own user
	catalog   []map[string]any
	lifetime  time.Duration // of new tokens of our own user
	disturb   http.HandlerFunc
	asked     map[string]int // validations, by token
	logins    int
	passwords map[string]string
}

// NewKeystone starts a server with our own user and an empty catalog. It ends
// with the test.
func NewKeystone(t testing.TB) *Keystone {
	t.Helper()
	k := &Keystone{
		tokens: map[string]Token{}, own: map[string]bool{}, asked: map[string]int{}, lifetime: time.Hour,
		passwords: map[string]string{OwnUser: OwnPassword},
	}

	k.server = httptest.NewServer(k)
	k.URL = k.server.URL
	t.Cleanup(k.server.Close)

	return k
}

// Config returns the configuration of a session with this Keystone.
func (k *Keystone) Config() config.OpenStack {
	c := config.Default().OpenStack
	c.AuthURL, c.Username, c.Password = k.URL+"/v3", OwnUser, config.Secret(OwnPassword)
	c.Connect, c.Answer = time.Minute, time.Minute // long enough for the slowest test machine

	return c
}

// Serve adds a service to the catalog, in the region RegionOne, with the URL
// for all interfaces.
func (k *Keystone) Serve(serviceType, url string) {
	k.mu.Lock()
	defer k.mu.Unlock()

	var endpoints []map[string]string
	for _, name := range []string{"public", "internal", "admin"} {
		endpoints = append(endpoints, map[string]string{
			"id": uuid.NewString(), "interface": name, "region": "RegionOne", "region_id": "RegionOne", "url": url,
		})
	}

	k.catalog = append(k.catalog, map[string]any{"id": uuid.NewString(), "name": serviceType, "type": serviceType, "endpoints": endpoints})
}

// Issue returns a new token with that content.
func (k *Keystone) Issue(token Token) string {
	id := "gAAAAAB" + strings.ReplaceAll(uuid.NewString()+uuid.NewString(), "-", "")
	if token.Expires.IsZero() {
		token.Expires = time.Now().Add(time.Hour)
	}

	k.mu.Lock()
	defer k.mu.Unlock()

	k.tokens[id] = token
	return id
}

// Revoke invalidates a token.
func (k *Keystone) Revoke(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()

	delete(k.tokens, id)
	delete(k.own, id)
}

// RevokeOwn invalidates all tokens of our own user.
func (k *Keystone) RevokeOwn() {
	k.mu.Lock()
	defer k.mu.Unlock()

	clear(k.own)
}

// SetLifetime sets how long tokens last that our own user gets from now on.
func (k *Keystone) SetLifetime(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()

	k.lifetime = d
}

// SetPassword changes the password of our own user.
func (k *Keystone) SetPassword(password string) {
	k.mu.Lock()
	defer k.mu.Unlock()

	k.passwords[OwnUser] = password
}

// Disturb lets the handler answer every request instead; nil ends that.
func (k *Keystone) Disturb(handler http.HandlerFunc) {
	k.mu.Lock()
	defer k.mu.Unlock()

	k.disturb = handler
}

// Away breaks every connection, until Disturb(nil).
func (k *Keystone) Away() {
	k.Disturb(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
}

// Asked returns how often the token was validated.
func (k *Keystone) Asked(id string) int {
	k.mu.Lock()
	defer k.mu.Unlock()

	return k.asked[id]
}

// Logins returns how often our own user has logged in.
func (k *Keystone) Logins() int {
	k.mu.Lock()
	defer k.mu.Unlock()

	return k.logins
}

// IsOwn reports whether the token is a valid one of our own user.
func (k *Keystone) IsOwn(id string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()

	return k.own[id]
}

// OwnTokens returns the tokens that our own user has got.
func (k *Keystone) OwnTokens() []string {
	k.mu.Lock()
	defer k.mu.Unlock()

	return slices.Sorted(maps.Keys(k.own))
}

// ServeHTTP answers with Disturb's handler if there is one, otherwise as
// Keystone does.
func (k *Keystone) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	disturb := k.disturb
	k.mu.Unlock()

	if disturb != nil {
		disturb(w, r)
		return
	}

	k.ServeUndisturbed(w, r)
}

// ServeUndisturbed answers as Keystone does, without regard to Disturb.
func (k *Keystone) ServeUndisturbed(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/v3/auth/tokens" && r.Method == http.MethodPost:
		k.login(w, r)
	case r.URL.Path == "/v3/auth/tokens" && r.Method == http.MethodGet:
		k.validate(w, r)
	default:
		refuse(w, http.StatusNotFound, "The resource could not be found.")
	}
}

// login issues a token for our own user, by password or by application
// credential.
func (k *Keystone) login(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Auth struct {
			Identity struct {
				Password struct {
					User struct {
						Name, Password string
						Domain         struct{ Name string }
					}
				}
				ApplicationCredential struct{ ID, Secret string } `json:"application_credential"`
			}
			Scope *struct {
				Project struct {
					Name   string
					Domain struct{ Name string }
				}
			}
		}
	}

	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}

	k.mu.Lock()
	defer k.mu.Unlock()

	user, scope, credential := asked.Auth.Identity.Password.User, asked.Auth.Scope, asked.Auth.Identity.ApplicationCredential
	byPassword := user.Name != "" && k.passwords[user.Name] == user.Password && user.Domain.Name == "Default" &&
		scope != nil && scope.Project.Name == "service" && scope.Project.Domain.Name == "Default"
	byCredential := credential.ID == OwnCredential && credential.Secret == OwnSecret && scope == nil // a credential implies its project

	// Keystone answers 404, not 401, for an application credential that was
	// deleted.
	if credential.ID != "" && credential.ID != OwnCredential {
		refuse(w, http.StatusNotFound, "Could not find Application Credential: "+credential.ID+".")
		return
	}

	if !byPassword && !byCredential {
		refuse(w, http.StatusUnauthorized, "The request you have made requires authentication.")
		return
	}

	k.logins++
	id := "own-" + uuid.NewString()
	k.own[id] = true
	w.Header().Set("X-Subject-Token", id)

	answer(w, http.StatusCreated, map[string]any{"token": map[string]any{
		"expires_at": stamp(time.Now().Add(k.lifetime)), "issued_at": stamp(time.Now()), "methods": []string{"password"},
		"user": map[string]any{"id": OwnUserID, "name": user.Name}, "roles": roles([]string{"service"}), "catalog": k.catalog,
	}})
}

// validate answers with the content of a token, if our own user asks for it.
func (k *Keystone) validate(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()

	if !k.own[r.Header.Get("X-Auth-Token")] {
		refuse(w, http.StatusUnauthorized, "The request you have made requires authentication.")
		return
	}

	id := r.Header.Get("X-Subject-Token")
	k.asked[id]++
	token, ok := k.tokens[id]

	if !ok || time.Now().After(token.Expires) && r.URL.Query().Get("allow_expired") != "1" {
		refuse(w, http.StatusNotFound, "Could not recognize Fernet token")
		return
	}

	domain := map[string]any{"id": "default", "name": "Default"}
	usersDomain := domain
	if token.UserDomain != "" {
		usersDomain = map[string]any{"id": "id-of-" + token.UserDomain, "name": token.UserDomain}
	}

	body := map[string]any{
		"user":       map[string]any{"id": token.UserID, "name": token.User, "domain": usersDomain, "password_expires_at": nil},
		"audit_ids":  []string{"x"},
		"expires_at": stamp(token.Expires), "issued_at": stamp(time.Now().Add(-time.Minute)), "methods": []string{"password"},
	}

	if len(token.Roles) > 0 {
		body["roles"] = roles(token.Roles)
	}

	switch {
	case token.ProjectID != "":
		body["project"] = map[string]any{"id": token.ProjectID, "name": token.ProjectIs, "domain": domain}
		body["is_domain"] = false
		if token.OtherProject {
			body["is_admin_project"] = false
		}
	case token.DomainID != "":
		body["domain"] = map[string]any{"id": token.DomainID, "name": "other"}
	case token.System:
		body["system"] = map[string]any{"all": true}
	}

	w.Header().Set("X-Subject-Token", id)
	answer(w, http.StatusOK, map[string]any{"token": body})
}

// roles returns the roles as Keystone shows them.
func roles(names []string) []map[string]string {
	var all []map[string]string
	for _, name := range names {
		all = append(all, map[string]string{"id": "r-" + name, "name": name})
	}
	return all
}

// stamp formats a time as Keystone does.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }

// refuse answers with an error document.
func refuse(w http.ResponseWriter, status int, message string) {
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Keystone uri="http://keystone/v3"`)
	}
	answer(w, status, map[string]any{"error": map[string]any{"code": status, "message": message, "title": http.StatusText(status)}})
}

// answer answers with a document.
func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Openstack-Request-Id", "req-"+uuid.NewString())
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		panic(fmt.Sprintf("the answer cannot be written: %v", err))
	}
}
