package auth

import (
	"context"
	"net/http"
	"slices"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/openstack/keystone"
)

// The headers of OpenStack's clients. They may have static tokens too.
const (
	tokenHeader        = "X-Auth-Token" //nolint:gosec // the name of a header
	serviceTokenHeader = "X-Service-Token"
)

// Keystone says how tokens of Keystone are accepted. The zero value accepts
// none.
type Keystone struct {
	Validator Validator

	// URI is the public URL of Keystone. Callers without a valid token are sent
	// there.
	URI string

	// ServiceRoles are the roles of services. A service token must have one of
	// them.
	ServiceRoles []string

	// Admins, Members and Readers are the roles in Keystone that give the roles
	// Admin, Member and Reader on /v1.
	Admins, Members, Readers []string
}

// Validator looks tokens up in Keystone. *keystone.Validator implements it.
type Validator interface {
	// Validate returns what Keystone knows of the token. The client is who sent the
	// token, an address or a service; each client has a limited share of the
	// validations at once. With mayBeExpired, a token that expired lately is
	// accepted. The error is of kind ErrUnauthenticated, or ErrUnavailable if
	// Keystone does not answer.
	Validate(ctx context.Context, client, token string, mayBeExpired bool) (keystone.Token, error)
}

// tokenCaller finds the caller of a token, and the service that makes the
// request on the caller's behalf, if the request has a service token. Both may
// be static tokens or tokens of Keystone.
func (a *Authenticator) tokenCaller(r *http.Request, token string) (Caller, error) {
	ctx, client, serviceToken := r.Context(), web.ClientNetwork(r), r.Header.Get(serviceTokenHeader)

	var service Caller
	if serviceToken != "" {
		var err error
		service, err = a.service(ctx, client, serviceToken)
		if err != nil {
			return Caller{}, err
		}

		// The service has a share of validations of its own, wherever its requests come
		// from, so that others behind the same proxy cannot use it up.
		client = service.ID
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

	// A service may go on working for a user whose token has expired meanwhile.
	validated, err := a.keystone.Validator.Validate(ctx, client, token, serviceToken != "")
	if err != nil {
		return Caller{}, err
	}

	return a.keystone.caller(validated).withService(service), nil
}

// caller returns the caller of a token that Keystone has validated.
func (k Keystone) caller(validated keystone.Token) Caller {
	return Caller{
		Name: validated.User, ID: "keystone/" + validated.UserID, UserID: validated.UserID, Project: validated.ProjectID, Domain: validated.DomainID, System: validated.System,
		UserDomain: validated.UserDomainID, ProjectDomain: validated.ProjectDomainID, AdminProject: validated.AdminProject,
		Roles: validated.Roles, Role: k.role(validated),
	}
}

// withService returns the caller with the service that makes the request on the
// caller's behalf.
func (c Caller) withService(service Caller) Caller {
	c.ServiceUser, c.ServiceUserDomain = service.UserID, service.UserDomain
	c.ServiceProject, c.ServiceProjectDomain = service.Project, service.ProjectDomain
	c.ServiceRoles = service.ServiceRoles
	return c
}

// service finds the service of a service token. A token without a role of
// services is an error and is not ignored: whoever sent it relies on acting as
// a service.
func (a *Authenticator) service(ctx context.Context, client, token string) (Caller, error) {
	refused := cyborg.Errorf(cyborg.ErrUnauthenticated, "the service token does not belong to a service").
		WithHint("Its user needs one of the roles %v in Keystone.", a.keystone.ServiceRoles)

	if caller, ok := a.static(token); ok {
		if !caller.Service() {
			return Caller{}, refused.WithHint("A static token belongs to a service only if it has the role %s.", Admin)
		}
		return caller, nil
	}

	if a.keystone.Validator == nil {
		return Caller{}, unknownToken()
	}

	validated, err := a.keystone.Validator.Validate(ctx, client, token, false)
	if err != nil {
		if cyborg.ErrorKindOf(err) == cyborg.ErrUnauthenticated {
			return Caller{}, cyborg.Errorf(cyborg.ErrUnauthenticated, "the service token is not valid: it has expired, was revoked, or was never issued").
				WithHint("Check the service's own user and password, such as those of [service_user] in nova.conf.")
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

// role returns the role of a token's bearer on /v1. A token for a domain gives
// none: /v1 shows one inventory of the whole cloud, which belongs to no domain.
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
