package config_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/workflows"
)

// write writes a configuration file for this test alone.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cyborg.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// load reads a configuration that must be valid. Without a file or variables it
// reads empty ones, not those of this machine.
func load(t *testing.T, o config.LoadOptions) *config.Config {
	t.Helper()
	if o.Env == nil {
		o.Env = []string{}
	}

	if o.File == "" {
		o.File = write(t, "")
	}

	c, err := config.Load(o)
	require.NoError(t, err)
	return c
}

// problems reads a configuration that must be invalid, and returns its problems
// without the directory of the file.
func problems(t *testing.T, o config.LoadOptions) []string {
	t.Helper()
	if o.Env == nil {
		o.Env = []string{}
	}

	if o.File == "" {
		o.File = write(t, "")
	}

	_, err := config.Load(o)
	require.Error(t, err)
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))

	var found config.Problems
	require.ErrorAs(t, err, &found)

	var lines []string
	for _, problem := range found {
		lines = append(lines, strings.ReplaceAll(problem.String(), filepath.Dir(o.File)+"/", ""))
	}
	return lines
}

// same requires that two configurations have the same values, whatever sources
// they come from.
func same(t *testing.T, want, got *config.Config) {
	t.Helper()
	require.Empty(t, cmp.Diff(want, got, cmpopts.IgnoreUnexported(config.Config{})))
}

// flagSet parses these arguments by flags of some options.
func flagSet(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()

	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	config.AddFlags(flags,
		config.Flag{Name: "listen", Key: "api.listen"},
		config.Flag{Name: "hosts", Key: "standalone.hosts"},
		config.Flag{Name: "roles", Key: "server.roles"},
		config.Flag{Name: "full-scan", Key: "agent.full_scan"},
		config.Flag{Name: "temporal-tls", Key: "temporal.tls.enabled"},
	)

	require.NoError(t, flags.Parse(args))
	return flags
}

// TestLaterSourcesOverrideEarlierOnes: flags override variables, and variables
// override the file.
func TestLaterSourcesOverrideEarlierOnes(t *testing.T) {
	t.Parallel()
	file := write(t, "api:\n  listen: 127.0.0.1:1\n  sync_wait: 1s\n  queue_wait: 1s\n")
	env := []string{"CYBORG_API_LISTEN=127.0.0.1:2", "CYBORG_API_SYNC_WAIT=2s", "CYBORG_API_QUEUE_WAIT="}
	c := load(t, config.LoadOptions{File: file, Env: env, Flags: flagSet(t, "--listen", "127.0.0.1:3")})

	require.Equal(t, "127.0.0.1:3", c.API.Listen, "the flag goes before everything")
	require.Equal(t, 2*time.Second, c.API.SyncWait, "the environment goes before the file")
	require.Equal(t, time.Second, c.API.QueueWait, "an empty variable counts as unset")
	require.Equal(t, config.MiB, c.API.BodyLimit, "nothing set it, so it is the default")
}

func TestUnsetOptionsHaveDefaults(t *testing.T) {
	t.Parallel()
	same(t, config.Default(), load(t, config.LoadOptions{}))
	same(t, config.Default(), load(t, config.LoadOptions{Process: config.ProcessStandalone}))
	same(t, config.Default(), load(t, config.LoadOptions{File: write(t, "# nothing\napi:\nlog:\n  # level: debug\n")}))
}

// TestEveryKindOfValueFromEverySource: files and variables can set every type
// of option, and flags those that have one.
func TestEveryKindOfValueFromEverySource(t *testing.T) {
	t.Parallel()
	want := config.Default()
	want.Log.Level = slog.LevelWarn
	want.Server.Roles = []config.Role{config.RoleAPI}
	want.Agent.FullScan = 90 * time.Second
	want.Agent.ImageMax = 512 * config.MiB
	want.Agent.Slots = 3
	want.Temporal.TLS.Enabled = true
	want.Standalone.Hosts = []string{"fake:8xfpga,2xgpu", "sysfs:/"}
	want.Agent.Backends = []config.Backend{
		{Name: "fake", Driver: "fake", Enabled: true},
		{Name: "pci", Driver: "generic", Options: map[string]any{"device_spec": []any{map[string]any{"Address": "0000:AF:*"}}}},
	}

	t.Run("file", func(t *testing.T) {
		t.Parallel()
		same(t, want, load(t, config.LoadOptions{File: write(t, `
log: {level: warn}
server: {roles: [api]}
temporal: {tls: {enabled: true}}
standalone:
  hosts: ["fake:8xfpga,2xgpu", "sysfs:/"]
agent:
  full_scan: 90s
  image_max: 512MiB
  slots: 3
  backends:
    - driver: fake
    - name: pci
      driver: generic
      enabled: false
      options: {device_spec: [{Address: "0000:AF:*"}]}
`)}))
	})

	t.Run("environment", func(t *testing.T) {
		t.Parallel()
		same(t, want, load(t, config.LoadOptions{Env: []string{
			"CYBORG_LOG_LEVEL=warn", "CYBORG_SERVER_ROLES=api", "CYBORG_TEMPORAL_TLS_ENABLED=true",
			"CYBORG_STANDALONE_HOSTS=fake:8xfpga,2xgpu sysfs:/", "CYBORG_AGENT_FULL_SCAN=90s",
			"CYBORG_AGENT_IMAGE_MAX=512MiB", "CYBORG_AGENT_SLOTS=3",
			`CYBORG_AGENT_BACKENDS=[{driver: fake}, {name: pci, driver: generic, enabled: false, options: {device_spec: [{Address: "0000:AF:*"}]}}]`,
			"PATH=/bin", "CYBORG_URL=http://127.0.0.1:6666", "CYBORG_API_SERVICE_HOST=10.0.0.1", "CYBORG_API_PORT_6666_TCP_ADDR=10.0.0.1",
		}}))
	})

	t.Run("flags", func(t *testing.T) {
		t.Parallel()
		c := load(t, config.LoadOptions{Flags: flagSet(t, "--hosts", "fake:8xfpga,2xgpu", "--hosts", "sysfs:/",
			"--roles", "api", "--full-scan=90s", "--temporal-tls")})

		require.Equal(t, want.Standalone.Hosts, c.Standalone.Hosts)
		require.Equal(t, want.Server.Roles, c.Server.Roles)
		require.Equal(t, want.Agent.FullScan, c.Agent.FullScan)
		require.True(t, c.Temporal.TLS.Enabled)
	})
}

// TestEveryMistakeIsReportedAtOnce: an operator corrects all mistakes in one
// go, each with its place and what was expected.
func TestEveryMistakeIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	got := problems(t, config.LoadOptions{
		Process: config.ProcessServer,
		File: write(t, `log:
  levels: debug
api:
  listen: 0.0.0.0:6666
  sync_wait: soon
  body_limit: 1KB
  tokens:
    - {name: ops, role: king, token: short}
  tls: yes please
retention:
  events: -1h
  operations:
listen: 127.0.0.1:1
foo: bar
database:
  url: mysql://root:hunter2@db/cyborg
`),
		Env:   []string{"CYBORG_API_LISTN=x", "CYBORG_AGENT_FOO=x", "CYBORG_CONDUCTOR_BATCH_SIZE=many"},
		Flags: flagSet(t, "--roles", "api,reaper"),
	})

	require.Equal(t, []string{
		`cyborg.yaml:2: log.levels: there is no such option; did you mean log.level?`,
		`cyborg.yaml:4: api.listen = "0.0.0.0:6666": others can reach this address: set api.tls.cert and api.tls.key, or listen on 127.0.0.1`,
		`cyborg.yaml:5: api.sync_wait = "soon": expected a duration such as 500ms, 10s or 5m, longer than 0`,
		`cyborg.yaml:6: api.body_limit = "1KB": expected a size such as 64MiB or 4GiB from 1KiB to 64MiB`,
		`cyborg.yaml:8: api.tokens[0].role = "king": expected reader, member or admin`,
		`cyborg.yaml:8: api.tokens[0].token: expected 16 characters or more`,
		`cyborg.yaml:9: api.tls: expected keys with values, of cert, key, client_ca`,
		`cyborg.yaml:11: retention.events = "-1h": expected a duration such as 500ms, 10s or 5m, at least 1h`,
		`cyborg.yaml:12: retention.operations: has no value; remove the line for the default, or give a duration such as 500ms, 10s or 5m, at least 1h`,
		`cyborg.yaml:13: listen: there is no such option here; did you mean api.listen?`,
		`cyborg.yaml:14: foo: there is no such option; there are log, database, temporal, server, api, agent_endpoint, identity, agent, conductor, operations, images, inventory, retention, openstack, keystone, placement, policy, audit, glance, arqs, nova, standalone`,
		`cyborg.yaml:16: database.url = "******": expected a URL such as postgres://cyborg@db.example.org/cyborg`,
		`environment variable CYBORG_API_LISTN: there is no such option; did you mean CYBORG_API_LISTEN?`,
		`environment variable CYBORG_AGENT_FOO: there is no such option; docs/configuration.md lists them all`,
		`--roles: server.roles[1] = "reaper": expected api or conductor`,
		`environment variable CYBORG_CONDUCTOR_BATCH_SIZE: conductor.batch_size = "many": expected a whole number from 1 to 10000`,
	}, got)
}

// TestMissingOptionsAreNamed: an option that a process cannot do without is
// named, with where to set it.
func TestMissingOptionsAreNamed(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{
		`database.url: expected the URL of a PostgreSQL database, such as postgres://cyborg@127.0.0.1/cyborg; set it in the file, or with CYBORG_DATABASE_URL`,
	}, problems(t, config.LoadOptions{Process: config.ProcessMigrate}))
	require.Equal(t, []string{
		`agent.endpoints: expected the URL of an agent endpoint; set it in the file, or with CYBORG_AGENT_ENDPOINTS`,
	}, problems(t, config.LoadOptions{Process: config.ProcessAgent, File: write(t, "agent: {endpoints: []}")}))
}

func TestFilesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, file := range map[string]string{
		"no such file":   filepath.Join(dir, "missing.yaml"),
		"a directory":    dir,
		"not YAML":       write(t, "api: [\n"),
		"not a mapping":  write(t, "- api\n"),
		"several blocks": write(t, "api:\n  listen: 127.0.0.1:1\n---\napi:\n  listen: 127.0.0.1:2\n"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, err := config.Load(config.LoadOptions{File: file, Env: []string{}})
			require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
			require.ErrorContains(t, err, file)
		})
	}
}

func TestConfigFileIsFound(t *testing.T) {
	t.Parallel()
	file := write(t, "log: {level: error}\n")
	flags := flagSet(t, "--config", file)
	for name, o := range map[string]config.LoadOptions{
		"by flag":     {Flags: flags, Env: []string{"CYBORG_CONFIG=/nowhere"}},
		"by variable": {Env: []string{"CYBORG_CONFIG=" + file}},
	} {
		c, err := config.Load(o)
		require.NoError(t, err, name)
		require.Equal(t, slog.LevelError, c.Log.Level, name)
	}
}

// TestDumpLoadsAgain: a dump says where each value comes from, and is itself a
// configuration with the same values.
func TestDumpLoadsAgain(t *testing.T) {
	t.Parallel()
	file := write(t, "agent:\n  backends:\n    - {driver: fake, options: {cards: 3, name: 'yes'}}\n")

	first := load(t, config.LoadOptions{File: file, Env: []string{"CYBORG_AGENT_SLOTS=5"}})

	var text bytes.Buffer
	require.NoError(t, first.Dump(&text, config.ProcessStandalone))
	require.Contains(t, text.String(), "slots: 5 # environment variable CYBORG_AGENT_SLOTS")
	require.Contains(t, text.String(), "backends: # "+file+":3")

	same(t, first, load(t, config.LoadOptions{File: write(t, text.String())}))
}

func TestDeployablesAreNamedAsConfigured(t *testing.T) {
	t.Parallel()
	require.Equal(t, "h1_0000:01:00.0", config.Default().Inventory.NameDeployable("h1", "0000:01:00.0"))

	c := load(t, config.LoadOptions{Env: []string{"CYBORG_INVENTORY_DEPLOYABLE_NAME=old-{host}-{name}"}})
	require.Equal(t, "old-{name}-x", c.Inventory.NameDeployable("{name}", "x"), "placeholders within a name are not replaced")
}

// TestOperationOptionsConvertToWorkflowLimits: the options and the limits have
// the same fields, so that one converts to the other.
func TestOperationOptionsConvertToWorkflowLimits(t *testing.T) {
	t.Parallel()
	limits := workflows.Limits(config.Default().Operations)
	require.Equal(t, 30*time.Second, limits.AgentWait)
	require.Equal(t, int32(5), limits.Attempts)
}

// A process that does not use an option's default does not show it in its help.
func TestFlagWithoutADefault(t *testing.T) {
	t.Parallel()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	config.AddFlags(flags,
		config.Flag{Name: "listen", Key: "api.listen"},
		config.Flag{Name: "agent-listen", Key: "agent_endpoint.listen", Usage: "where other agents call", NoDefault: true},
	)
	require.Equal(t, "127.0.0.1:6666", flags.Lookup("listen").DefValue)
	require.Contains(t, flags.FlagUsages(), "where other agents call\n")
}
