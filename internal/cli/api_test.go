package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/internal/cli"
	"github.com/cyborg-project/cyborg/internal/leaktest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestMain runs the tests, or the command line itself where a test starts the
// test binary on a terminal.
func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		code := cli.Execute(ctx, os.Args[1:], cli.System())
		stop()
		os.Exit(code)
	}
	leaktest.Main(m)
}

// golden compares got with a file below testdata, or writes that file anew with
// -update.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)

	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}

	want, err := os.ReadFile(path)
	require.NoError(t, err, "go test -update writes it")
	require.Equal(t, string(want), got)
}

// fakeAPI answers as /v1 does, from memory. Each change becomes an operation
// that goes one stage further with each read, and its event stream sends an
// event after each read.
type fakeAPI struct {
	t      *testing.T
	server *httptest.Server
	mux    *http.ServeMux

	mu           sync.Mutex
	accelerators []apiclient.Accelerator
	stages       []stage // the same for every operation
	admitted     apiclient.Operation
	reads        int
	woken        chan struct{}
	requests     []received
}

// stage answers one read of the operation.
type stage func(w http.ResponseWriter, operation apiclient.Operation)

// received is a request as the API got it.
type received struct {
	method, path, query, body string
	header                    http.Header
}

var (
	fpga      = uuid.MustParse("0a1b2c3d-0000-4000-8000-000000000001")
	cardID    = uuid.MustParse("dddddddd-0000-4000-8000-000000000001") // of the FPGA
	gpu       = uuid.MustParse("0a1b2c3e-0000-4000-8000-000000000002")
	operation = uuid.MustParse("99999999-0000-4000-8000-000000000009")
	requestID = "req-77777777-0000-4000-8000-000000000007"
	instance  = "5f5f5f5f-0000-4000-8000-00000000000f"
	noon      = time.Date(2026, 1, 31, 12, 0, 0, 123456789, time.UTC)
)

// newAPI starts an API with two accelerators, whose operations go through these
// stages. Requests and answers are checked against the API's document.
func newAPI(t *testing.T, stages ...stage) *fakeAPI {
	t.Helper()
	api := &fakeAPI{t: t, mux: http.NewServeMux(), stages: stages, woken: make(chan struct{}, 1000), accelerators: park()}
	api.server = httptest.NewServer(underContract(t, http.HandlerFunc(api.serve)))
	t.Cleanup(api.server.Close)

	api.mux.HandleFunc("GET /v1/accelerators", api.list)
	api.mux.HandleFunc("GET /v1/accelerators/{uuid}", api.show)

	for pattern, kind := range map[string]cyborg.OperationKind{
		"POST /v1/accelerators":                  cyborg.OperationProvision,
		"POST /v1/accelerators/{uuid}/ready":     cyborg.OperationProvision,
		"POST /v1/accelerators/{uuid}/retire":    cyborg.OperationRetire,
		"POST /v1/accelerators/{uuid}/clean":     cyborg.OperationClean,
		"POST /v1/devices/{uuid}/partition":      cyborg.OperationPartition,
		"PUT /v1/accelerators/{uuid}":            cyborg.OperationAttach,
		"DELETE /v1/accelerators/{uuid}":         cyborg.OperationDetach,
		"PATCH /v1/accelerators/{uuid}/program":  cyborg.OperationProgram,
		"POST /v1/operations/{id}/retry":         cyborg.OperationAttach,
		"POST /v1/operations/{id}/cancel":        cyborg.OperationAttach,
		"POST /v1/hosts/{host}/drivers":          cyborg.OperationConfigure,
		"POST /v1/hosts/{host}/rescue":           cyborg.OperationRescue,
		"PUT /v1/hosts/{host}/drivers/{name}":    cyborg.OperationConfigure,
		"DELETE /v1/hosts/{host}/drivers/{name}": cyborg.OperationConfigure,
	} {
		api.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { api.admit(w, r, kind) })
	}

	api.mux.HandleFunc("GET /v1/operations", func(w http.ResponseWriter, _ *http.Request) {
		api.mu.Lock()
		admitted := []apiclient.Operation{}
		if api.admitted.ID != uuid.Nil {
			admitted = append(admitted, api.admitted)
		}
		api.mu.Unlock()
		answer(w, http.StatusOK, map[string]any{"operation": admitted})
	})

	api.mux.HandleFunc("GET /v1/operations/{id}", api.operation)
	api.mux.HandleFunc("GET /v1/operations/{id}/events", api.events)
	return api
}

// serve records the request and passes it to the present routes.
func (f *fakeAPI) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		f.t.Error(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))

	f.mu.Lock()
	f.requests = append(f.requests, received{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, string(body), r.Header})
	mux := f.mux
	f.mu.Unlock()

	mux.ServeHTTP(w, r)
}

// answers replaces what a route answers.
func (f *fakeAPI) answers(pattern string, status int, body any) {
	f.handles(pattern, func(w http.ResponseWriter, _ *http.Request) { answer(w, status, body) })
}

// handles replaces a route. It puts a new mux around the old one, because a
// request of an earlier command may still be under way.
func (f *fakeAPI) handles(pattern string, handler http.HandlerFunc) {
	outer := http.NewServeMux()
	outer.HandleFunc(pattern, handler)
	f.mu.Lock()
	defer f.mu.Unlock()
	outer.Handle("/", f.mux)
	f.mux = outer
}

// received lists the requests so far.
func (f *fakeAPI) received() []received {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.requests)
}

// changes lists the requests so far that were not reads.
func (f *fakeAPI) changes() []received {
	return slices.DeleteFunc(f.received(), func(r received) bool { return r.method == http.MethodGet })
}

// has changes the first accelerator.
func (f *fakeAPI) has(change func(*apiclient.Accelerator)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.accelerators = slices.Clone(f.accelerators)
	change(&f.accelerators[0])
}

// present returns the accelerators.
func (f *fakeAPI) present() []apiclient.Accelerator {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.accelerators
}

// list answers the accelerators that the query chooses.
func (f *fakeAPI) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	chosen := []apiclient.Accelerator{}

	for _, a := range f.present() {
		if !strings.HasPrefix(a.UUID.String(), strings.ToLower(q.Get("uuid_prefix"))) {
			continue
		}
		if q.Has("name") && !slices.Contains(q["name"], a.Name) || q.Has("host") && !slices.Contains(q["host"], a.Host) ||
			q.Has("instance") && !slices.Contains(a.Holders, cyborg.Holder{Kind: cyborg.HolderInstance, ID: q.Get("instance")}) {
			continue
		}
		chosen = append(chosen, a)
	}

	answer(w, http.StatusOK, map[string]any{"accelerator": chosen})
}

// show answers one accelerator, with the ETag of version 3.
func (f *fakeAPI) show(w http.ResponseWriter, r *http.Request) {
	for _, a := range f.present() {
		if a.UUID.String() == r.PathValue("uuid") {
			w.Header().Set("ETag", `"3"`)
			answer(w, http.StatusOK, a)
			return
		}
	}
	problem(w, http.StatusNotFound, cyborg.Errorf(cyborg.ErrNotFound, "there is no accelerator %s", r.PathValue("uuid")))
}

// admit answers a change with a new operation of this kind.
func (f *fakeAPI) admit(w http.ResponseWriter, r *http.Request, kind cyborg.OperationKind) {
	f.mu.Lock()
	subject := cyborg.Subject{Kind: cyborg.SubjectAccelerator, ID: fpga.String()}
	if kind == cyborg.OperationConfigure {
		subject = cyborg.Subject{Kind: cyborg.SubjectHost, ID: r.PathValue("host")}
	}

	f.admitted = apiclient.Operation{Operation: cyborg.Operation{
		ID: operation, Kind: kind, State: cyborg.OperationAdmitted, Host: "h1", Subjects: []cyborg.Subject{subject},
		Actor: cyborg.Actor{Name: "alice"}, CreatedAt: noon, Steps: []cyborg.Step{}, Input: cyborg.JSONObject{},
	}}
	f.admitted.WorkflowID = f.admitted.Operation.WorkflowID()
	admitted := f.admitted
	f.mu.Unlock()

	w.Header().Set("Location", "/v1/operations/"+operation.String())
	answer(w, http.StatusAccepted, admitted)
}

// operation answers a read of the operation by its next stage; the last stage
// stays.
func (f *fakeAPI) operation(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("id") != operation.String() {
		problem(w, http.StatusNotFound, cyborg.Errorf(cyborg.ErrNotFound, "there is no operation %s", r.PathValue("id")))
		return
	}

	f.mu.Lock()
	now, admitted := f.stages[min(f.reads, len(f.stages)-1)], f.admitted
	f.reads++
	f.mu.Unlock()

	f.woken <- struct{}{}
	now(w, admitted)
}

// events streams one event after each read of the operation.
func (f *fakeAPI) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")

	for {
		_ = http.NewResponseController(w).Flush() // if the client has gone, the context ends
		select {
		case <-f.woken:
			_, _ = io.WriteString(w, "id: 1-1\nevent: step\ndata: {}\n\n")
		case <-r.Context().Done():
			return
		}
	}
}

// at is a stage in which the operation is in this state, with these steps.
func at(state cyborg.OperationState, steps ...cyborg.Step) stage {
	return then(func(operation *apiclient.Operation) {
		operation.State, operation.Steps = state, append([]cyborg.Step{}, steps...)
	})
}

// then is a stage that changes the operation before it is answered, and sets
// its times as its state requires.
func then(change func(*apiclient.Operation)) stage {
	return func(w http.ResponseWriter, operation apiclient.Operation) {
		change(&operation)
		if operation.State != cyborg.OperationAdmitted {
			operation.StartedAt = noon
		}
		if operation.State.Ended() {
			operation.EndedAt = noon.Add(1500 * time.Millisecond)
		}

		answer(w, http.StatusOK, operation)
	}
}

// failing is a stage in which the operation has ended with an error.
func failing(state cyborg.OperationState, err *cyborg.Error) stage {
	return then(func(operation *apiclient.Operation) { operation.State, operation.Error = state, err })
}

// away is a stage in which the API is unavailable.
func away(w http.ResponseWriter, _ apiclient.Operation) {
	problem(w, http.StatusServiceUnavailable, cyborg.Errorf(cyborg.ErrUnavailable, "the API stops"))
}

// broken is a stage in which the connection breaks.
func broken(http.ResponseWriter, apiclient.Operation) { panic(http.ErrAbortHandler) }

// step is a step of an operation, at noon.
func step(name string, state cyborg.StepState, note string) cyborg.Step {
	return cyborg.Step{Name: name, State: state, At: noon, Note: note}
}

// answer sends the body as JSON.
func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that has gone makes the test fail elsewhere
}

// problem sends the error as an RFC 9457 problem, as the API does.
func problem(w http.ResponseWriter, status int, err *cyborg.Error) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)

	body := map[string]any{"type": "urn:cyborg:problem:" + string(err.Kind), "title": "Problem", "status": status, "detail": err.Message, "kind": err.Kind, "hint": err.Hint, "request_id": requestID}
	if err.Operation != uuid.Nil {
		body["operation_id"] = err.Operation
	}
	if err.After != (cyborg.Cursor{}) {
		body["after"] = err.After
	}

	_ = json.NewEncoder(w).Encode(body)
}

// park returns a ready FPGA with one of two handles attached, and an inactive,
// protected GPU.
func park() []apiclient.Accelerator {
	holder := cyborg.Holder{Kind: cyborg.HolderInstance, ID: instance}

	return []apiclient.Accelerator{
		{
			Accelerator: cyborg.Accelerator{
				UUID: fpga, Name: "fast", ProviderName: "h1_fpga0", DeviceUUID: cardID,
				ProviderUUID: uuid.MustParse("eeeeeeee-0000-4000-8000-000000000001"),
				Host:         "h1", Backend: "fake", Driver: "fake", DeviceType: cyborg.DeviceTypeFPGA,
				Specs: cyborg.Specs{
					Num: 2, DeviceType: cyborg.DeviceTypeFPGA, Type: "crypto", VendorID: "8086", ProductID: "09c4",
					Capability: cyborg.JSONObject{"memory": map[string]any{"gib": 16}, "sriov": true},
				},
				Attributes: []cyborg.Attribute{{Key: "rc", Value: "FPGA"}},
				Lifecycle:  cyborg.LifecycleReady, Admin: cyborg.AdministrationEnabled, Presence: cyborg.PresencePresent, BitstreamID: "afu-1",
				Handles: []cyborg.AttachHandle{
					{
						UUID: uuid.MustParse("cccccccc-0000-4000-8000-000000000001"), Kind: cyborg.HandlePCI, Identity: "0000:3b:00.1",
						Info: map[string]string{"bus": "3b"}, Presence: cyborg.PresencePresent, Holder: &holder, AttachedAt: noon,
						Health: cyborg.HealthLostAtBoot,
					},
					{
						UUID: uuid.MustParse("cccccccc-0000-4000-8000-000000000002"), Kind: cyborg.HandlePCI, Identity: "0000:3b:00.2",
						Info: map[string]string{"bus": "3b"}, Presence: cyborg.PresencePresent,
					},
				},
				CreatedAt: noon, UpdatedAt: noon,
			},
			Status: cyborg.StatusReady, Holders: []cyborg.Holder{holder},
		},
		{
			Accelerator: cyborg.Accelerator{
				UUID: gpu, Name: "h2_gpu0", ProviderName: "h2_gpu0", Host: "h2", Backend: "fake", Driver: "fake", DeviceType: cyborg.DeviceTypeGPU,
				Specs:      cyborg.Specs{Num: 1, DeviceType: cyborg.DeviceTypeGPU, Capability: cyborg.JSONObject{}},
				Attributes: []cyborg.Attribute{}, Handles: []cyborg.AttachHandle{},
				Lifecycle: cyborg.LifecycleInactive, Admin: cyborg.AdministrationEnabled, Presence: cyborg.PresencePresent, Protected: "the console is on it", CreatedAt: noon, UpdatedAt: noon,
			},
			Status: cyborg.StatusInactive, Holders: []cyborg.Holder{},
		},
	}
}

// result is the outcome of a command line: its exit code and what it wrote.
type result struct {
	code     int
	out, err string
}

// cyborg runs one command line against the API.
func (f *fakeAPI) cyborg(args ...string) result {
	f.t.Helper()
	return run(f.t.Context(), cli.Streams{Env: environment("CYBORG_URL", f.server.URL)}, args...)
}

// environment looks up variables in pairs of names and values; there are no
// others.
func environment(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

// run runs a command line and returns its outcome.
func run(ctx context.Context, streams cli.Streams, args ...string) result {
	var out, err bytes.Buffer
	streams.Out, streams.Err = &out, &err
	code := cli.Execute(ctx, args, streams)
	return result{code, out.String(), err.String()}
}
