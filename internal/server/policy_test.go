package server

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/auth"
	"github.com/cyborg-project/cyborg/internal/config"
)

// command runs one of the server's commands with a configuration file of that
// text, and returns what it printed.
func command(t *testing.T, text string, args ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cyborg.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))

	for _, c := range Commands() {
		if c.Name() != args[0] {
			continue
		}

		var out strings.Builder
		c.SetOut(&out)
		c.SetErr(t.Output())
		c.SetArgs(append(args[1:], "--config", file))
		c.SilenceUsage, c.SilenceErrors = true, true
		err := c.ExecuteContext(t.Context())
		return out.String(), err
	}

	t.Fatalf("there is no command %v", args)
	return "", nil
}

// TestPolicyCommand: the rules that the command prints can be read again as a
// policy file, and are the same.
func TestPolicyCommand(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(file, []byte("cyborg:device:get_all: role:auditor or not role:x\nmine: '!'\n"), 0o600))

	printed, err := command(t, "policy: {file: "+file+", enforce_new_defaults: false}\n", "server", "policy")
	require.NoError(t, err)
	require.Contains(t, printed, `cyborg:device:get_all: "role:auditor or not role:x" # policy.file`)
	require.Contains(t, printed, "# list devices\n")

	again := filepath.Join(t.TempDir(), "again.yaml")
	require.NoError(t, os.WriteFile(again, []byte(printed), 0o600))
	c := config.Default()
	c.Policy.File = again
	read, err := newPolicy(c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)

	for _, rule := range read.Rules() {
		require.True(t, rule.Overridden)
		require.Contains(t, printed, `"`+rule.Requires+`"`)
	}
}

func TestConfigCheckReadsThePolicy(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	text := "database: {url: 'postgres://x@127.0.0.1/x'}\npolicy: {file: " + file + "}\n"

	require.NoError(t, os.WriteFile(file, []byte("\ncyborg:device:get_all: role:auditor or\n"), 0o600))
	_, err := command(t, text, "config", "check")
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, file+":2: cyborg:device:get_all: expected a check")

	require.NoError(t, os.WriteFile(file, []byte("cyborg:device:get_all: role:auditor\n"), 0o600))
	printed, err := command(t, text, "config", "check")
	require.NoError(t, err)
	require.Contains(t, printed, "is good")
}

// L36: with its stock settings, OpenStack Cyborg lets every project's token
// read the inventory, and a mere reader create and delete requests.
func TestL36NewDefaultsAreInForce(t *testing.T) {
	t.Parallel()
	rules, err := newPolicy(config.Default(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)

	reader := auth.WithCaller(t.Context(), auth.Caller{Name: "alice", UserID: "u1", Project: "p1", Roles: []string{"reader"}})
	for _, rule := range []string{
		"cyborg:device:get_all", "cyborg:device:get_one", "cyborg:deployable:get_all", "cyborg:deployable:get_one",
		"cyborg:attribute:get_all", "cyborg:attribute:get_one", "cyborg:arq:create", "cyborg:arq:update", "cyborg:arq:delete",
	} {
		require.Equal(t, cyborg.ErrForbidden, cyborg.ErrorKindOf(rules.Check(reader, rule)), rule)
	}

	require.NoError(t, rules.Check(reader, "cyborg:arq:get_all"))
}
