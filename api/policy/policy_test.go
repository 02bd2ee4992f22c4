package policy_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/api/policy"
	"github.com/cyborg-project/cyborg/internal/leaktest"
	"github.com/cyborg-project/cyborg/internal/transcript"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// write makes a policy file with the text.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// with is a policy with upstream's new defaults and a file with the text.
func with(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := policy.New(policy.Config{File: write(t, text), EnforceNewDefaults: true, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return p
}

// project is a caller with a Keystone token for a project.
func project(roles ...string) auth.Caller {
	return auth.Caller{Name: "alice", UserID: "u1", Project: "p1", Roles: roles}
}

// These callers have the roles that Keystone gives them: whoever has a role
// also has those that it implies.
var (
	nobody  = project()
	reader  = project("reader")
	member  = project("member", "reader")
	manager = project("manager", "member", "reader")
	admin   = project("admin", "manager", "member", "reader")
	service = project("service")
)

// allowed reports whether the caller passes the rule, and checks the error of
// one who does not.
func allowed(t *testing.T, p *policy.Policy, caller auth.Caller, rule string) bool {
	t.Helper()
	err := p.Check(auth.WithCaller(t.Context(), caller), rule)
	if err != nil {
		require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(err), rule)
		require.Contains(t, err.Error(), rule)
		require.NotEmpty(t, cyborg.AsError(err).Hint)
	}
	return err == nil
}

// Each rule lets in the same callers as OpenStack Cyborg's, with the new
// defaults and with the old ones.
func TestDefaultRules(t *testing.T) {
	t.Parallel()
	all := map[string]auth.Caller{"nobody": nobody, "reader": reader, "member": member, "manager": manager, "admin": admin, "service": service}
	const anybody = "nobody reader member manager admin service"
	table := []struct{ rules, now, before string }{
		{"device_profile:get_all device_profile:get_one arq:get_all arq:get_one", "reader member manager admin", anybody},
		{"arq:create arq:delete arq:update", "member manager admin service", anybody},
		{"device:get_all device:get_one deployable:get_all deployable:get_one attribute:get_all attribute:get_one", "manager admin", anybody},
		{"device_profile:create device_profile:delete device:enable device:disable deployable:program attribute:create attribute:delete", "admin", "admin"},
	}

	for _, strict := range []bool{true, false} {
		p, err := policy.New(policy.Config{EnforceNewDefaults: strict, Log: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)

		rules := 0
		for _, row := range table {
			may := row.now
			if !strict {
				may = row.before
			}

			for name := range strings.FieldsSeq(row.rules) {
				rules++
				for who, caller := range all {
					require.Equal(t, slices.Contains(strings.Fields(may), who), allowed(t, p, caller, "cyborg:"+name), "%s %s, strict %t", who, name, strict)
				}

				for _, scope := range []auth.Caller{
					{Name: "root", UserID: "u1", Roles: admin.Roles, System: true},
					{Name: "root", UserID: "u1", Roles: admin.Roles, Domain: "d1"},
					{Name: "root", UserID: "u1", Roles: admin.Roles},
					{},
				} {
					require.False(t, allowed(t, p, scope, "cyborg:"+name) && strict, "%v %s", scope, name)
					require.False(t, allowed(t, p, scope, "cyborg:"+name) && scope.UserID != "", "%v %s", scope, name)
				}

				require.True(t, allowed(t, p, auth.Local(), "cyborg:"+name))
				require.True(t, allowed(t, p, auth.Static("ops", auth.Admin), "cyborg:"+name))

				// The old defaults add nothing for static tokens.
				static := strings.Fields(row.now)
				require.Equal(t, slices.Contains(static, "member"), allowed(t, p, auth.Static("mia", auth.Member), "cyborg:"+name), name)
				require.Equal(t, slices.Contains(static, "reader"), allowed(t, p, auth.Static("rita", auth.Reader), "cyborg:"+name), name)
			}
		}

		builtin := 0
		for _, rule := range p.Rules() {
			require.True(t, p.Knows(rule.Name))
			if strings.HasPrefix(rule.Name, "cyborg:") {
				builtin++
			}
		}

		require.Equal(t, builtin, rules, "the table has every rule")
	}
}

func TestRuleExpressions(t *testing.T) {
	t.Parallel()
	nova := member
	nova.ServiceRoles = []string{"service"}

	for text, who := range map[string][]auth.Caller{
		`"@"`:                  {nobody, member, admin},
		`""`:                   {nobody, member, admin},
		`[]`:                   {nobody, member, admin},
		`"!"`:                  {},
		`[[]]`:                 {},
		`"role:ADMIN"`:         {admin},
		`"not role:admin"`:     {nobody, member},
		`"NOT not role:admin"`: {admin},
		`"role:admin or role:member and not role:admin"`:   {member, admin},
		`"(role:admin or role:member) and not role:admin"`: {member},
		`"((role:admin))"`:                                           {admin},
		`"( role:admin or rule:allow ) and @"`:                       {nobody, member, admin},
		`"rule:admin_or_owner"`:                                      {nobody, member, admin},
		`"rule:is_admin"`:                                            {admin},
		`"rule:project_admin_api"`:                                   {admin},
		`"rule:deny or rule:public_api"`:                             {},
		`"rule:default and rule:admin_or_user"`:                      {nobody, member, admin},
		`"is_admin:True"`:                                            {admin},
		`"is_admin:False"`:                                           {nobody, member},
		`"project_id:%(project_id)s"`:                                {nobody, member, admin},
		`"project_id:p1"`:                                            {nobody, member, admin},
		`"project_id:p2"`:                                            {},
		`"'p1':%(project_id)s"`:                                      {nobody, member, admin},
		`"True:%(project_id)s"`:                                      {},
		`"user_id:%(user_id)s and user_id:u1"`:                       {nobody, member, admin},
		`"user_id:%(project_id)s"`:                                   {},
		`"project_id:x%(project_id)s"`:                               {},
		`"roles:admin"`:                                              {admin},
		`"system_scope:all or domain_id:x"`:                          {},
		`"service_roles:service"`:                                    {nova},
		`"service_token:True and role:member"`:                       {nova},
		`"service_token:False and role:member"`:                      {member, admin},
		`[["role:admin"], ["role:member", "service_roles:service"]]`: {admin, nova},
		`["role:admin", "service_roles:service"]`:                    {admin, nova},
	} {
		p := with(t, `"cyborg:arq:create": `+text)
		for _, caller := range []auth.Caller{nobody, member, admin, nova} {
			expected := slices.ContainsFunc(who, func(c auth.Caller) bool {
				return slices.Equal(c.Roles, caller.Roles) && (c.Service() == caller.Service() || text != `"service_roles:service"` && !strings.Contains(text, "service_"))
			})
			require.Equal(t, expected, allowed(t, p, caller, "cyborg:arq:create"), "%s for %v %v", text, caller.Roles, caller.ServiceRoles)
		}
	}
}

// Rules can ask for all that oslo.context knows of a caller
// (RequestContext.to_policy_values). A credential without a value is None.
func TestCredentials(t *testing.T) {
	t.Parallel()
	caller := auth.Caller{
		UserID: "u1", UserDomain: "ud", Project: "p1", ProjectDomain: "pd", AdminProject: true, Roles: []string{"member"},
		ServiceUser: "u2", ServiceUserDomain: "sud", ServiceProject: "p2", ServiceProjectDomain: "spd", ServiceRoles: []string{"service"},
	}
	bare := auth.Caller{Project: "p9", Roles: []string{"reader"}} // without a project, policy refuses whatever the rule

	for credential, value := range map[string]string{
		"user_id": "u1", "user_domain_id": "ud", "project_id": "p1", "project_domain_id": "pd", "roles": "member", "is_admin_project": "True",
		"service_user_id": "u2", "service_user_domain_id": "sud", "service_project_id": "p2", "service_project_domain_id": "spd",
		"service_roles": "service", "system_scope": "None", "domain_id": "None",
	} {
		p := with(t, `"cyborg:arq:create": "`+credential+`:`+value+`"`)
		require.True(t, allowed(t, p, caller, "cyborg:arq:create"), credential)
		require.Equal(t, value == "None", allowed(t, p, bare, "cyborg:arq:create"), credential)

		absent := map[string]string{"project_id": "p9", "roles": "reader", "is_admin_project": "False"}[credential]
		if absent == "" && credential != "service_roles" {
			absent = "None"
		}

		if absent != "" {
			p = with(t, `"cyborg:arq:create": "`+credential+`:`+absent+`"`)
			require.True(t, allowed(t, p, bare, "cyborg:arq:create"), "%s:%s", credential, absent)
		}

		if value != "None" {
			p = with(t, `"cyborg:arq:create": "`+credential+`:x`+value+`"`)
			require.False(t, allowed(t, p, caller, "cyborg:arq:create"), credential)
		}
	}
}

// A printed rule parses to the same rule again.
func TestPrintedRulesParseAgain(t *testing.T) {
	t.Parallel()
	p := with(t, `
cyborg:device:get_all: role:a and (role:b or not (role:c and role:d)) or not role:e
mine: "!"
cyborg:arq:get_all: [[role:a, role:b], "rule:mine"]
`)

	var text strings.Builder
	for _, rule := range p.Rules() {
		require.Equal(t, slices.Contains([]string{"cyborg:device:get_all", "cyborg:arq:get_all", "mine"}, rule.Name), rule.Overridden, rule.Name)
		require.Equal(t, rule.Name == "mine", rule.About == "")
		text.WriteString("\"" + rule.Name + "\": \"" + rule.Requires + "\"\n")
	}

	again := with(t, text.String())
	for i, rule := range again.Rules() {
		require.Equal(t, p.Rules()[i].Requires, rule.Requires, rule.Name)
	}
}

// A mistake that OpenStack's parser would silently take for "nobody" or
// "everybody" is refused, with its line.
func TestInvalidPolicyFilesAreRefused(t *testing.T) {
	t.Parallel()
	for text, expected := range map[string]string{
		"\n- a\n":                              "policy.yaml:2: expected names of rules",
		"a: [\n":                               "policy.yaml: it is not YAML",
		"a: role:admin and\n":                  `policy.yaml:1: a: expected a check such as role:admin, not the end`,
		"\na: role:admin or or role:x":         `policy.yaml:2: a: expected a check such as role:admin, not "or"`,
		"a: (role:admin":                       `expected ), not the end`,
		"a: role:admin)":                       `not ")"`,
		"a: role:admin role:b":                 `expected and, or, or the end, not "role:b"`,
		"a: admin":                             `"admin" is no check such as role:admin`,
		"a: 'role:'":                           `"role:" is no check`,
		"a: colour:blue":                       `asks for the credential "colour"`,
		"a: tenant:x":                          `"tenant:x" asks for the credential "tenant"; there are domain_id, is_admin,`,
		"a: user_domain_id:%(user_domain_id)s": `asks for "user_domain_id" of the target, which has only project_id and user_id`,
		"a: project_id:%(owner)s":              `asks for "owner" of the target`,
		"a: project_id:%(project_id)":          "not followed by (name)s",
		"a: rule:nosuch":                       `policy.yaml:1: a: there is no rule "nosuch"`,
		"a: rule:b\nb: not rule:a":             "a: the rules go round in a circle: a → b → a",
		"admin_api: rule:admin_or_manager\nadmin_or_manager: rule:admin_api": "circle",
		"a: http://127.0.0.1/": "asks a server, which is not supported",
		"a:":                   `a: has no rule; write "@"`,
		"a: {b: c}":            "expected a text or a list",
		"a: [[[b]]]":           "expected a list of checks",
		"a: '@'\na: '!'":       "policy.yaml:2: a: is given twice, first in line 1",
		"a: " + strings.Repeat("(", 99) + "@" + strings.Repeat(")", 99): "within each other",
		"a: x\nb: y": `policy.yaml:2: b: "y" is no check`,
	} {
		_, err := policy.New(policy.Config{File: write(t, text), EnforceNewDefaults: true, Log: slog.New(slog.DiscardHandler)})
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), text)
		require.ErrorContains(t, err, expected, text)
	}

	_, err := policy.New(policy.Config{File: "/nowhere/policy.yaml", Log: slog.New(slog.DiscardHandler)})
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
}

func TestUnknownRuleNamesAreWarnedAbout(t *testing.T) {
	t.Parallel()
	log := &transcript.Text{}
	_, err := policy.New(policy.Config{
		File:               write(t, "mine: role:admin\ncyborg:arq:create: rule:mine\n\ncyborg:arq:creat: '@'\n"),
		EnforceNewDefaults: true, Log: slog.New(slog.NewTextHandler(log, nil)),
	})

	require.NoError(t, err)
	require.Contains(t, log.String(), "rule=cyborg:arq:creat ")
	require.Contains(t, log.String(), "line=4")
	require.NotContains(t, log.String(), "rule=mine")
}

// An operator's rule replaces a built-in one together with its old default.
func TestOverridesReplaceOldDefaults(t *testing.T) {
	t.Parallel()
	p, err := policy.New(policy.Config{
		File: write(t, "project_manager_or_admin: role:admin\n# all else is a comment\n"), Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)

	require.False(t, allowed(t, p, manager, "cyborg:device:get_all"))
	require.True(t, allowed(t, p, reader, "cyborg:arq:create"))
	require.True(t, allowed(t, p, admin, "cyborg:device:get_all"))
	with(t, "# nothing\n")

	// Each of upstream's rules keeps its own old default when the rule that it
	// refers to is replaced.
	p, err = policy.New(policy.Config{
		File: write(t, "project_manager_or_admin: '!'\nproject_reader_or_admin: '!'\nproject_member_or_service: '!'\nis_admin: role:reader\n"),
		Log:  slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)

	for rule, caller := range map[string]auth.Caller{
		"cyborg:device:get_all": admin, "cyborg:deployable:get_one": admin, "cyborg:attribute:get_one": admin,
		"cyborg:device_profile:get_all": nobody, "cyborg:device_profile:create": reader,
		"cyborg:arq:get_one": nobody, "cyborg:arq:create": nobody, "cyborg:arq:delete": nobody,
	} {
		require.True(t, allowed(t, p, caller, rule), rule)
	}

	require.False(t, allowed(t, p, manager, "cyborg:device:get_all"))
	require.False(t, allowed(t, p, reader, "cyborg:device:enable"))
}

func TestChangedPolicyFileIsReloaded(t *testing.T) {
	t.Parallel()
	path, log := write(t, "cyborg:arq:create: role:admin\n"), &transcript.Text{}
	p, err := policy.New(policy.Config{File: path, EnforceNewDefaults: true, Log: slog.New(slog.NewTextHandler(log, nil))})
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { p.Watch(ctx, time.Millisecond) })
	defer watching.Wait()
	defer cancel()

	replace := func(text string) {
		fresh := write(t, text)
		require.NoError(t, os.Rename(fresh, path))
	}

	require.False(t, allowed(t, p, reader, "cyborg:arq:create"))
	replace("cyborg:arq:create: role:reader\n")
	require.Eventually(t, func() bool { return allowed(t, p, reader, "cyborg:arq:create") }, 5*time.Minute, time.Millisecond)

	replace("cyborg:arq:create: role:\n")
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "is not taken") }, 5*time.Minute, time.Millisecond)
	require.True(t, allowed(t, p, reader, "cyborg:arq:create"), "what was in force stays")

	replace("cyborg:arq:create: '!'\n")
	require.Eventually(t, func() bool { return !allowed(t, p, admin, "cyborg:arq:create") }, 5*time.Minute, time.Millisecond)
	require.Equal(t, 1, strings.Count(log.String(), "is not taken"), "a mistake is told once")
}

// A policy file that is gone for long is warned about once, and is read when it
// is back.
func TestDeletedPolicyFileKeepsTheRules(t *testing.T) {
	t.Parallel()
	path, log := write(t, "cyborg:arq:create: role:admin\n"), &transcript.Text{}

	synctest.Test(t, func(t *testing.T) {
		p, err := policy.New(policy.Config{File: path, EnforceNewDefaults: true, Log: slog.New(slog.NewTextHandler(log, nil))})
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go p.Watch(ctx, time.Second)

		require.NoError(t, os.Rename(path, path+".away"))
		<-time.After(10 * time.Second)
		require.Equal(t, 1, strings.Count(log.String(), "is not taken"), log.String())
		require.True(t, allowed(t, p, admin, "cyborg:arq:create"))

		require.NoError(t, os.WriteFile(path, []byte("cyborg:arq:create: role:reader\n"), 0o600))
		<-time.After(2 * time.Second)
		require.True(t, allowed(t, p, reader, "cyborg:arq:create"))
	})
}

// With the old defaults, a static token still may no more than its role says: a
// reader's creates and deletes nothing.
func TestOldDefaultsAreNotForStaticTokens(t *testing.T) {
	t.Parallel()
	old, err := policy.New(policy.Config{Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)

	for _, rule := range []string{"create", "update", "delete"} {
		for name, static := range map[string]auth.Caller{"rita": auth.Static("rita", auth.Reader), "nobody": {}} {
			require.False(t, allowed(t, old, static, "cyborg:arq:"+rule), "%s of %s", rule, name)
			static.Project = "p1"
			require.False(t, allowed(t, old, static, "cyborg:arq:"+rule), "%s of %s in a project", rule, name)
		}
		require.True(t, allowed(t, old, auth.Static("mia", auth.Member), "cyborg:arq:"+rule), rule)
		require.True(t, allowed(t, old, reader, "cyborg:arq:"+rule), "of a user of Keystone, as it was upstream")
	}
	require.True(t, allowed(t, old, auth.Static("rita", auth.Reader), "cyborg:arq:get_all"))
}
