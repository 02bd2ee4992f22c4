package cli_test

import (
	"cmp"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/doctor"
	"github.com/cyborg-project/cyborg/internal/pki"
	"github.com/cyborg-project/cyborg/internal/porttest"
)

// healthy is an API in which doctor finds nothing wrong.
func healthy(t *testing.T) *fakeAPI {
	t.Helper()
	api := newAPI(t)
	api.accelerators = api.accelerators[:1]
	api.answers("GET /v1", http.StatusOK, map[string]any{
		"id": "v1", "status": "CURRENT", "product": "cyborg", "release": cyborg.Version, "authentication": "bearer token", "links": []any{},
	})

	api.handles("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]string{"status": "ok"})
	})

	api.readiness(http.StatusOK, "ready", true)
	api.clock(0)
	api.services(service("api", true), service("conductor", true))
	api.hosts(cyborg.Host{Name: "h1", AgentVersion: cyborg.Version})
	api.usage(cyborg.HostUsage{Host: "h1"})
	api.backends(cyborg.Backend{Host: "h1", Name: "fake", Driver: "fake", State: cyborg.BackendOK, Services: []string{}})
	api.openOperation(time.Minute)
	api.devices(apiclient.Device{})
	api.drift()

	return api
}

// drift sets the drift that the API lists.
func (f *fakeAPI) drift(found ...apiclient.Drift) {
	f.answers("GET /v1/drift", http.StatusOK, map[string]any{"drift": append([]apiclient.Drift{}, found...)})
}

// readiness sets what /readyz answers, and whether Temporal is ready.
func (f *fakeAPI) readiness(status int, word string, temporal bool) {
	f.answers("GET /readyz", status, map[string]any{"status": word, "checks": []apiclient.Check{{Name: "database", OK: true}, {Name: "temporal", OK: temporal, Detail: "does not answer"}}})
}

// clock makes the API's clock run ahead of this machine's.
func (f *fakeAPI) clock(ahead time.Duration) {
	f.handles("GET /v1/caller", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, apiclient.Caller{Name: "alice", Role: "admin", Time: time.Now().Add(ahead)})
	})
}

// service is a process of this role, which is alive or disappeared without
// notice.
func service(role string, alive bool) cyborg.Service {
	return cyborg.Service{Role: role, Host: "s1", Instance: "7", Version: cyborg.Version, StartedAt: noon, LastSeen: noon, Alive: alive}
}

// services sets the processes that the API lists.
func (f *fakeAPI) services(services ...cyborg.Service) {
	f.answers("GET /v1/services", http.StatusOK, map[string]any{"service": services})
}

// hosts sets the hosts that the API lists.
func (f *fakeAPI) hosts(hosts ...cyborg.Host) {
	for i := range hosts {
		hosts[i].LastSeen, hosts[i].RegisteredAt, hosts[i].Backends = noon, noon, []cyborg.Backend{}
	}
	f.answers("GET /v1/hosts", http.StatusOK, map[string]any{"host": append([]cyborg.Host{}, hosts...)})
}

// usage sets what the hosts answer by way of Temporal.
func (f *fakeAPI) usage(hosts ...cyborg.HostUsage) {
	for i := range hosts {
		hosts[i].Deployables = []cyborg.DeployableUsage{}
	}
	f.answers("GET /v1/usage", http.StatusOK, cyborg.Census{Hosts: hosts})
}

// backends sets the backends that the API lists.
func (f *fakeAPI) backends(backends ...cyborg.Backend) {
	f.answers("GET /v1/drivers", http.StatusOK, map[string]any{"driver": backends})
}

// devices sets the devices that the API lists. Each is the same card, and is divided as its
// Device says.
func (f *fakeAPI) devices(devices ...apiclient.Device) {
	for i := range devices {
		devices[i].UUID, devices[i].Host, devices[i].Identity = cardID, "h1", "0000:3b:00.0"
		devices[i].Presence = cmp.Or(devices[i].Presence, cyborg.PresencePresent)
		devices[i].ControlPath.Info = map[string]string{}
	}
	f.answers("GET /v1/devices", http.StatusOK, map[string]any{"device": devices})
}

// partitioned is a card that can have up to 8 virtual functions, and is divided like this.
func partitioned(layout, wanted cyborg.Layout) apiclient.Device {
	parts := []cyborg.PartKind{{Name: "vf", Most: 8, Description: "a virtual function"}, {Name: "1g.10gb", Most: 7}}
	device := apiclient.Device{Device: cyborg.Device{Partitioning: &cyborg.Partitioning{Parts: parts, Layout: layout.Normal()}}}
	if wanted != nil {
		device.WantedLayout = &wanted
	}
	return device
}

// openOperation makes one operation run that was admitted this long ago.
func (f *fakeAPI) openOperation(age time.Duration) {
	one := apiclient.Operation{Operation: cyborg.Operation{
		ID: operation, Kind: cyborg.OperationProgram, State: cyborg.OperationRunning, Host: "h1", Subjects: []cyborg.Subject{}, Actor: cyborg.Actor{Name: "alice"},
		Input: cyborg.JSONObject{}, Steps: []cyborg.Step{}, CreatedAt: time.Now().Add(-age).UTC(),
	}}

	f.onlyOperation("open", "true", one)
}

// onlyOperation lists one operation where the query has this filter with this
// value, and none otherwise.
func (f *fakeAPI) onlyOperation(filter, value string, one apiclient.Operation) {
	one.WorkflowID = one.Operation.WorkflowID()
	f.handles("GET /v1/operations", func(w http.ResponseWriter, r *http.Request) {
		found := []apiclient.Operation{}
		if r.URL.Query().Get(filter) == value {
			found = append(found, one)
		}
		answer(w, http.StatusOK, map[string]any{"operation": found})
	})
}

// undoneOperation makes one operation need an operator; it was admitted this
// long ago.
func (f *fakeAPI) undoneOperation(age time.Duration) {
	f.onlyOperation("state", "needs_operator", apiclient.Operation{Operation: cyborg.Operation{
		ID: operation, Kind: cyborg.OperationProgram, State: cyborg.OperationNeedsOperator, Host: "h1", Subjects: []cyborg.Subject{}, Actor: cyborg.Actor{Name: "alice"},
		Input: cyborg.JSONObject{}, Steps: []cyborg.Step{}, CreatedAt: time.Now().Add(-age).UTC(),
	}})
}

// TestDoctorIgnoresOldFailures: an operation that needs an operator is reported
// for 7 days.
func TestDoctorIgnoresOldFailures(t *testing.T) {
	t.Parallel()
	api := healthy(t)
	api.undoneOperation(8 * 24 * time.Hour)
	require.NotContains(t, api.cyborg("doctor").out, operation.String())
}

// TestDoctorIgnoresRestartedProcesses: a killed process is listed for a day. If
// another one has started since, there is nothing to do.
func TestDoctorIgnoresRestartedProcesses(t *testing.T) {
	t.Parallel()
	api := healthy(t)
	killed := service("api", false)
	killed.LastSeen = noon.Add(-time.Minute)
	api.services(killed, service("api", true), service("conductor", true))

	got := api.cyborg("doctor")
	require.Zero(t, got.code, got.err)
	require.NotContains(t, got.out, "warning", "another process took its place")

	killed.LastSeen = noon.Add(time.Minute)
	api.services(killed, service("api", true), service("conductor", true))
	require.Contains(t, api.cyborg("doctor").out, "disappeared without notice", "the other process was running before it died")
}

// TestDoctorCountsSuccessors: each process that started later replaces one that
// was killed before. If two were killed and one was started, one is missing.
func TestDoctorCountsSuccessors(t *testing.T) {
	t.Parallel()
	at := func(instance string, from, to time.Duration, alive bool) cyborg.Service {
		s := service("api", alive)
		s.Instance, s.StartedAt, s.LastSeen = instance, noon.Add(from), noon.Add(to)
		return s
	}
	api := healthy(t)
	api.services(at("1", -time.Hour, -10*time.Minute, false), at("2", -time.Hour, -8*time.Minute, false),
		at("3", -time.Minute, 0, true), service("conductor", true))

	got := api.cyborg("doctor")
	require.Contains(t, got.out, "api on s1 (since 2026-01-31T11:50:00Z) disappeared without notice", "one process replaces only one of the two")
	require.NotContains(t, got.out, "11:52")

	api.services(at("1", -time.Hour, -10*time.Minute, false), at("2", -9*time.Minute, -8*time.Minute, false),
		at("3", -time.Minute, 0, true), service("conductor", true))
	require.NotContains(t, api.cyborg("doctor").out, "warning", "each process replaced the one before it")
}

// TestDoctorOnAHealthySystem: every check reports, and each says ok.
func TestDoctorOnAHealthySystem(t *testing.T) {
	t.Parallel()
	got := healthy(t).cyborg("doctor")
	require.Equal(t, 0, got.code, got.out+got.err)
	for line := range strings.Lines(got.out) {
		require.True(t, strings.HasPrefix(line, "ok "), line)
	}
	require.Equal(t, 17, strings.Count(got.out, "\n"), got.out)
}

// TestDoctorExaminesTheAuthority: the authorities that the API's certificate is
// checked against are examined, too.
func TestDoctorExaminesTheAuthority(t *testing.T) {
	t.Parallel()
	authority, err := pki.Make(filepath.Join(t.TempDir(), "ca"))
	require.NoError(t, err)

	got := healthy(t).cyborg("doctor", "--cacert", authority.CertificateFile())
	require.Zero(t, got.code, got.err)
	require.Contains(t, got.out, "certificate of --cacert: is valid until "+authority.Certificate().NotAfter.UTC().Format(time.DateOnly))
}

// TestDoctorBlamesNoHostThatIsSlow: neither one that had no time to answer, nor one
// that says what does not work there.
func TestDoctorBlamesNoHostThatIsSlow(t *testing.T) {
	t.Parallel()
	api := healthy(t)
	api.hosts(cyborg.Host{Name: "h1"}, cyborg.Host{Name: "h2"}, cyborg.Host{Name: "h3"}, cyborg.Host{Name: "h4", Silent: true}, cyborg.Host{Name: "h5"})
	api.usage(
		cyborg.HostUsage{Host: "h1"}, cyborg.HostUsage{Host: "h2", Error: cyborg.UsageUnanswered}, cyborg.HostUsage{Host: "h3", Error: cyborg.UsageNotAsked},
		cyborg.HostUsage{Host: "h4", Error: "is silent"}, cyborg.HostUsage{Host: "h5", Error: "backend pci: no sysfs"},
	)
	require.Contains(t, api.cyborg("doctor").out, "ok       steps of hosts: 2 hosts answered by way of Temporal, and there was no time for 2\n")
}

// TestDoctorListsPendingImages: what waits for its host is listed, and is nothing wrong.
func TestDoctorListsPendingImages(t *testing.T) {
	t.Parallel()
	api := healthy(t)
	api.has(func(a *apiclient.Accelerator) {
		a.PendingImage = &cyborg.PendingImage{BitstreamID: "shell-2", Until: cyborg.ActivationPowerCycle}
	})
	got := api.cyborg("doctor")
	require.Zero(t, got.code, got.out)
	require.Contains(t, got.out, "ok       pending images: 1 not in effect yet: fast (shell-2 after a power cycle of h1)\n")
	require.Contains(t, got.out, "ok       accelerators: none of ")

	api.has(func(a *apiclient.Accelerator) { a.Presence = cyborg.PresenceMissing })
	require.NotContains(t, api.cyborg("doctor").out, "pending images", "it is not there")
}

// TestDoctorWaitsForACleaning: what is about to be cleaned, or waits for its operator, is no
// finding.
func TestDoctorWaitsForACleaning(t *testing.T) {
	t.Parallel()
	for name, waits := range map[string]func(a *apiclient.Accelerator){
		"just given back": func(a *apiclient.Accelerator) { a.Handles[0].Unclean.Since = time.Now().Add(-time.Minute) },
		"being cleaned": func(a *apiclient.Accelerator) {
			a.Claim = &cyborg.Claim{Operation: operation, Kind: cyborg.OperationClean}
		},
		"in maintenance": func(a *apiclient.Accelerator) { a.Admin = cyborg.AdministrationMaintaining },
	} {
		api := healthy(t)
		api.has(func(a *apiclient.Accelerator) {
			a.Handles[0].Unclean = &cyborg.Unclean{Method: cyborg.CleanScrub, Since: noon}
			waits(a)
		})
		require.NotContains(t, api.cyborg("doctor").out, "not clean", name)
	}
}

// TestDoctorKnowsHowDevicesAreMeantToBe: only what somebody has divided, is there, and is not
// being divided is a finding, and it says with which command it is divided so again.
func TestDoctorKnowsHowDevicesAreMeantToBe(t *testing.T) {
	t.Parallel()
	four, gone, undivided := cyborg.Layout{"vf": 4}, partitioned(nil, cyborg.Layout{"vf": 4}), partitioned(nil, cyborg.Layout{"vf": 4})
	gone.Presence, undivided.Partitioning = cyborg.PresenceMissing, nil
	whole := partitioned(nil, cyborg.Layout{})
	whole.Partitioning = nil

	for name, test := range map[string]struct {
		device apiclient.Device
		says   string
	}{
		"nobody has divided it": {partitioned(four, nil), ""},
		"as wanted":             {partitioned(four, four), ""},
		"whole as wanted":       {partitioned(nil, cyborg.Layout{}), ""},
		"missing":               {gone, ""},
		"lost by a boot":        {partitioned(nil, cyborg.Layout{"vf": 4, "1g.10gb": 2}), "cyborg device partition " + cardID.String() + " 1g.10gb=2 vf=4`"},
		"no longer divisible":   {undivided, "0000:3b:00.0 on h1 (cannot be divided any more, not vf=4)"},
		"whole for ever":        {whole, ""},
		"its command, too":      {undivided, "cyborg device partition " + cardID.String() + " vf=4`"},
		"meant to be whole":     {partitioned(four, cyborg.Layout{}), "cyborg device partition " + cardID.String() + " --whole`"},
	} {
		api := healthy(t)
		api.devices(test.device)
		got := api.cyborg("doctor")
		require.Equal(t, test.says != "", strings.Contains(got.out, "not divided as wanted"), "%s: %s", name, got.out)
		require.Contains(t, got.out, test.says, name)
		require.Zero(t, got.code, name)
	}

	api := healthy(t)
	api.drift(apiclient.Drift{Drift: cyborg.Drift{Host: "h1", Class: cyborg.DriftLayout, Device: cardID, FoundAt: noon, LastAt: noon}})
	require.NotContains(t, api.cyborg("doctor").out, "placement", "it is no difference of Placement")

	api.devices(partitioned(four, cyborg.Layout{}))
	api.onlyOperation("kind", "partition", apiclient.Operation{Operation: cyborg.Operation{
		ID: operation, Kind: cyborg.OperationPartition, State: cyborg.OperationRunning, Host: "h1", Subjects: []cyborg.Subject{}, Actor: cyborg.Actor{Name: "alice"},
		Input: cyborg.JSONObject{"device": cardID.String(), "layout": map[string]any{}}, Steps: []cyborg.Step{}, CreatedAt: noon,
	}})
	require.NotContains(t, api.cyborg("doctor").out, "not divided", "it is being made whole")
}

// TestDoctorFindings: each check finds what is wrong with its subject and says
// what to do.
func TestDoctorFindings(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		breaks func(*fakeAPI)
		check  string
		state  doctor.State
		found  string
	}{
		"no API": {func(f *fakeAPI) { f.server.URL = "http://" + porttest.Address(f.t) }, "api", doctor.Failed, "nothing listens at "},
		"another release": {func(f *fakeAPI) {
			f.answers("GET /v1", http.StatusOK, map[string]any{"id": "v1", "status": "CURRENT", "product": "cyborg", "release": "9.9", "authentication": "none", "links": []any{}})
		}, "release of client and server", doctor.Warning, "the server has 9.9, not " + cyborg.Version},
		"Temporal": {func(f *fakeAPI) { f.readiness(http.StatusServiceUnavailable, "not ready", false) }, "temporal", doctor.Failed, "does not answer"},
		"a second agent": {func(f *fakeAPI) {
			f.hosts(cyborg.Host{
				Name: "h1", AgentVersion: cyborg.Version, Address: "10.0.0.1", Devices: 1,
				DuplicateAgents: []cyborg.DuplicateAgent{{Instance: "two", Address: "10.0.0.2"}},
			})
		}, "agents", doctor.Failed, "h1 (one at 10.0.0.2, while its own is at 10.0.0.1)"},
		"no token": {func(f *fakeAPI) {
			f.handles("GET /v1/caller", func(w http.ResponseWriter, _ *http.Request) {
				problem(w, http.StatusUnauthorized, cyborg.Errorf(cyborg.ErrUnauthenticated, "the request has no credential"))
			})
		}, "caller", doctor.Failed, "the request has no credential"},
		"a slow clock":  {func(f *fakeAPI) { f.clock(-5 * time.Second) }, "clock of the server", doctor.Warning, "is behind this machine's by "},
		"a wrong clock": {func(f *fakeAPI) { f.clock(time.Hour) }, "clock of the server", doctor.Failed, "is ahead of this machine's by "},
		"something open": {func(f *fakeAPI) {
			f.handles("GET /v1/caller", func(w http.ResponseWriter, _ *http.Request) {
				answer(w, http.StatusOK, apiclient.Caller{
					Name: "alice", Role: "admin", Time: time.Now(), Warnings: []apiclient.Warning{{Check: "grants", Found: "are off", Do: "Set them."}},
				})
			})
		}, "grants", doctor.Warning, "are off"},
		"no conductor":   {func(f *fakeAPI) { f.services(service("api", true)) }, "services", doctor.Failed, "no conductor lives"},
		"a service gone": {func(f *fakeAPI) { f.services(service("api", true), service("conductor", true), service("api", false)) }, "services", doctor.Warning, "api on s1 (since 2026-01-31T12:00:00Z) disappeared without notice"},
		"no steps": {func(f *fakeAPI) {
			f.usage(cyborg.HostUsage{Host: "h1", Error: cyborg.UsageNotTaken}, cyborg.HostUsage{Host: "h2", Error: cyborg.UsageUnanswered})
		}, "steps of hosts", doctor.Warning, "1 heard, but no question is taken by way of Temporal: h1"},
		"no host": {func(f *fakeAPI) { f.hosts() }, "hosts", doctor.Warning, "none has ever reported"},
		"a host never heard": {func(f *fakeAPI) {
			f.answers("GET /v1/hosts", http.StatusOK, map[string]any{"host": []cyborg.Host{{Name: "h1", Silent: true, RegisteredAt: noon, Backends: []cyborg.Backend{}}}})
		}, "hosts", doctor.Failed, "1 of 1 silent: h1 (never heard)"},
		"a silent host": {func(f *fakeAPI) { f.hosts(cyborg.Host{Name: "h1"}, cyborg.Host{Name: "h2", Silent: true}) }, "hosts", doctor.Failed, "1 of 2 silent: h2 (since 2026-01-31T12:00:00Z)"},
		"a revoked host": {func(f *fakeAPI) {
			f.hosts(cyborg.Host{Name: "h1"}, cyborg.Host{Name: "h2", Silent: true, Revoked: noon}, cyborg.Host{Name: "h3", Revoked: noon})
		}, "revoked hosts", doctor.Warning, "2 of 3: h2 (since 2026-01-31T12:00:00Z) and h3 (since 2026-01-31T12:00:00Z, and is heard)"},
		"an old agent": {func(f *fakeAPI) { f.hosts(cyborg.Host{Name: "h1", AgentVersion: "0.0.1"}) }, "release of agents", doctor.Warning, "h1 has 0.0.1, not " + cyborg.Version},
		"a clock that is behind": {func(f *fakeAPI) {
			f.hosts(cyborg.Host{Name: "h1", AgentVersion: cyborg.Version, ClockOffset: new(-3600.5)}, cyborg.Host{Name: "h2", AgentVersion: cyborg.Version, ClockOffset: new(-9.9)})
		}, "clocks of agents", doctor.Warning, "differ from the database's by more than 10s on h1 (1h"},
		"a failed backend": {func(f *fakeAPI) {
			f.backends(cyborg.Backend{Host: "h1", Name: "pci", State: cyborg.BackendFailed, Error: "no sysfs", Services: []string{}})
		}, "backends", doctor.Failed, "cannot see their hardware: pci on h1 (no sysfs)"},
		"a broken card": {func(f *fakeAPI) {
			f.has(func(a *apiclient.Accelerator) { a.Lifecycle, a.Reason = cyborg.LifecycleError, "no undo" })
		}, "accelerators", doctor.Failed, "1 in error: fast (no undo)"},
		"a replaced card": {func(f *fakeAPI) {
			f.has(func(a *apiclient.Accelerator) { a.Presence, a.ReplacedBy = cyborg.PresenceMissing, "8086:37c8" })
		}, "accelerators", doctor.Warning, "1 missing: fast (another card, 8086:37c8, is in its place)"},
		"a missing card": {func(f *fakeAPI) { f.has(func(a *apiclient.Accelerator) { a.Presence = cyborg.PresenceMissing }) }, "accelerators", doctor.Warning, "1 missing: fast"},
		"a fenced card":  {func(f *fakeAPI) { f.has(func(a *apiclient.Accelerator) { a.Fence = &cyborg.Fence{Reason: "dust"} }) }, "accelerators", doctor.Warning, "1 fenced: fast (dust)"},
		"a group of two holders": {func(f *fakeAPI) {
			f.has(func(a *apiclient.Accelerator) {
				a.Holders, a.SameHolder = []cyborg.Holder{{Kind: cyborg.HolderHost, ID: "h1"}}, "iommu/17"
				a.HeldTogether = []cyborg.OtherHeld{{Name: "audio", Holder: &cyborg.Holder{Kind: cyborg.HolderService, ID: "ovs"}}}
			})
		}, "accelerators", doctor.Warning, "1 go to one holder with others that somebody else has: fast (iommu/17)"},
		"an unclean card": {func(f *fakeAPI) {
			f.has(func(a *apiclient.Accelerator) {
				a.Handles[0].Unclean = &cyborg.Unclean{Method: cyborg.CleanScrub, Since: noon}
			})
		}, "accelerators", doctor.Warning, "1 not clean after their last holder, and nobody gets them: fast (to be cleaned (scrub) since 2026-01-31T12:00:00Z)"},
		"a whole card and a part": {func(f *fakeAPI) {
			f.has(func(a *apiclient.Accelerator) {
				a.Holders = []cyborg.Holder{{Kind: cyborg.HolderHost, ID: "h1"}}
				a.ExcludedBy = []cyborg.OtherHeld{{Name: "slice", Holder: &cyborg.Holder{Kind: cyborg.HolderService, ID: "ovs"}}}
			})
		}, "accelerators", doctor.Warning, "1 held although others that exclude them are as well: fast (and slice, which service ovs has)"},
		"an unready card": {func(f *fakeAPI) {
			f.has(func(a *apiclient.Accelerator) {
				a.Conditions = []cyborg.Condition{{Code: "no_link", Level: cyborg.ConditionUnready, Message: "plug it in", Since: time.Now()}}
			})
		}, "accelerators", doctor.Warning, "1 unready or degraded: fast (unready, no_link: plug it in)"},
		"a card without its parts":              {func(f *fakeAPI) { f.devices(partitioned(nil, cyborg.Layout{"vf": 4})) }, "devices", doctor.Warning, "1 not divided as wanted: 0000:3b:00.0 on h1 (whole, not vf=4)"},
		"an operation that could not be undone": {func(f *fakeAPI) { f.undoneOperation(6 * 24 * time.Hour) }, "needs_operator", doctor.Warning, "1 of the last 7 days could not be undone"},
		"Placement differs": {func(f *fakeAPI) {
			f.drift(apiclient.Drift{Drift: cyborg.Drift{Host: "h1", Class: cyborg.DriftNoComputeNode, Detail: "it is not there", FoundAt: noon, LastAt: noon}})
		}, "placement", doctor.Warning, "differs from the records: no_compute_node on h1"},
		"a long operation": {func(f *fakeAPI) { f.openOperation(2 * time.Hour) }, "operations", doctor.Warning, "1 in flight for more than 1h0m0s: program " + operation.String()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			api := healthy(t)
			test.breaks(api)
			got := api.cyborg("doctor", "-f", "json")

			var findings []doctor.Finding
			require.NoError(t, json.Unmarshal([]byte(got.out), &findings), got.out)

			var bad []doctor.Finding
			for _, finding := range findings {
				if finding.State != doctor.OK {
					bad = append(bad, finding)
				}
			}

			require.NotEmpty(t, bad, got.out)
			require.Equal(t, test.check, bad[0].Check)
			require.Equal(t, test.state, bad[0].State)
			require.Contains(t, bad[0].Found, test.found)
			require.NotEmpty(t, bad[0].Do)
			require.Equal(t, map[doctor.State]int{doctor.Failed: 1, doctor.Warning: 0}[test.state], got.code)
		})
	}
}
