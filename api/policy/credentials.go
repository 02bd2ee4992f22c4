package policy

import (
	"maps"
	"slices"

	"github.com/cyborg-project/cyborg/api/auth"
)

// credentialTable has what rules can ask of a caller: the values of
// oslo.context (RequestContext.to_policy_values), and those that OpenStack
// Cyborg adds. As there, a value that is missing is None.
var credentialTable = map[string]func(c auth.Caller) []string{
	"roles":                     func(c auth.Caller) []string { return c.Roles },
	"role":                      func(c auth.Caller) []string { return c.Roles }, // compared in upper or lower case
	"user_id":                   func(c auth.Caller) []string { return text(c.UserID) },
	"user_domain_id":            func(c auth.Caller) []string { return text(c.UserDomain) },
	"project_id":                func(c auth.Caller) []string { return text(c.Project) },
	"project_domain_id":         func(c auth.Caller) []string { return text(c.ProjectDomain) },
	"domain_id":                 func(c auth.Caller) []string { return text(c.Domain) },
	"system_scope":              func(c auth.Caller) []string { return flag(c.System, "all", none) },
	"is_admin_project":          func(c auth.Caller) []string { return flag(c.AdminProject, "True", "False") },
	"service_user_id":           func(c auth.Caller) []string { return text(c.ServiceUser) },
	"service_user_domain_id":    func(c auth.Caller) []string { return text(c.ServiceUserDomain) },
	"service_project_id":        func(c auth.Caller) []string { return text(c.ServiceProject) },
	"service_project_domain_id": func(c auth.Caller) []string { return text(c.ServiceProjectDomain) },
	"service_roles":             func(c auth.Caller) []string { return c.ServiceRoles },
	"service_token":             func(c auth.Caller) []string { return flag(c.Service(), "True", "False") },
	"is_admin":                  func(c auth.Caller) []string { return flag(c.Has("admin"), "True", "False") },
	"is_public_api":             func(auth.Caller) []string { return []string{"False"} },
}

// targetTable has what %(name)s stands for. As in OpenStack Cyborg these are
// the caller's own values, and never those of the owner of a thing. Where
// things are read, those of other projects are left out.
var targetTable = map[string]func(c auth.Caller) []string{
	"user_id":    func(c auth.Caller) []string { return text(c.UserID) },
	"project_id": func(c auth.Caller) []string { return text(c.Project) },
}

// none is how Python writes that there is no value.
const none = "None"

func isCredential(name string) bool { return credentialTable[name] != nil }

func isTarget(name string) bool { return targetTable[name] != nil }

func credentialNames() []string { return slices.Sorted(maps.Keys(credentialTable)) }

// factsOf collects the facts about a caller.
func factsOf(c auth.Caller) facts {
	f := facts{credentials: make(map[string][]string, len(credentialTable)), target: make(map[string]string, len(targetTable))}

	for name, of := range credentialTable {
		f.credentials[name] = of(c)
	}

	for name, of := range targetTable {
		f.target[name] = of(c)[0]
	}

	return f
}

// text returns the value, or None if it is empty.
func text(value string) []string { return flag(value != "", value, none) }

// flag returns one of two values.
func flag(set bool, yes, no string) []string {
	if set {
		return []string{yes}
	}
	return []string{no}
}
