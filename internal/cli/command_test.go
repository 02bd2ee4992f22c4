package cli_test

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/cli"
	"github.com/cyborg-project/cyborg/internal/porttest"
)

// TestExitCodes: scripts tell failures apart by the exit code, which follows
// the HTTP status of the answer.
func TestExitCodes(t *testing.T) {
	t.Parallel()

	for _, kind := range cyborg.ErrorKinds() {
		want := map[int]int{400: 2, 404: 3, 409: 4, 504: 5, 503: 6, 429: 6}[kind.HTTPStatus()]
		if want == 0 {
			want = 1
		}

		api := newAPI(t)
		api.handles("GET /v1/hosts/{host}", func(w http.ResponseWriter, _ *http.Request) {
			problem(w, kind.HTTPStatus(), cyborg.Errorf(kind, "no").WithHint("Try less."))
		})

		got := api.cyborg("host", "show", "h1")
		require.Equal(t, want, got.code, kind)
		require.True(t, strings.HasPrefix(got.err, "Error: no\nTry less.\n"), got.err)
		require.Empty(t, got.out)
	}
}

// TestConflictNamesTheOperation: the operation that is in the way can be looked
// at and waited for.
func TestConflictNamesTheOperation(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	api.handles("POST /v1/accelerators/{uuid}/maintain", func(w http.ResponseWriter, _ *http.Request) {
		problem(w, http.StatusConflict, cyborg.Errorf(cyborg.ErrClaimed, "it is being programmed").WithOperation(operation))
	})

	got := api.cyborg("accelerator", "maintain", "fast", "--reason", "dust")
	require.Equal(t, 4, got.code)
	require.Equal(t, "Error: it is being programmed\nOperation "+operation.String()+": cyborg operation show "+operation.String()+"\n", got.err)
}

// TestInternalErrorNamesTheRequestID: the request ID finds the cause in the
// server's log.
func TestInternalErrorNamesTheRequestID(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	api.handles("GET /v1/hosts", func(w http.ResponseWriter, _ *http.Request) {
		problem(w, http.StatusInternalServerError, cyborg.Errorf(cyborg.ErrInternal, "something went wrong"))
	})

	got := api.cyborg("host", "list")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.err, requestID)
}

// TestUsageErrors: a mistake in a command line ends with code 2, says what is
// wrong and points to the help.
func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for line, says := range map[string]string{
		"bogus":                                                    "there is no `cyborg bogus`",
		"accelrator list":                                          "did you mean accelerator?",
		"accelerator lst":                                          "did you mean list or set?",
		"operation bogus":                                          "there is no `cyborg operation bogus`",
		"accelerator list --bogus":                                 "there is no flag --bogus",
		"accelerator list extra":                                   `"extra" is one argument too many`,
		"accelerator show":                                         "ACCELERATOR is missing",
		"accelerator program fast":                                 "IMAGE is missing",
		"accelerator list -f xml":                                  `there is no format "xml"`,
		"accelerator list -c nothing":                              `there is no column "nothing"; there are UUID, Name`,
		"accelerator show fast -c nothing":                         `there is no field "nothing"; there are uuid, name`,
		"accelerator attach fast --instance a --host b":            "--host and --instance exclude each other",
		"accelerator attach fast --parameter mac":                  `--parameter "mac" is not NAME=VALUE`,
		"accelerator attach fast --parameter =5":                   `--parameter "=5" is not NAME=VALUE`,
		"accelerator attach fast --parameter a=1 --parameter a=2":  "--parameter a is given twice",
		"accelerator maintain fast":                                "--reason is missing",
		"accelerator maintain fast --reason x --for -3h":           "--for -3h0m0s is not a positive duration",
		"accelerator maintain fast --reason x --until noon":        `--until "noon" is not a time such as`,
		"accelerator set fast":                                     "nothing to set",
		"accelerator create x --capability gib":                    `--capability "gib" is not KEY=VALUE`,
		"accelerator create x --capability a=1 --capability a.b=2": `part of "a.b" is a value`,
		"accelerator ready fast --wait --no-wait":                  "--no-wait and --wait exclude each other",
		"accelerator list --limit -1":                              `--limit must be a whole number, 0 or more, not "-1"`,
		"accelerator list --limit abc":                             `--limit must be a whole number, 0 or more, not "abc"`,
		"accelerator list --limt 3":                                "there is no flag --limt; did you mean --limit?",
		"man":                                                      "DIRECTORY is missing",
		"accelerator list -x":                                      "there is no flag -x",
		"accelerator list --limit":                                 "--limit needs a value",
		"host list --timeout soon":                                 `--timeout must be a time such as 90s or 2h30m, not "soon"`,
		"accelerator create x --remote=perhaps":                    `--remote must be true or false, not "perhaps"`,
		"accelerator list -w 5s":                                   `"5s" is one argument too many; use --watch=5s`,
		"accelerator list -w=-5s":                                  "--watch=-5s is not a positive duration",
		"accelerator list --sort nothing":                          `there is no column "nothing"; there are UUID, Name`,
		"accelerator list --sort name:up":                          `--sort "name:up": a column is sorted asc or desc, not "up"`,
		"accelerator create x --vendor-id nvidia":                  `--vendor-id "nvidia" is no PCI id; those are four hexadecimal digits`,
		"accelerator create x --product-id 0x1db":                  `--product-id "0x1db" is no PCI id`,
		"device list --vendor-id 10de,0x10def":                     `--vendor-id "0x10def" is no PCI id`,
		"attach-instance " + instance:                              "ACCELERATOR is missing",
		"detach-instance":                                          "INSTANCE is missing",
		"driver update h1 fake":                                    "--option or --no-options is missing",
		"events -f yaml":                                           `there is no format "yaml" for events`,
		"host list --timeout -1s":                                  "--timeout -1s is negative",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()

			got := newAPI(t).cyborg(strings.Fields(line)...)
			require.Equal(t, 2, got.code)
			require.Contains(t, got.err, says)
			require.Contains(t, got.err, "--help`")
			require.Empty(t, got.out)
		})
	}
}

// TestEmptyArgumentsAreRefused: a script whose variable is empty must not
// detach any holder, nor work on any accelerator.
func TestEmptyArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		"ACCELERATOR is empty":   {"accelerator", "detach", ""},
		"IMAGE is empty":         {"accelerator", "program", "fast", ""},
		"--instance is empty":    {"accelerator", "detach", "fast", "--yes", "--instance", ""},
		"--host is empty":        {"accelerator", "attach", "fast", "--host="},
		"--accelerator is empty": {"accelerator", "create", "x", "--accelerator", ""},
		"--sha256 is empty":      {"accelerator", "program", "fast", "aes.gbs", "--sha256", ""},
		"--name is empty":        {"accelerator", "list", "--name", ""},
		"--url is empty":         {"host", "list", "--url", ""},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()

			got := newAPI(t).cyborg(args...)
			require.Equal(t, 2, got.code)
			require.Contains(t, got.err, says)
			require.Empty(t, got.out)
		})
	}
}

func TestUnreachableServerNamesTheRemedy(t *testing.T) {
	t.Parallel()
	nowhere := "http://" + porttest.Address(t)

	got := run(t.Context(), cli.Streams{Env: environment()}, "accelerator", "list", "--url", nowhere)
	require.Equal(t, 6, got.code)
	require.Contains(t, got.err, "Error: nothing listens at "+nowhere)
	require.Contains(t, got.err, "\nStart one with `make run` or `cyborg-standalone`, or say where yours is with --url or CYBORG_URL.\n")
}

// TestAcceleratorNamesAndUUIDPrefixes: an accelerator is found by its name, its
// UUID or at least 8 characters of the UUID, but never by a guess.
func TestAcceleratorNamesAndUUIDPrefixes(t *testing.T) {
	t.Parallel()
	show := func(name string) result {
		return newAPI(t).cyborg("accelerator", "show", name, "-f", "value", "-c", "uuid")
	}

	require.Equal(t, result{0, fpga.String() + "\n", ""}, show("fast"))
	require.Equal(t, result{0, gpu.String() + "\n", ""}, show(gpu.String()))
	require.Equal(t, result{0, gpu.String() + "\n", ""}, show("0A1B2C3E"))
	require.Equal(t, result{0, gpu.String() + "\n", ""}, show("0a1b2c3e-0000"))
	require.Equal(t, result{3, "", "Error: there is no accelerator \"0a1b2c3\"\nSee `cyborg accelerator list`. Give at least 8 characters of a UUID.\n"}, show("0a1b2c3"))

	require.Equal(t, 3, show("nobody").code)
	require.Equal(t, 3, show(uuid.NewString()).code)

	api := newAPI(t)
	api.has(func(a *apiclient.Accelerator) { a.UUID[3]++ }) // now both UUIDs begin with 0a1b2c3e
	got := api.cyborg("accelerator", "show", "0a1b2c3e")
	require.Equal(t, 2, got.code)
	require.Contains(t, got.err, "more than one accelerator's UUID")
}

// TestCreate: the flags become the request, and what was not given is left out.
func TestCreate(t *testing.T) {
	t.Parallel()
	api := newAPI(t, succeeding()...)
	got := api.cyborg("accelerator", "create", "new", "--accelerator", "h2_gpu0", "--host", "h1", "--device-type", "FPGA", "--num", "2",
		"--acc-type", "crypto", "--remotable=false", "--capability", "memory.gib=16", "--capability", "memory.kind=hbm", "-f", "value", "-c", "name")
	require.Zero(t, got.code, got.err)
	require.Equal(t, "fast\n", got.out, "the accelerator that the operation took")
	require.JSONEq(t, `{"name":"new","uuid":"`+gpu.String()+`","host":"h1","acc_specs":{"device_type":"FPGA","num":2,"acc_type":"crypto",
		"remotable":false,"acc_capability":{"memory":{"gib":16,"kind":"hbm"}}}}`, api.changes()[0].body)

	api = newAPI(t, succeeding()...)
	require.Zero(t, api.cyborg("accelerator", "create", "new", "--vendor-id", "0x10DE", "--product-id", "20B0").code)
	require.JSONEq(t, `{"name":"new","acc_specs":{"vendor_id":"10de","product_id":"20b0"}}`, api.changes()[0].body)

	api = newAPI(t, succeeding()...)
	require.Zero(t, api.cyborg("accelerator", "create", "new").code)
	require.JSONEq(t, `{"name":"new"}`, api.changes()[0].body)
}

// TestSetMergesSpecs: the API replaces acc_capability as a whole, so the
// command must also send the capabilities that it does not change. If-Match
// refuses the change where the accelerator has changed since they were read.
func TestSetMergesSpecs(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	api.answers("PUT /v1/accelerators/{uuid}/acc_specs", http.StatusOK, park()[0])

	got := api.cyborg("accelerator", "set", "fast", "--capability", "memory.kind=hbm", "--unset-capability", "sriov", "--remote")
	require.Zero(t, got.code, got.err)
	change := api.changes()[0]
	require.JSONEq(t, `{"acc_specs":{"remote":true,"acc_capability":{"memory":{"gib":16,"kind":"hbm"}}}}`, change.body)
	require.Equal(t, `"3"`, change.header.Get("If-Match"))
}

// TestAttachAndDetachSendTheHolder: the holder goes into the body of an attach
// and into the query of a detach.
func TestAttachAndDetachSendTheHolder(t *testing.T) {
	t.Parallel()
	for flags, want := range map[string]string{
		"":                       `{}`,
		"--instance " + instance: `{"instance":"` + instance + `"}`, "--host h1": `{"host":"h1"}`, "--service ovs": `{"service":"ovs"}`,
		"--service ovs --parameter mac=52:54:00:12:34:56 --parameter link_state=a=b": `{"service":"ovs","parameters":{"mac":"52:54:00:12:34:56","link_state":"a=b"}}`,
		"--parameter vlan=": `{"parameters":{"vlan":""}}`,
	} {
		api := newAPI(t, succeeding()...)
		require.Zero(t, api.cyborg(append([]string{"accelerator", "attach", "fast"}, strings.Fields(flags)...)...).code)
		require.JSONEq(t, want, api.changes()[0].body)
	}

	api := newAPI(t, succeeding()...)
	require.Zero(t, api.cyborg("accelerator", "detach", "fast", "--yes", "--service", "ovs").code)
	require.Equal(t, "service=ovs", api.changes()[0].query)
}

// TestShowSaysWhatItsHostPrepares: the parameters that an accelerator takes, with
// their values; what was chosen for a handle; and which functions go with it.
func TestShowSaysWhatItsHostPrepares(t *testing.T) {
	t.Parallel()
	one := park()[0]
	one.Preparation = &cyborg.Preparation{Parameters: []cyborg.Parameter{
		{Name: "mac", Type: cyborg.ParameterMAC, Help: "The address of the function."}, {Name: "vlan", Type: cyborg.ParameterInteger, Max: 4094},
	}}
	one.Handles[0].With, one.Handles[0].Prepared = []string{"0000:3b:00.6", "0000:3b:00.7"}, true
	one.Handles[0].Parameters = map[string]string{"vlan": "5", "mac": "52:54:00:12:34:56"}
	one.Handles[0].Health = ""

	shown := func(field string) string {
		api := newAPI(t)
		api.answers("GET /v1/accelerators/{uuid}", http.StatusOK, one)
		got := api.cyborg("accelerator", "show", fpga.String(), "-c", field)
		require.Zero(t, got.code, got.err)
		return got.out
	}

	parameters := shown("preparation")
	require.Contains(t, parameters, "| mac (the MAC address of one interface, such as 52:54:00:12:34:56): The address of the function. |\n")
	require.Contains(t, parameters, "| vlan (a whole number from 0 to 4094) ")
	require.Contains(t, shown("attach_handles"), "PCI 0000:3b:00.1 with 0000:3b:00.6, 0000:3b:00.7: held by instance "+instance+
		" since 2026-01-31T12:00:00Z (prepared with mac=52:54:00:12:34:56, vlan=5) |\n")

	one.Handles[0].Parameters = nil
	require.Contains(t, shown("attach_handles"), "since 2026-01-31T12:00:00Z (prepared) |\n")
	one.Handles[0].Prepared, one.Handles[0].Parameters = false, map[string]string{"vlan": "5"}
	require.Contains(t, shown("attach_handles"), "since 2026-01-31T12:00:00Z (with vlan=5) |\n")
	one.Preparation = &cyborg.Preparation{}
	require.Contains(t, shown("preparation"), "| its host prepares its handles |\n")

	one.Handles[0].Prepared, one.Handles[0].AttachedAt = true, time.Time{}
	require.Contains(t, shown("attach_handles"), "taken for instance "+instance+" (to be prepared with vlan=5) |\n", "its attach has not ended")
	one.Handles[0].Holder, one.Handles[0].Unconfirmed = nil, one.Handles[0].Holder
	require.Contains(t, shown("attach_handles"), ": left by instance "+instance+", its host has still to take it back (prepared with vlan=5) |\n")
	one.Handles[0].Prepared, one.Handles[0].Parameters = false, nil
	require.Contains(t, shown("attach_handles"), ", its host has still to take it back |\n")
}

// TestShowSaysHowItIsCleaned: how an accelerator can be cleaned, what each handle needs, and
// how it was cleaned last.
func TestShowSaysHowItIsCleaned(t *testing.T) {
	t.Parallel()
	one := park()[0]
	one.Cleaning = &cyborg.Cleaning{Methods: cyborg.CleanMethods(), After: cyborg.CleanReset}
	one.Handles[0].Clean, one.Handles[0].Health = cyborg.CleanScrub, ""

	api := newAPI(t)
	shown := func(field string) string {
		api.answers("GET /v1/accelerators/{uuid}", http.StatusOK, one)
		got := api.cyborg("accelerator", "show", fpga.String(), "-c", field)
		require.Zero(t, got.code, got.err)
		return got.out
	}

	require.Contains(t, shown("cleaning"), "| reset, scrub; reset after every holder |\n")
	require.Contains(t, shown("attach_handles"), "held by instance "+instance+" since 2026-01-31T12:00:00Z (scrub after its holder) |\n")
	one.Cleaning.After = ""
	require.Contains(t, shown("cleaning"), "| reset, scrub |\n")

	one.Handles[0].Unclean = &cyborg.Unclean{Method: cyborg.CleanScrub, Since: noon}
	one.Handles[0].Holder, one.Handles[0].Unconfirmed, one.Handles[0].Clean = nil, one.Handles[0].Holder, ""
	require.Contains(t, shown("attach_handles"), "its host has still to take it back (to be cleaned (scrub) since 2026-01-31T12:00:00Z) |\n")
	one.Handles[0].Unconfirmed = nil
	require.Contains(t, shown("attach_handles"), "PCI 0000:3b:00.1: to be cleaned (scrub) since 2026-01-31T12:00:00Z |\n")

	one.Handles[0].Unclean = nil
	one.Handles[0].Cleaned = &cyborg.Evidence{Method: cyborg.CleanScrub, Tool: "nvme format, crypto erase", ReadBack: "64 places are zero", At: noon, TookMS: 1500}
	require.Contains(t, shown("attach_handles"),
		"|   cleaned at 2026-01-31T12:00:00Z by scrub, with nvme format, crypto erase; read back: 64 places are zero |\n")
	one.Handles[0].Cleaned = &cyborg.Evidence{Declared: "wiped by hand", At: noon}
	require.Contains(t, shown("attach_handles"), "|   declared clean at 2026-01-31T12:00:00Z: wiped by hand |\n")
}

// TestShowSaysWhichImageComesNext: the image, and what has to be done to the host.
func TestShowSaysWhichImageComesNext(t *testing.T) {
	t.Parallel()
	one := park()[0]
	api := newAPI(t)
	for until, text := range map[cyborg.Activation]string{
		cyborg.ActivationPowerCycle: "shell-2 after a power cycle of h1", cyborg.ActivationReboot: "shell-2 after a reboot of h1",
		"full_moon": "shell-2 after something that this release does not know (full_moon) on h1",
	} {
		one.PendingImage = &cyborg.PendingImage{BitstreamID: "shell-2", Until: until}
		api.answers("GET /v1/accelerators/{uuid}", http.StatusOK, one)
		got := api.cyborg("accelerator", "show", fpga.String(), "-c", "pending_image")
		require.Zero(t, got.code, got.err)
		require.Contains(t, got.out, "| "+text+" |\n")
	}
}

// TestProgramSaysWhenItTakesEffect: whoever waits for a program is told where its image is
// not in effect when it has ended. What it replaces is what was loaded last.
func TestProgramSaysWhenItTakesEffect(t *testing.T) {
	t.Parallel()
	const told = "The image was loaded. It takes effect after a power cycle of h1.\n"
	for name, test := range map[string]struct {
		result cyborg.JSONObject
		flags  []string
		told   string
	}{
		"pending":   {cyborg.JSONObject{"bitstream_id": "shell-2", "pending": "power_cycle"}, nil, told},
		"quiet":     {cyborg.JSONObject{"bitstream_id": "shell-2", "pending": "power_cycle"}, []string{"--quiet"}, ""},
		"in effect": {cyborg.JSONObject{"bitstream_id": "shell-2"}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := newAPI(t, at(cyborg.OperationRunning), func(w http.ResponseWriter, o apiclient.Operation) {
				o.State, o.StartedAt, o.EndedAt, o.Result = cyborg.OperationSucceeded, noon, noon, test.result
				answer(w, http.StatusOK, o)
			})
			api.has(func(a *apiclient.Accelerator) {
				a.PendingImage = &cyborg.PendingImage{BitstreamID: "shell-2", Until: "power_cycle"}
			})

			refused := api.cyborg("accelerator", "program", "fast", "other.bin")
			require.Contains(t, refused.err, "ccelerator fast on h1 loses its image shell-2")
			got := api.cyborg(append([]string{"accelerator", "program", "fast", "shell.bin", "--id", "shell-2"}, test.flags...)...)
			require.Zero(t, got.code, got.err)
			require.Contains(t, got.out, "shell-2 after a power cycle of h1")
			require.Equal(t, test.told != "", strings.Contains(got.err, told), got.err)
		})
	}
}

// TestListSaysWhatIsUnclean: the status, and since when nobody gets it.
func TestListSaysWhatIsUnclean(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	api.has(func(a *apiclient.Accelerator) {
		second := a.Handles[0]
		a.Status, a.Holders = cyborg.StatusUnclean, []cyborg.Holder{}
		a.Handles[0].Holder, a.Handles[0].Unclean = nil, &cyborg.Unclean{Method: cyborg.CleanScrub, Since: noon.Add(time.Hour)}
		second.Holder, second.Unclean = nil, &cyborg.Unclean{Method: cyborg.CleanReset, Since: noon}
		a.Handles = append(a.Handles, second)
	})
	got := api.cyborg("accelerator", "list", "-f", "value", "-c", "status", "-c", "why", "--name", "fast")
	require.Zero(t, got.code, got.err)
	require.Contains(t, got.out, "unclean to be cleaned (reset) since 2026-01-31T12:00:00Z\n", "the one that waits for the longest time")
}

// TestMaintainAndEnable: maintenance ends after a duration or at a time, or
// when the accelerator is enabled.
func TestMaintainAndEnable(t *testing.T) {
	t.Parallel()
	api := newAPI(t)

	maintained := park()[0]
	maintained.Maintenance = &cyborg.Maintenance{Reason: "dust", By: "alice", Until: noon}
	api.answers("POST /v1/accelerators/{uuid}/maintain", http.StatusOK, maintained)
	api.answers("POST /v1/accelerators/{uuid}/enable", http.StatusOK, park()[0])

	got := api.cyborg("accelerator", "maintain", "fast", "--reason", "dust", "--for", "90m")
	require.Zero(t, got.code, got.err)
	require.Contains(t, got.out, "dust (by alice) until 2026-01-31T12:00:00Z")

	require.Zero(t, api.cyborg("accelerator", "maintain", "fast", "--reason", "dust", "--until", noon.Format(time.RFC3339)).code)
	require.Zero(t, api.cyborg("accelerator", "enable", "fast").code)

	changes := api.changes()
	require.JSONEq(t, `{"reason":"dust","for":"1h30m0s"}`, changes[0].body)
	require.JSONEq(t, `{"reason":"dust","until":"2026-01-31T12:00:00Z"}`, changes[1].body)
	require.Equal(t, "/v1/accelerators/"+fpga.String()+"/enable", changes[2].path)
}

// TestDrivers: drivers are installed, updated, removed and shown; updating
// without options clears them.
func TestDrivers(t *testing.T) {
	t.Parallel()
	done := then(func(operation *apiclient.Operation) {
		operation.State = cyborg.OperationSucceeded
		operation.Result = cyborg.JSONObject{"state": "ok", "services": []string{"attach"}, "devices": 3}
	})
	api := newAPI(t, done)

	got := api.cyborg("driver", "install", "h1", "generic", "--name", "nics", "--option", "device_spec.vendor_id=8086", "-q", "-f", "json")
	require.Zero(t, got.code, got.err)
	require.JSONEq(t, `{"host":"h1","name":"nics","state":"ok","services":["attach"],"devices":3}`, got.out)
	require.Zero(t, api.cyborg("driver", "update", "h1", "nics", "--no-options").code)
	require.Zero(t, api.cyborg("driver", "uninstall", "h1", "nics", "--yes").code)

	changes := api.changes()
	require.JSONEq(t, `{"name":"nics","driver":"generic","options":{"device_spec":{"vendor_id":8086}}}`, changes[0].body)
	require.JSONEq(t, `{"options":{}}`, changes[1].body)
	require.Equal(t, http.MethodDelete, changes[2].method)
	require.Equal(t, "/v1/hosts/h1/drivers/nics", changes[2].path)

	api.answers("GET /v1/drivers", http.StatusOK, map[string]any{"driver": []cyborg.Backend{
		{Host: "h1", Name: "nics", Driver: "generic", State: cyborg.BackendFailed, Error: "no sysfs", Services: []string{"discover", "attach"}},
	}})
	golden(t, "drivers.table", api.cyborg("driver", "list").out)

	api.answers("GET /v1/hosts/h1/drivers/nics", http.StatusOK, cyborg.Backend{
		Host: "h1", Name: "nics", Driver: "generic", State: cyborg.BackendOK, Services: []string{"attach"}, Options: map[string]any{"device_spec": "8086"},
	})
	golden(t, "driver-show.table", api.cyborg("driver", "show", "h1", "nics").out)
}

// TestNear: --near takes a NUMA node and a PCI address as they are, finds an accelerator by
// all its names, and shows how far the accelerators are.
func TestNear(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	api.accelerators[0].NUMADistance = new(21)
	for near, want := range map[string]string{
		"1": "1", "3b:00.0": "3b:00.0", "fast": fpga.String(), fpga.String()[:8]: fpga.String(), fpga.String(): fpga.String(),
	} {
		got := api.cyborg("accelerator", "list", "--host", "h1", "--near", near)
		require.Zero(t, got.code, got.err)
		require.Contains(t, got.out, "NUMA Distance")
		require.Contains(t, got.out, "| 21 ")
		requests := api.received()
		require.Contains(t, requests[len(requests)-1].query, "near="+url.QueryEscape(want))
	}

	got := api.cyborg("accelerator", "list", "--near", "nobody")
	require.NotZero(t, got.code)
	require.Contains(t, got.err, `there is no accelerator "nobody"`)
	require.NotContains(t, api.cyborg("accelerator", "list", "--long").out, "NUMA Distance")
}

// TestHostsAndServices compares what the commands about hosts and services
// print with a golden file.
func TestHostsAndServices(t *testing.T) {
	t.Parallel()
	backend := cyborg.Backend{Host: "h1", Name: "fake", Driver: "fake", State: cyborg.BackendOK, Services: []string{"discover"}}
	host := cyborg.Host{Name: "h1", Silent: true, LastSeen: noon, Devices: 3, AgentVersion: "1", Backends: []cyborg.Backend{
		backend, {Host: "h1", Name: "nics", Driver: "generic", State: cyborg.BackendDisabled, Services: []string{}},
	}, Facts: &cyborg.HostFacts{
		Memory: 129 << 30, Product: cyborg.HostProduct{Vendor: "Supermicro", Name: "AS -4125GS-TNRT", Family: "SMC H13"},
		NUMANodes: []cyborg.NUMANode{
			{ID: 0, CPUs: 18, CPUList: "0-15,32,33", Memory: 64<<30 + 100<<20, Distances: []int{10, 21}},
			{ID: 2, Memory: 512 << 20, Distances: []int{21, 10}},
		},
	}}

	api := newAPI(t)
	api.accelerators[0].NUMANode = new(2)
	api.answers("GET /v1/hosts", http.StatusOK, map[string]any{"host": []cyborg.Host{host}})
	api.answers("GET /v1/hosts/h1", http.StatusOK, host)
	api.answers("GET /v1/hosts/h1/services", http.StatusOK, map[string]any{"service": []cyborg.Backend{backend}})
	api.answers("POST /v1/hosts/h1/discover", http.StatusOK, map[string]any{"host": "h1", "sequence": 4, "generation": 2, "devices": map[string]int{"fake": 3}, "errors": []string{}})
	api.answers("GET /v1/services", http.StatusOK, map[string]any{"service": []cyborg.Service{{Role: "agent", Host: "h1", Instance: "1", LastSeen: noon, StartedAt: noon, Version: "1"}}})

	var all strings.Builder
	for _, line := range []string{"host list", "host show h1", "host services h1", "discover h1", "service list"} {
		got := api.cyborg(strings.Fields(line)...)
		require.Zero(t, got.code, got.err)
		all.WriteString("$ cyborg " + line + "\n" + got.out)
	}

	golden(t, "hosts.table", all.String())
	require.Equal(t, "h1 true\n", api.cyborg("host", "list", "-f", "value", "-c", "name", "-c", "silent").out)
	require.Equal(t, "agent false\n", api.cyborg("service", "list", "-f", "value", "-c", "role", "-c", "alive").out)

	// A column has in every format what its title says, of hosts and of services.
	for _, noun := range []string{"host", "service"} {
		require.Equal(t, "State\nsilent\n", api.cyborg(noun, "list", "-f", "csv", "-c", "state").out, noun)
		require.JSONEq(t, `[{"state":"silent"}]`, api.cyborg(noun, "list", "-f", "json", "-c", "State").out, noun)
		require.NotContains(t, api.cyborg(noun, "list", "-f", "csv").out, "true", noun)
		require.NotContains(t, api.cyborg(noun, "list", "-f", "csv").out, "false", noun)
	}

	// A host that is revoked is told from one that is silent for another reason.
	host.Revoked = noon
	live := cyborg.Host{Name: "h2", LastSeen: noon, Revoked: noon, Backends: []cyborg.Backend{}}
	api.answers("GET /v1/hosts", http.StatusOK, map[string]any{"host": []cyborg.Host{host, live}})
	api.answers("GET /v1/hosts/h1", http.StatusOK, host)
	shown := api.cyborg("host", "list", "--long", "-c", "name", "-c", "state", "-c", "revoked").out
	require.Contains(t, shown, "| h1   | revoked        | 2026-01-31T12:00:00Z |")
	require.Contains(t, shown, "| h2   | revoked, alive | 2026-01-31T12:00:00Z |")
	require.Contains(t, api.cyborg("host", "show", "h1").out, "| revoked       | 2026-01-31T12:00:00Z")
	api.handles("POST /v1/hosts/h1/revoke", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	require.Equal(t, result{0, "", "Host h1 is revoked: within 5 seconds, what certificates it has count nowhere any more.\n"}, api.cyborg("host", "revoke", "h1", "--yes"))
	require.Equal(t, result{}, api.cyborg("host", "revoke", "h1", "--yes", "--quiet"))
	require.Equal(t, "h1 true\nh2 false\n", api.cyborg("host", "list", "-f", "value", "-c", "name", "-c", "silent").out)
}

// TestUsageNamesMissingHosts: a host that did not answer is named on stderr, so
// that a partial census is not taken for a whole one.
func TestUsageNamesMissingHosts(t *testing.T) {
	t.Parallel()
	used := cyborg.HostUsage{Host: "h1", At: noon, Deployables: []cyborg.DeployableUsage{
		{Backend: "fake", Deployable: "fpga0", Accelerator: fpga, Name: "fast", Metrics: map[string]float64{"temperature_celsius": 41.5}, Handles: []cyborg.HandleUsage{
			{Handle: "0000:3b:00.1", Attached: true, InUse: true, By: "qemu (pid 7)"},
		}},
	}}

	api := newAPI(t)
	api.answers("GET /v1/usage", http.StatusOK, cyborg.Census{Partial: true, Hosts: []cyborg.HostUsage{used, {Host: "h2", Error: "silent since noon", Deployables: []cyborg.DeployableUsage{}}}})
	api.answers("GET /v1/accelerators/{uuid}/usage", http.StatusOK, used)

	got := api.cyborg("usage")
	require.Zero(t, got.code)
	require.Equal(t, "No answer from h2: silent since noon\n", got.err)
	golden(t, "usage.table", got.out)

	require.Equal(t, result{0, got.out, ""}, api.cyborg("accelerator", "usage", "fast"))

	require.Contains(t, api.cyborg("usage", "-f", "json").out, `"partial": true`)
	require.Equal(t, fpga.String()+" fast h1\n", api.cyborg("usage", "-f", "value", "-c", "UUID", "-c", "Name", "-c", "Host").out)
}

// TestDevicesAndHistory compares what the commands about devices and histories
// print with a golden file.
func TestDevicesAndHistory(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("dddddddd-0000-4000-8000-000000000001")
	device := apiclient.Device{Device: cyborg.Device{
		UUID: id, Host: "h1", Backend: "fake", Driver: "fake", Identity: "0000:3b:00.0", Type: cyborg.DeviceTypeFPGA, VendorID: "8086", ProductID: "09c4",
		Vendor: "Intel Corporation", Model: "PAC", Presence: cyborg.PresencePresent, CreatedAt: noon, UpdatedAt: noon,
		ControlPath: cyborg.ControlPath{Kind: "PCI", Info: map[string]string{"bus": "3b"}},
	}}

	full := device
	full.Accelerators = park()[:1]

	api := newAPI(t)
	api.answers("GET /v1/devices", http.StatusOK, map[string]any{"device": []apiclient.Device{device}})
	api.answers("GET /v1/devices/{uuid}", http.StatusOK, full)
	api.answers("GET /v1/accelerators/{uuid}/history", http.StatusOK, map[string]any{"event": []cyborg.Event{
		{Cursor: cyborg.Cursor{Transaction: 7, Event: 1}, Subject: cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: fpga.String()}, Axis: cyborg.AxisLifecycle, To: "inactive", Time: noon},
		{Cursor: cyborg.Cursor{Transaction: 8, Event: 2}, Subject: cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: fpga.String()}, Axis: cyborg.AxisLifecycle, From: "inactive", To: "error", Data: cyborg.JSONObject{"reason": "it burns"}, Actor: "alice", Operation: operation, Time: noon},
	}})

	var all strings.Builder
	for _, line := range []string{"device list", "device show dddddddd", "accelerator history fast"} {
		got := api.cyborg(strings.Fields(line)...)
		require.Zero(t, got.code, got.err)
		all.WriteString("$ cyborg " + line + "\n" + got.out)
	}

	golden(t, "devices.table", all.String())
}

// TestCredentials: the token comes from --token-file, CYBORG_TOKEN or
// CYBORG_TOKEN_FILE, in this order. Credentials that cannot be read end the
// command before it asks the API.
func TestCredentials(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("from-file\n"), 0o600))
	two := filepath.Join(t.TempDir(), "two")
	require.NoError(t, os.WriteFile(two, []byte("one two\n"), 0o600))

	for name, c := range map[string]struct {
		env  []string
		args []string
		want string
		code int
	}{
		"none":                          {want: ""},
		"variable":                      {env: []string{"CYBORG_TOKEN", "from-env"}, want: "Bearer from-env"},
		"file in variable":              {env: []string{"CYBORG_TOKEN_FILE", file}, want: "Bearer from-file"},
		"variable before its file":      {env: []string{"CYBORG_TOKEN", "from-env", "CYBORG_TOKEN_FILE", file}, want: "Bearer from-env"},
		"flag before everything":        {env: []string{"CYBORG_TOKEN", "from-env"}, args: []string{"--token-file", file}, want: "Bearer from-file"},
		"file with two tokens":          {args: []string{"--token-file", two}, code: 2},
		"no such file":                  {args: []string{"--token-file", file + "x"}, code: 2},
		"authority that does not exist": {env: []string{"CYBORG_CACERT", file + "x"}, code: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			api := newAPI(t)
			env := append([]string{"CYBORG_URL", api.server.URL}, c.env...)
			got := run(t.Context(), cli.Streams{Env: environment(env...)}, append([]string{"accelerator", "list"}, c.args...)...)

			require.Equal(t, c.code, got.code, got.err)
			require.NotContains(t, got.err, "from-")

			if c.code == 0 {
				require.Equal(t, c.want, api.received()[0].header.Get("Authorization"))
			} else {
				require.Empty(t, api.received())
			}
		})
	}
}

// TestEventsAreLines: each event is one line, and a broken stream is resumed
// after the last event.
func TestEventsAreLines(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{
		"table": "2026-01-31T12:00:00Z accelerator " + fpga.String() + " lifecycle: inactive -> ready by alice\n",
		"json": `{"cursor":"7-1","subject":{"kind":"accelerator","id":"` + fpga.String() +
			`"},"axis":"lifecycle","from":"inactive","to":"ready","actor":"alice","time":"2026-01-31T12:00:00Z"}` + "\n",
	} {
		api := newAPI(t)
		api.handles("GET /v1/events", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			if r.Header.Get("Last-Event-ID") != "7-1" {
				answerText(w, `id: 7-1
event: lifecycle
data: {"cursor":"7-1","subject":{"kind":"accelerator","id":"`+fpga.String()+`"},"axis":"lifecycle","from":"inactive","to":"ready","actor":"alice","time":"2026-01-31T12:00:00Z"}

`)
				return // the client connects again with the ID of the last event
			}
			problem(w, http.StatusForbidden, cyborg.Errorf(cyborg.ErrForbidden, "that is enough"))
		})

		got := api.cyborg("events", "-f", format, "--accelerator", "fast", "--after", "6-9")
		require.Equal(t, 1, got.code)
		require.Equal(t, want, got.out)
		require.Equal(t, "Error: that is enough\n", got.err)

		requests := api.received()
		require.Equal(t, "accelerator="+fpga.String(), requests[len(requests)-1].query)
	}
}

// TestEventsGoOnAfterLostOnes: if the records have lost the last event that was
// printed, a sentence says so, and the lines go on where the API says. A cursor
// of the caller's own that leads nowhere is an error.
func TestEventsGoOnAfterLostOnes(t *testing.T) {
	t.Parallel()
	event := func(cursor, to string) string {
		return "id: " + cursor + "\nevent: lifecycle\ndata: " + `{"cursor":"` + cursor + `","subject":{"kind":"accelerator","id":"` + fpga.String() +
			`"},"axis":"lifecycle","from":"inactive","to":"` + to + `","time":"2026-01-31T12:00:00Z"}` + "\n\n"
	}

	// quiet says that the next stream has moved on, but has no event.
	var quiet atomic.Bool
	api := newAPI(t)
	api.handles("GET /v1/events", func(w http.ResponseWriter, r *http.Request) {
		after := r.Header.Get("Last-Event-ID")
		if quiet.Swap(false) {
			after = "quiet"
		}

		switch after {
		case "":
			w.Header().Set("Content-Type", "text/event-stream")
			answerText(w, event("7-1", "error"))
		case "quiet": // a message without data says where the feed is
			w.Header().Set("Content-Type", "text/event-stream")
			answerText(w, "id: 7-1\n\n")
		case "7-1":
			problem(w, http.StatusGone, cyborg.Errorf(cyborg.ErrGone, "event 7-1 is not in the records").WithAfter(cyborg.Cursor{Transaction: 6, Event: 9}))
		case "6-9":
			w.Header().Set("Content-Type", "text/event-stream")
			answerText(w, event("9-1", "ready"))
		default:
			problem(w, http.StatusForbidden, cyborg.Errorf(cyborg.ErrForbidden, "that is enough"))
		}
	})

	got := api.cyborg("events")
	require.Equal(t, 1, got.code)
	line := "2026-01-31T12:00:00Z accelerator " + fpga.String() + " lifecycle: inactive -> "
	require.Equal(t, line+"error\n"+line+"ready\n", got.out)
	require.Equal(t, "Changes are missing here: event 7-1 is not in the records. Going on after 6-9.\nError: that is enough\n", got.err)

	// A caller's own cursor may lead nowhere, or be kept where a later one is lost.
	got = api.cyborg("events", "--after", "7-1")
	require.Equal(t, 1, got.code)
	require.Equal(t, "Error: event 7-1 is not in the records\n", got.err)

	for _, kept := range []string{"6-8", "6-9"} {
		quiet.Store(true)
		got = api.cyborg("events", "--after", kept)
		require.Equal(t, line+"ready\n", got.out, kept)
		require.Equal(t, "Changes are missing here: event 7-1 is not in the records. Going on after 6-9.\nError: that is enough\n", got.err, kept)
	}
}

// TestEventsEndAtAnAnswerThatIsGoneForGood: a proxy's 410 says nothing about
// events, and a place that is gone again leads nowhere.
func TestEventsEndAtAnAnswerThatIsGoneForGood(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(w http.ResponseWriter){
		"a proxy's": func(w http.ResponseWriter) { w.WriteHeader(http.StatusGone) },
		"the same place": func(w http.ResponseWriter) {
			problem(w, http.StatusGone, cyborg.Errorf(cyborg.ErrGone, "it is gone").WithAfter(cyborg.Cursor{Transaction: 6, Event: 9}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := newAPI(t)
			api.handles("GET /v1/events", func(w http.ResponseWriter, _ *http.Request) { answer(w) })
			require.NotZero(t, api.cyborg("events").code)
		})
	}
}

// answerText writes text as the body of an answer.
func answerText(w http.ResponseWriter, text string) {
	_, _ = w.Write([]byte(text)) // a client that has gone makes the test fail elsewhere
}

// TestLocalCommandsAreServedWithoutClientFlagsInTheirHelp: commands that run a
// server share the exit codes and errors, but flags of the client would mislead
// in their help.
func TestLocalCommandsAreServedWithoutClientFlagsInTheirHelp(t *testing.T) {
	t.Parallel()
	ran := false
	local := func() *cobra.Command {
		migrate := &cobra.Command{Use: "migrate", Short: "Bring the database up", RunE: func(*cobra.Command, []string) error {
			ran = true
			return cyborg.Errorf(cyborg.ErrUnavailable, "no database").WithHint("Start it.")
		}}
		migrate.Flags().String("timeout", "", "its own")
		migrate.Args = cobra.NoArgs
		return migrate
	}

	var out, errOut strings.Builder
	streams := cli.Streams{Out: &out, Err: &errOut, Env: environment()}

	require.Equal(t, 6, cli.Execute(t.Context(), []string{"migrate"}, streams, local()))
	require.True(t, ran)
	require.Equal(t, "Error: no database\nStart it.\n", errOut.String())

	require.Equal(t, 2, cli.Execute(t.Context(), []string{"migrate", "more"}, streams, local()))
	require.Contains(t, errOut.String(), "See `cyborg migrate --help`.")

	require.Zero(t, cli.Execute(t.Context(), []string{"migrate", "--help"}, streams, local()))
	require.Contains(t, out.String(), "its own")
	require.NotContains(t, out.String(), "--token-file")

	out.Reset()
	require.Zero(t, cli.Execute(t.Context(), []string{"--help"}, streams, local()))
	require.Contains(t, out.String(), "Running a server:\n  migrate")
	require.Contains(t, out.String(), "--token-file")
}

func TestVersion(t *testing.T) {
	t.Parallel()
	require.Equal(t, cyborg.Version+"\n", run(t.Context(), cli.Streams{Env: environment()}, "version", "-f", "value", "-c", "version").out)
	require.Equal(t, "cyborg "+cyborg.Version+"\n", run(t.Context(), cli.Streams{Env: environment()}, "--version").out)
}
