package agentcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	activity "github.com/cyborg-project/cyborg/activities/agent"
	"github.com/cyborg-project/cyborg/drivers/builtin"
	"github.com/cyborg-project/cyborg/drivers/fake"
	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/config"
	"github.com/cyborg-project/cyborg/internal/identity"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/porttest"
)

// withFake returns the command line of an agent that has the fake driver
// besides those of production.
func withFake(t *testing.T) *cobra.Command {
	t.Helper()
	compiled, err := builtin.Registry()
	require.NoError(t, err)
	require.NoError(t, fake.Register(compiled))
	return Command(compiled)
}

// inProduction returns the command line of the agent of production.
func inProduction(t *testing.T) *cobra.Command {
	t.Helper()
	compiled, err := builtin.Registry()
	require.NoError(t, err)
	return Command(compiled)
}

// command runs one command line with a configuration file of its own.
func command(t *testing.T, text string, args ...string) (code int, out, errOut string) {
	t.Helper()
	return execute(t, withFake(t), text, args...)
}

// execute is command for a program with other drivers.
func execute(t *testing.T, program *cobra.Command, text string, args ...string) (code int, out, errOut string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cyborg.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	var stdout, stderr bytes.Buffer
	code = commandline.Execute(t.Context(), program, append(args, "--config", file), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestDriversAreListed(t *testing.T) {
	t.Parallel()
	code, out, _ := command(t, "", "drivers")
	require.Equal(t, 0, code)
	require.Equal(t, []string{"fake", "generic", "pci"}, strings.Fields(out))

	code, out, _ = execute(t, inProduction(t), "", "drivers")
	require.Equal(t, 0, code)
	require.Equal(t, []string{"generic", "pci"}, strings.Fields(out))
}

// The agent of production has no fake cards, and says which drivers it has.
func TestProductionHasNoFakeDriver(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"config", "check"}, {"discover"}} {
		code, _, errOut := execute(t, inProduction(t), "agent: {backends: [{driver: fake, options: {park: 1xgpu}}]}", args...)
		require.Equal(t, commandline.ExitNotFound, code, args)
		require.Contains(t, errOut, `there is no driver "fake"; this agent has: generic`, args)
	}
}

// agent.drivers holds for the host's own backends, too.
func TestDriversThatAHostAllows(t *testing.T) {
	t.Parallel()
	const backends = "backends: [{name: cards, driver: fake}]"
	for drivers, allowed := range map[string]string{"": "generic", "drivers: [generic], ": "generic", "drivers: [], ": "none"} {
		code, _, errOut := command(t, "agent: {"+drivers+"host: h1, "+backends+"}", "config", "check")
		require.NotEqual(t, 0, code)
		require.Contains(t, errOut, `backend cards: host h1 does not allow driver "fake"; in agent.drivers it has: `+allowed)
	}

	code, _, errOut := command(t, "agent: {drivers: [generic, fake], "+backends+"}", "config", "check")
	require.Equal(t, 0, code, errOut)

	for _, args := range [][]string{{"config", "check"}, {"discover"}, {"run"}} {
		code, _, errOut = command(t, "agent: {drivers: [generic, faek], "+backends+"}", args...)
		require.Equal(t, commandline.ExitUsage, code, args)
		require.Contains(t, errOut, `agent.drivers: a driver "faek" cannot be allowed, because there is none; this agent has: fake, generic`, args)
	}
}

// The option names the same kinds of work as the activities, all of which are
// allowed by default. An empty list allows none of them.
func TestActivitiesThatAHostAllows(t *testing.T) {
	t.Parallel()
	require.Equal(t, activity.Kinds(), config.Default().Agent.Activities)

	code, _, errOut := command(t, "agent: {activities: [retire]}", "config", "check")
	require.Equal(t, commandline.ExitUsage, code)
	for _, kind := range activity.Kinds() {
		require.Contains(t, errOut, string(kind))
	}

	for text, want := range map[string][]cyborg.OperationKind{
		"agent: {activities: [attach]}": {cyborg.OperationAttach},
		"agent: {activities: []}":       {},
		"":                              activity.Kinds(),
	} {
		file := filepath.Join(t.TempDir(), "cyborg.yaml")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		c, err := config.Load(config.LoadOptions{Process: config.ProcessAgent, File: file})
		require.NoError(t, err)
		settings, err := agentConfig(c, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		require.Equal(t, want, settings.Activities, text)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	code, out, _ := command(t, "", "version")
	require.Equal(t, 0, code)
	require.Equal(t, cyborg.Version+"\n", out)
}

func TestInvalidConfigurationEndsEveryCommand(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"run"}, {"config", "check"}, {"config", "dump"}, {"discover"}, {"record"}} {
		code, out, errOut := command(t, "agent:\n  hartbeat: 3s\n  slots: 0\n", args...)
		require.Equal(t, commandline.ExitUsage, code, args)
		require.Empty(t, out, args)
		require.Contains(t, errOut, "cyborg.yaml:2: agent.hartbeat: there is no such option; did you mean agent.heartbeat?", args)
		require.Contains(t, errOut, `cyborg.yaml:3: agent.slots = "0": expected a whole number from 1 to 1024`, args)
	}
}

func TestInvalidCommandLines(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"nonsense"}, {"--nonsense"}, {"discover", "more"}, {"config", "nonsense"}} {
		code, _, errOut := command(t, "", args...)
		require.Equal(t, commandline.ExitUsage, code, args)
		require.Contains(t, errOut, "Error: ", args)
	}
}

func TestConfigurationIsCheckedAndDumped(t *testing.T) {
	t.Parallel()
	code, out, errOut := command(t, "temporal: {api_key: hunter2hunter2}", "config", "check")
	require.Equal(t, 0, code, errOut)
	require.Equal(t, "The configuration is good.\n", out)

	code, out, errOut = command(t, "temporal: {api_key: hunter2hunter2}", "config", "dump", "--host", "h-7")
	require.Equal(t, 0, code, errOut)
	require.Contains(t, out, "host: h-7 # --host")
	require.NotContains(t, out, "hunter2")
}

func TestConfigCheckTriesBackendOptions(t *testing.T) {
	t.Parallel()
	code, out, errOut := command(t, `
agent:
  drivers: [fake, generic]
  backends:
    - {name: typo, driver: generic, options: {device_spec: [{vendor: "10de"}]}}
    - {name: good, driver: fake, options: {park: 2xgpu}}
    - {name: none, driver: nosuch}
`, "config", "check")
	require.Equal(t, commandline.ExitUsage, code)
	require.Empty(t, out)
	require.Contains(t, errOut, `backend typo: `)
	require.Contains(t, errOut, `no property "vendor"`)
	require.Contains(t, errOut, `backend none: there is no driver "nosuch"`)
	require.NotContains(t, errOut, "good")
}

func TestDiscoverPrintsWhatBackendsSee(t *testing.T) {
	t.Parallel()
	state, root := filepath.Join(t.TempDir(), "state"), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "sys/bus/pci/devices"), 0o755))

	code, out, errOut := command(t, `
agent:
  host: h1
  state_dir: `+state+`
  drivers: [fake, generic]
  backends:
    - {driver: fake, options: {park: "2xgpu,1xfpga"}}
    - {name: pci, driver: generic, options: {device_spec: [{address: "*"}]}}
    - {name: off, driver: fake, enabled: false}
`, "discover", "--root", root)
	require.Equal(t, 0, code, errOut)

	var seen discovery
	require.NoError(t, json.Unmarshal([]byte(out), &seen))
	require.Equal(t, "h1", seen.Host)
	require.Len(t, seen.Backends, 3)
	require.Equal(t, cyborg.BackendOK, seen.Backends[0].State)
	require.Len(t, seen.Backends[0].Devices, 3)
	require.Equal(t, cyborg.BackendOK, seen.Backends[1].State)
	require.Empty(t, seen.Backends[1].Devices, "the root that was given has no devices")
	require.Equal(t, cyborg.BackendDisabled, seen.Backends[2].State)
	require.NoDirExists(t, state, "nothing is written")
}

func TestDiscoverReportsBackendsThatFail(t *testing.T) {
	t.Parallel()
	code, out, errOut := command(t, `
agent:
  drivers: [fake]
  backends:
    - {driver: nonsense}
    - {driver: fake, options: {park: 1xgpu}}
`, "discover")
	require.NotEqual(t, 0, code)
	require.Contains(t, errOut, "backend nonsense: there is no driver")

	var seen discovery
	require.NoError(t, json.Unmarshal([]byte(out), &seen))
	require.Equal(t, cyborg.BackendFailed, seen.Backends[0].State)
	require.Len(t, seen.Backends[1].Devices, 1, "one that fails does not stop the others")

	code, _, errOut = command(t, "", "discover")
	require.Equal(t, commandline.ExitUsage, code)
	require.Contains(t, errOut, "no backend is configured\nSet agent.backends")
}

func TestRecordWritesAFileOnce(t *testing.T) {
	t.Parallel()
	root, file := t.TempDir(), filepath.Join(t.TempDir(), "machine.tar.gz")
	require.NoError(t, os.MkdirAll(filepath.Join(root, "sys/bus/pci/devices"), 0o755))
	code, _, errOut := command(t, "", "record", "--root", root, "-o", file)
	require.Equal(t, 0, code, errOut)

	first, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, []byte{0x1f, 0x8b}, first[:2], "it is compressed by gzip")

	code, _, errOut = command(t, "", "record", "--root", root, file)
	require.Equal(t, commandline.ExitUsage, code)
	require.Contains(t, errOut, "exists already")

	entries, err := os.ReadDir(filepath.Dir(file))
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing is left beside it")

	code, out, errOut := command(t, "", "record", "--root", root, "-o", "-")
	require.Equal(t, 0, code, errOut)
	require.Equal(t, string(first), out)
}

// TestAnAgentRunsWithoutItsServers: while nobody answers it, an agent looks at
// its hardware, records that, serves its health and metrics, and can be
// stopped.
func TestAnAgentRunsWithoutItsServers(t *testing.T) {
	t.Parallel()
	const nobody = "127.0.0.1:1"
	address := porttest.Address(t)
	state := filepath.Join(t.TempDir(), "state")

	ctx, stop := context.WithCancel(t.Context())
	defer stop()

	file := filepath.Join(t.TempDir(), "cyborg.yaml")
	foreign := issueFor(t, "h2") // which a Temporal may take, so it stops nothing
	require.NoError(t, os.WriteFile(file, []byte("agent: {drivers: [fake]}\ntemporal: {tls: "+foreign+"}"), 0o600))
	program := withFake(t)

	var stdout, stderr bytes.Buffer
	done := make(chan int, 1)
	go func() {
		done <- commandline.Execute(ctx, program, []string{
			"--config", file, "--host", "h1", "--state-dir", state, "--backends", "[{driver: fake, options: {park: 1xgpu}}]",
			"--endpoints", "http://" + nobody, "--temporal-address", nobody, "--metrics-listen", address,
		}, &stdout, &stderr)
	}()

	get := func(path string) string {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody)
		if err != nil {
			return err.Error()
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return ""
		}
		defer answer.Body.Close()
		var body bytes.Buffer
		if _, err := body.ReadFrom(answer.Body); err != nil || answer.StatusCode != http.StatusOK {
			return ""
		}
		return body.String()
	}

	require.Eventually(t, func() bool { return get("/healthz") == "ok\n" }, 5*time.Minute, 50*time.Millisecond)
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(state, "inventory.json"))
		return err == nil
	}, 5*time.Minute, 50*time.Millisecond, "it looks at its hardware")
	require.Contains(t, get("/metrics"), "go_goroutines")

	stop()
	select {
	case code := <-done:
		require.Equal(t, 0, code, stderr.String())
	case <-time.After(5 * time.Minute):
		t.Fatal("the agent does not stop")
	}
	require.Contains(t, stderr.String(), "is the certificate of spiffe://cyborg/host/h2, and this process needs one of spiffe://cyborg/host/h1")
}

// issueFor returns the files, as YAML, of a new certificate for a host.
func issueFor(t *testing.T, host string) string {
	t.Helper()
	authority, err := pki.Make(filepath.Join(t.TempDir(), "ca"))
	require.NoError(t, err)
	certificate, key, err := authority.IssuePair(pki.Leaf{Identity: identity.Identity{TrustDomain: "cyborg", Role: identity.Host, Name: host}})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), host+".pem")
	require.NoError(t, os.WriteFile(file, append(certificate, key...), 0o600))
	return "{cert: " + file + ", key: " + file + ", ca: " + authority.CertificateFile() + "}"
}

// TestForeignCertificate: an agent with the certificate of another host says so
// before it asks anybody.
func TestForeignCertificate(t *testing.T) {
	t.Parallel()
	files := issueFor(t, "h2")
	const foreign = "is the certificate of spiffe://cyborg/host/h2, and this process needs one of spiffe://cyborg/host/h1"
	for _, verb := range [][]string{nil, {"config", "check"}} {
		code, _, errOut := command(t, "agent: {host: h1, tls: "+files+"}", append(verb, "--state-dir", t.TempDir())...)
		require.Equal(t, commandline.ExitUsage, code, errOut)
		require.Contains(t, errOut, foreign)
	}

	// A Temporal of somebody else may take it.
	code, _, errOut := command(t, "agent: {host: h1}\ntemporal: {tls: "+files+"}", "config", "check", "--state-dir", t.TempDir())
	require.Equal(t, 0, code, errOut)
	require.Contains(t, errOut, foreign)
}

// TestCertificatesAreChecked: a key in the place of a certificate, and two files
// that do not belong together, are no good configuration.
func TestCertificatesAreChecked(t *testing.T) {
	t.Parallel()
	authority, err := pki.Make(filepath.Join(t.TempDir(), "ca"))
	require.NoError(t, err)
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		certificate, key, err := authority.IssuePair(pki.Leaf{Identity: identity.Identity{TrustDomain: "cyborg", Role: identity.Host, Name: "h1"}})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".crt"), certificate, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".key"), key, 0o600))
	}

	for files, good := range map[string]bool{
		"{cert: a.crt, key: a.key, ca: a.crt}": true,
		"{cert: a.key, key: a.key}":            false,
		"{cert: a.crt, key: b.key}":            false,
		"{ca: a.key}":                          false,
	} {
		for _, section := range []string{"agent: {host: h1, tls: ", "agent: {host: h1}\ntemporal: {tls: "} {
			text := section + strings.NewReplacer("a.", dir+"/a.", "b.", dir+"/b.").Replace(files) + "}"
			code, _, errOut := command(t, text, "config", "check", "--state-dir", t.TempDir())
			require.Equal(t, good, code == 0, "%s: %s", text, errOut)
			if !good {
				require.Contains(t, errOut, "tls: ", text)
			}
		}
	}
}
