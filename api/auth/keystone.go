package auth

import (
	"context"
	"net"
	"net/http"
	"slices"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/openstack/keystone"
)

// The headers of OpenStack's clients. A static token may stand in them, too.
const (
	tokenHeader        = "X-Auth-Token" //nolint:gosec // the name of a header
	serviceTokenHeader = "X-Service-Token"
)

// Keystone says how tokens of Keystone are taken. The zero value takes none.
type Keystone struct {
	Validator Validator
	// URI is the public URL of Keystone, which callers without a good token are sent to.
	URI string
	// ServiceRoles are those of which a service token must have one.
	ServiceRoles []string
	// Admins, Members and Readers are Keystone's roles whose bearers have these roles on /v1.
	Admins, Members, Readers []string
}

// Validator says what a token of Keystone is. *keystone.Validator is one.
type Validator interface {
	// Validate finds whose the token is that the client, an address or a service, has sent; mayBeExpired takes one that has
	// expired lately. Errors: Unauthenticated; Unavailable where Keystone does not answer.
	Validate(ctx context.Context, client, token string, mayBeExpired bool) (keystone.Token, error)
}

// tokenCaller finds the caller of a token, and the service of X-Service-Token that makes the request for it. Both may be
// static tokens or Keystone's.
func (a *Authenticator) tokenCaller(r *http.Request, token string) (Caller, error) {
	ctx, client, serviceToken := r.Context(), clientOf(r), r.Header.Get(serviceTokenHeader)
	var service Caller
	if serviceToken != "" {
		var err error
		if service, err = a.service(ctx, client, serviceToken); err != nil {
			return Caller{}, err
		}
		client = service.ID // wherever it comes from: others behind the same proxy take nothing of its share
	}
	if caller, ok := a.static(token); ok {
		if serviceToken != "" {
			caller = caller.withService(service)
		}
		return caller, nil
	}
	if a.keystone.Validator == nil {
		return Caller{}, unknownToken()
	}
	// A service may still work for a user whose token has ended meanwhile.
	validated, err := a.keystone.Validator.Validate(ctx, client, token, serviceToken != "")
	if err != nil {
		return Caller{}, err
	}
	return a.keystone.caller(validated).withService(service), nil
}

func (k Keystone) caller(validated keystone.Token) Caller {
	return Caller{
		Name: validated.User, ID: "keystone/" + validated.UserID, UserID: validated.UserID, Project: validated.ProjectID, Domain: validated.DomainID, System: validated.System,
		UserDomain: validated.UserDomainID, ProjectDomain: validated.ProjectDomainID, AdminProject: validated.AdminProject,
		Roles: validated.Roles, Role: k.role(validated),
	}
}

// by is the caller for whom the service makes a request.
func (c Caller) withService(service Caller) Caller {
	c.ServiceUser, c.ServiceUserDomain = service.UserID, service.UserDomain
	c.ServiceProject, c.ServiceProjectDomain = service.Project, service.ProjectDomain
	c.ServiceRoles = service.ServiceRoles
	return c
}

// clientOf is the address that the request comes from.
func clientOf(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return r.RemoteAddr
}

// service is whose a service token is. One that lacks those of services is refused, not left out: whoever sent
// it believes it has them.
func (a *Authenticator) service(ctx context.Context, client, token string) (Caller, error) {
	refused := cyborg.Errorf(cyborg.ErrUnauthenticated, "the service token is not one of a service").
		WithHint("Its user needs one of the roles %v in Keystone.", a.keystone.ServiceRoles)
	if caller, ok := a.static(token); ok {
		if !caller.Service() {
			return Caller{}, refused.WithHint("Of the static tokens, only those with the role %s are of services.", Admin)
		}
		return caller, nil
	}
	if a.keystone.Validator == nil {
		return Caller{}, unknownToken()
	}
	validated, err := a.keystone.Validator.Validate(ctx, client, token, false)
	if err != nil {
		if cyborg.ErrorKindOf(err) == cyborg.ErrUnauthenticated {
			return Caller{}, cyborg.Errorf(cyborg.ErrUnauthenticated, "the service token is not valid: it has expired, was revoked, or never was one").
				WithHint("Look at the service's own user and password, as of [service_user] in nova.conf.")
		}
		return Caller{}, err
	}
	if !slices.ContainsFunc(validated.Roles, func(role string) bool { return slices.Contains(a.keystone.ServiceRoles, role) }) {
		return Caller{}, refused
	}
	service := a.keystone.caller(validated)
	service.ServiceRoles = validated.Roles
	return service, nil
}

// role is what the bearer of a token may do on /v1. A token for a domain is for its projects, and there is only one
// inventory for all.
func (k Keystone) role(token keystone.Token) Role {
	if token.ProjectID == "" && !token.System {
		return ""
	}
	has := func(roles []string) bool {
		return slices.ContainsFunc(token.Roles, func(role string) bool { return slices.Contains(roles, role) })
	}
	switch {
	case has(k.Admins):
		return Admin
	case has(k.Members):
		return Member
	case has(k.Readers):
		return Reader
	}
	return ""
}
