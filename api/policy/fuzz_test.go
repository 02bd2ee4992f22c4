package policy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/internal/fuzztest"
)

// FuzzPolicyFile reads any file without a panic. A rule that is accepted can be
// printed and parsed again, and then decides the same about everybody.
func FuzzPolicyFile(f *testing.F) {
	for _, text := range fuzztest.Texts() {
		f.Add("a: " + text)
		f.Add(text)
	}

	for _, text := range []string{
		"a: role:x and (role:y or not rule:a)", "a: [[role:x, role:y], '!']", "a: &b role:x\nc: *b", "a: 'x':%(user_id)s", "a: not not @",
		"a: ((role:x) and role:y) or role:z", "a: rule:b\nb: rule:c\nc: rule:a", "a: role:%(project_id)s", "a: 'role:x)y'", "a: \"role:x\\u00a0and\"",
	} {
		f.Add(text)
	}

	callers := []auth.Caller{{}, auth.Local(), auth.Static("m", auth.Member), {UserID: "u", Project: "p", Roles: []string{"x"}}}
	f.Fuzz(func(t *testing.T, text string) {
		overrides, mistakes := parseFile([]byte(text))
		for _, mistake := range mistakes {
			require.NotEmpty(t, mistake.Error())
		}

		rules, err := combine(map[string]check{}, overrides)
		if err != nil {
			return
		}

		for name, c := range rules {
			again, err := parse(c.String())
			require.NoError(t, err, "%q", c.String())
			require.Equal(t, c.String(), again.String())
			for _, caller := range callers {
				facts := factsOf(caller)
				require.Equal(t, c.allows(facts, rules), again.allows(facts, rules), "%s: %s", name, c)
			}
		}

		require.NotContains(t, strings.Join(credentialNames(), ""), " ")
	})
}
