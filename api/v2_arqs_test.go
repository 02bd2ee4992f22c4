package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	"github.com/cyborg-project/cyborg/db"
	"github.com/cyborg-project/cyborg/internal/agentapi"
	"github.com/cyborg-project/cyborg/internal/openstack/openstacktest"
)

const requestsPath = "/v2/accelerator_requests"

// arqBody is an accelerator request as the API shows it.
type arqBody struct {
	UUID     uuid.UUID
	State    cyborg.ARQState
	Host     *string           `json:"hostname"`
	Provider *uuid.UUID        `json:"device_rp_uuid"`
	Instance *uuid.UUID        `json:"instance_uuid"`
	Project  *string           `json:"project_id"`
	Kind     string            `json:"attach_handle_type"`
	Handle   *uuid.UUID        `json:"attach_handle_uuid"`
	Info     map[string]string `json:"attach_handle_info"`
	Reason   string            `json:"status_reason"`
}

// arqs expects the status and decodes the list of accelerator requests.
func (r *reply) arqs(status int) []arqBody {
	r.t.Helper()
	return as[map[string][]arqBody](r.expect(status))["arqs"]
}

// holders lists who holds the accelerator now.
func (h *harness) holders(accelerator cyborg.Accelerator) []cyborg.Holder {
	h.t.Helper()
	now := h.accelerator(accelerator.UUID)
	return now.Holders()
}

// requests creates a device profile that asks for so many FPGAs, unless there
// is one of that name, and then the accelerator requests that it asks for.
func (h *harness) requests(profile string, fpgas int) []arqBody {
	h.t.Helper()
	_, err := h.store.CreateDeviceProfile(h.t.Context(), cyborg.DeviceProfile{
		Name: profile, Groups: []map[string]string{{"resources:FPGA": fmt.Sprint(fpgas)}},
	}, cyborg.Actor{})
	if cyborg.ErrorKindOf(err) != cyborg.ErrNameTaken {
		require.NoError(h.t, err)
	}

	return h.do("POST", requestsPath, map[string]any{"device_profile_name": profile}).arqs(http.StatusCreated)
}

// toBind is the body of a bind as Nova sends it.
func toBind(host string, provider, instance uuid.UUID, arqs ...arqBody) map[string]any {
	body := map[string]any{}
	for _, arq := range arqs {
		body[arq.UUID.String()] = []map[string]string{
			{"path": "/hostname", "op": "add", "value": host},
			{"path": "/device_rp_uuid", "op": "add", "value": provider.String()},
			{"path": "/instance_uuid", "op": "add", "value": instance.String()},
		}
	}
	return body
}

// ofInstance is the path of an instance's accelerator requests.
func ofInstance(instance uuid.UUID) string { return requestsPath + "?instance=" + instance.String() }

func TestARQGoldens(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("first")
	h.do("GET", requestsPath, nil).golden(http.StatusOK, `{"arqs":[]}`)

	made := h.requests("one", 1)
	const initial = `{"uuid":"UUID","state":"Initial","device_profile_name":"one","device_profile_group_id":0,"hostname":null,` +
		`"device_rp_uuid":null,"instance_uuid":null,"project_id":null,"attach_handle_type":"","attach_handle_uuid":null,` +
		`"attach_handle_info":{},"links":[{"href":"http://HOST/accelerator/v2/accelerator_requests/UUID","rel":"self"}],` +
		`"created_at":"TIME","updated_at":null}`

	one := requestsPath + "/" + made[0].UUID.String()
	h.do("GET", one, nil).golden(http.StatusOK, initial)
	h.do("GET", requestsPath, nil).golden(http.StatusOK, `{"arqs":[`+initial+`]}`)

	instance := uuid.New()
	require.Empty(t, h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, instance, made...)).expect(http.StatusAccepted).body)
	h.do("GET", one, nil).golden(http.StatusOK, `{"uuid":"UUID","state":"Bound","device_profile_name":"one","device_profile_group_id":0,`+
		`"hostname":"h1","device_rp_uuid":"UUID","instance_uuid":"UUID","project_id":null,"attach_handle_type":"TEST_PCI",`+
		`"attach_handle_uuid":"UUID","attach_handle_info":{"bus":"01","device":"00","domain":"0000","function":"0"},`+
		`"links":[{"href":"http://HOST/accelerator/v2/accelerator_requests/UUID","rel":"self"}],"created_at":"TIME","updated_at":"TIME"}`)

	h.do("GET", ofInstance(instance)+"&bind_state=resolved", nil).arqs(http.StatusOK)
	require.Len(t, h.do("GET", requestsPath+"?bind_state=", nil).arqs(http.StatusOK), 1, "an empty argument is none")

	for range 2 {
		require.Empty(t, h.do("DELETE", ofInstance(instance), nil).expect(http.StatusNoContent).body)
	}

	h.do("GET", one, nil).golden(http.StatusNotFound,
		`{"error_message":"{\"faultcode\": \"Client\", \"faultstring\": \"ExtArq not found with uuid=UUID\", \"debuginfo\": null}"}`)
	require.Empty(t, h.holders(accelerator))
}

// L32: A mistake of the client is answered with a status of 4xx and changes
// nothing.
func TestL32InvalidARQs(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("first")
	arqs := h.requests("two", 2)
	a, b := arqs[0].UUID.String(), arqs[1].UUID.String()

	bind := func(change func(body map[string]any)) map[string]any {
		text, err := json.Marshal(toBind("h1", accelerator.ProviderUUID, uuid.New(), arqs...))
		require.NoError(t, err)

		var body map[string]any
		require.NoError(t, json.Unmarshal(text, &body))
		change(body)
		return body
	}

	for name, test := range map[string]struct {
		method, path string
		body         any
		status       int
		says         string
	}{
		"create nothing":          {"POST", "", `{}`, 400, "device_profile_name is null"},
		"create null":             {"POST", "", `{"device_profile_name": null}`, 400, "null"},
		"create a list":           {"POST", "", `[]`, 400, "a list, not an object"},
		"create of no profile":    {"POST", "", `{"device_profile_name": "nosuch"}`, 404, "nosuch"},
		"create of the empty one": {"POST", "", `{"device_profile_name": ""}`, 404, ""},
		"bind nothing":            {"PATCH", "", `{}`, 400, "not an object with changes"},
		"bind a list":             {"PATCH", "", `[]`, 400, "a list"},
		"bind no UUID":            {"PATCH", "", bind(func(m map[string]any) { m["x"] = m[a] }), 400, "Expected a uuid but received x"},
		"no changes":              {"PATCH", "", bind(func(m map[string]any) { m[b] = []any{} }), 400, "not a list of changes"},
		"a change is a text":      {"PATCH", "", bind(func(m map[string]any) { m[b] = []any{"x"} }), 400, "not an object"},
		"unknown path":            {"PATCH", "", bind(func(m map[string]any) { m[b].([]any)[0].(map[string]any)["path"] = "/x" }), 400, "Invalid path"},
		"twice":                   {"PATCH", "", bind(func(m map[string]any) { m[b] = append(m[b].([]any), m[b].([]any)[0]) }), 400, "given twice"},
		"no op":                   {"PATCH", "", bind(func(m map[string]any) { delete(m[b].([]any)[0].(map[string]any), "op") }), 400, "op is null"},
		"two ops":                 {"PATCH", "", bind(func(m map[string]any) { m[b].([]any)[1].(map[string]any)["op"] = "remove" }), 400, "either add or remove"},
		"no value":                {"PATCH", "", bind(func(m map[string]any) { delete(m[b].([]any)[0].(map[string]any), "value") }), 400, "not a text"},
		"absent field":            {"PATCH", "", bind(func(m map[string]any) { m[b] = m[b].([]any)[1:] }), 400, "Fields absent in patch: [/hostname]"},
		"provider is no UUID":     {"PATCH", "", bind(func(m map[string]any) { m[b].([]any)[1].(map[string]any)["value"] = "x" }), 400, "/device_rp_uuid"},
		"instance is no UUID":     {"PATCH", "", bind(func(m map[string]any) { m[b].([]any)[2].(map[string]any)["value"] = "x" }), 400, "/instance_uuid"},
		"two hosts":               {"PATCH", "", bind(func(m map[string]any) { m[b].([]any)[0].(map[string]any)["value"] = "h2" }), 400, "one instance on one host"},
		"both at once":            {"PATCH", "", bind(func(m map[string]any) { m[b] = []any{map[string]any{"path": "/hostname", "op": "remove"}} }), 400, "cannot do both"},
		"another than the path":   {"PATCH", "/" + a, bind(func(map[string]any) {}), 400, "the path names"},
		"project below 2.1": {"PATCH", "", bind(func(m map[string]any) {
			for _, id := range []string{a, b} {
				m[id] = append(m[id].([]any), map[string]any{"path": "/project_id", "op": "add", "value": "p"})
			}
		}), 406, "2.1"},
		"unknown request":  {"PATCH", "", bind(func(m map[string]any) { m[uuid.NewString()] = m[a] }), 404, "no accelerator request"},
		"unknown provider": {"PATCH", "", toBind("h1", uuid.New(), uuid.New(), arqs...), 404, "resource provider"},
		"another host":     {"PATCH", "", toBind("h2", accelerator.ProviderUUID, uuid.New(), arqs...), 400, `on host "h1", not on "h2"`},
		"unbind unknown":   {"PATCH", "", `{"` + uuid.NewString() + `": [{"path": "/hostname", "op": "remove"}]}`, 404, "no accelerator request"},
		"bind_state":       {"GET", "?bind_state=foo", nil, 400, "can only be resolved"},
		"instance":         {"GET", "?instance=foo", nil, 400, "Expected a uuid but received foo"},
		"state":            {"GET", "?state=foo", nil, 400, "the states are"},
		"argument":         {"GET", "?foo=bar", nil, 400, "Unknown argument"},
		"show no UUID":     {"GET", "/foo", nil, 400, "Expected a uuid but received foo"},
		"show none":        {"GET", "/" + uuid.NewString(), nil, 404, "ExtArq not found"},
		"delete what":      {"DELETE", "", nil, 400, "Missing argument"},
		"delete both":      {"DELETE", "?arqs=" + uuid.NewString() + "&instance=" + uuid.NewString(), nil, 400, "exclude each other"},
		"delete no UUID":   {"DELETE", "?arqs=foo", nil, 404, "ExtArq not found with uuid=foo"},
		"delete instance":  {"DELETE", "?instance=foo", nil, 400, "Expected a uuid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := *h
			h.t = t

			message := h.do(test.method, requestsPath+test.path, test.body).fault(test.status)
			require.Contains(t, message, test.says)
		})
	}

	t.Cleanup(func() { // after the parallel ones
		found, err := h.store.ARQs(context.Background(), db.ARQFilter{States: []cyborg.ARQState{cyborg.ARQInitial}}, db.Listing{})
		require.NoError(t, err)
		require.Len(t, found, len(arqs), "nothing changed")
	})
}

// Only services may bind and unbind requests, and delete bound ones. An
// administrator's static token counts as that of a service.
func TestARQGates(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens).as(adminToken)
	accelerator := h.ready("first")
	instance := uuid.New()
	member := h.as(memberToken)
	arqs := member.requests("one", 1)

	const says = "requires a service token"
	body := toBind("h1", accelerator.ProviderUUID, instance, arqs...)
	require.Contains(t, member.do("PATCH", requestsPath, body).fault(http.StatusForbidden), says)
	member.do("PATCH", requestsPath, "{}").fault(http.StatusBadRequest) // the body is checked before the right

	for op, own := range map[string]string{"add": "p", "remove": ""} { // only administrators may say whose a request is
		with := toBind("h1", accelerator.ProviderUUID, instance, arqs...)
		changes := with[arqs[0].UUID.String()].([]map[string]string)
		for i := range changes {
			changes[i]["op"] = op
		}
		with[arqs[0].UUID.String()] = append(changes, map[string]string{"path": "/project_id", "op": op, "value": own})

		member.do("PATCH", requestsPath, with).fault(http.StatusNotAcceptable)
		require.Contains(t, member.do("PATCH", requestsPath, with, versionHeader, "accelerator 2.1").fault(http.StatusForbidden), "only administrators")
	}

	h.do("PATCH", requestsPath, body).expect(http.StatusAccepted)
	require.Contains(t, member.do("DELETE", ofInstance(instance), nil).fault(http.StatusForbidden), says)
	message := member.do("DELETE", requestsPath+"?arqs="+arqs[0].UUID.String(), nil).fault(http.StatusForbidden)
	require.Contains(t, message, "is bound to instance "+instance.String())
	require.Contains(t, message, says)

	own := member.requests("one", 1)
	member.do("DELETE", requestsPath+"/"+own[0].UUID.String(), nil).expect(http.StatusNoContent)
	h.do("DELETE", requestsPath+"?arqs="+arqs[0].UUID.String(), nil).expect(http.StatusNoContent)
}

// L37: Those of the named requests that exist are deleted, and the answer names
// those that do not.
func TestL37DeleteARQs(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.ready("first")
	arqs := h.requests("two", 2)
	absent := uuid.New()
	query := fmt.Sprintf("?arqs=%s,%s,%s", arqs[0].UUID, absent, arqs[1].UUID)

	require.Contains(t, h.do("DELETE", requestsPath+query, nil).fault(http.StatusNotFound), absent.String())
	require.Empty(t, h.do("GET", requestsPath, nil).arqs(http.StatusOK))
}

// L33: The list of requests can be filtered, sorted and read in parts.
func TestL33ARQListing(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("first")

	var bound []arqBody
	instances := []uuid.UUID{uuid.New(), uuid.New()}

	for _, instance := range instances {
		arqs := h.requests("one", 1)
		h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, instance, arqs...)).expect(http.StatusAccepted)
		bound = append(bound, arqs...)
	}

	free := h.requests("two", 2)
	all := append(append([]arqBody{}, bound...), free...)

	for query, want := range map[string][]arqBody{
		"?instance=" + instances[1].String():                               bound[1:],
		"?instance=" + instances[1].String() + "," + instances[0].String(): bound,
		"?instance=" + uuid.NewString():                                    nil,
		"?hostname=h1":                                                     bound,
		"?hostname=h2,h1":                                                  bound,
		"?state=Bound":                                                     bound,
		"?state=Initial,BindFailed":                                        free,
		"?device_profile_name=two":                                         free,
		"?device_profile_name=two&state=Bound":                             nil,
		"?project_id=nosuch":                                               nil,
		"?limit=3":                                                         all[:3],
		"?limit=2&marker=" + bound[0].UUID.String():                        all[1:3],
		"?sort_key=created_at&sort_dir=desc&limit=1":                       all[3:],
	} {
		found := h.do("GET", requestsPath+query, nil).arqs(http.StatusOK)
		require.Len(t, found, len(want), query)
		for i := range want {
			require.Equal(t, want[i].UUID, found[i].UUID, query)
		}
	}
}

// L34: A request whose device has gone stays in the list and does not make it
// unreadable.
func TestL34ListsIncludeLostRequests(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("first")
	lost, other := h.requests("one", 1), h.requests("one", 1)
	h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, uuid.New(), lost...)).expect(http.StatusAccepted)

	gone := report("h1", 2, 2)
	gone.Content.Backends[0].Devices = gone.Content.Backends[0].Devices[1:]
	gone.Digest = gone.Content.Digest()

	_, err := h.store.MergeReports(t.Context(), []agentapi.Report{gone})
	require.NoError(t, err)
	require.Equal(t, cyborg.PresenceMissing, h.accelerator(accelerator.UUID).Presence)

	found := h.do("GET", requestsPath, nil).arqs(http.StatusOK)
	require.Len(t, found, 2)
	require.Equal(t, cyborg.ARQBound, found[0].State)
	require.Equal(t, other[0].UUID, found[1].UUID)

	// A refused profile leaves the list of profiles readable, too.
	refused := `[{"name": "x", "uuid": "nonsense", "groups": [{"resources:FPGA": "1"}]}]`
	require.Contains(t, h.do("POST", "/v2/device_profiles", refused).fault(http.StatusBadRequest), "Expected a uuid")
	require.Equal(t, []string{"one"}, h.profiles(""))
}

// L31: An error message says in a sentence or two what went wrong, and nothing
// of where in the program.
func TestL31ErrorMessagesAreSentences(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("first")
	arq := h.requests("one", 1)[0]
	h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, uuid.New(), arq)).expect(http.StatusAccepted)

	absent := arqBody{UUID: uuid.New()}
	for want, said := range map[string]string{
		`there is a device profile named "one" already. Choose another name, or delete that one first.`: h.do("POST", "/v2/device_profiles",
			`[{"name": "one", "groups": [{"resources:FPGA": "1"}]}]`).fault(http.StatusConflict),
		"there is no accelerator request " + absent.UUID.String(): h.do("PATCH", requestsPath,
			toBind("h1", accelerator.ProviderUUID, uuid.New(), absent)).fault(http.StatusNotFound),
		"accelerator request " + arq.UUID.String() + " is Bound and cannot be bound. Unbind it first, or make a new one.": h.do("PATCH", requestsPath,
			toBind("h1", accelerator.ProviderUUID, uuid.New(), arq)).fault(http.StatusConflict),
	} {
		require.Equal(t, want, said)
	}
}

// A bind that cannot succeed says so in its answer, and its requests become
// BindFailed. Otherwise Nova would start the instance without its device.
func TestBindFailsAtOnce(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("first")
	instance := uuid.New()
	arqs := h.requests("three", 3)

	refused := h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, instance, arqs...))
	require.Contains(t, refused.fault(http.StatusNotFound), "no free attach handle")
	operation := as[cyborg.Operation](h.do("GET", "/v1/operations/"+refused.header.Get("Cyborg-Operation"), nil).expect(http.StatusOK))
	require.Equal(t, cyborg.OperationFailed, operation.State, "it is recorded, and the answer says where")

	failed := h.do("GET", requestsPath, nil).arqs(http.StatusOK)
	require.Len(t, failed, 3)

	for _, arq := range failed {
		require.Equal(t, cyborg.ARQBindFailed, arq.State)
		require.Contains(t, arq.Reason, "no free attach handle")
		require.Nil(t, arq.Handle)
	}

	require.Empty(t, h.do("GET", ofInstance(instance), nil).arqs(http.StatusOK), "Nova would count them as resolved")
	require.Empty(t, h.holders(accelerator))

	h.engine.set(func(e *engine) { e.fail = cyborg.Errorf(cyborg.ErrHardware, "it smoked") })
	arqs = h.requests("one", 1)
	require.Contains(t, h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, uuid.New(), arqs...)).fault(http.StatusBadGateway), "it smoked")
	require.Empty(t, h.holders(accelerator))
}

// When Nova deletes an instance, Placement gives away what the instance held. A
// bind then takes over the handle, and the requests of the deleted instance go.
// Instances that Nova still has lose nothing.
func TestBindTakesOverFromDeletedInstance(t *testing.T) {
	t.Parallel()
	here, another, gone := uuid.New(), uuid.New(), uuid.New()
	h := setupWith(t, func(deps *api.Deps) {
		deps.Instances = instances{here: {project: "tenant"}, another: {project: "tenant"}}
	})

	accelerator := h.ready("first")

	bind := func(instance uuid.UUID) *reply {
		return h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, instance, h.requests("one", 1)...))
	}

	bind(here).expect(http.StatusAccepted)
	bind(gone).expect(http.StatusAccepted)
	require.Len(t, h.holders(accelerator), 2, "it has no more")

	bind(another).expect(http.StatusAccepted)
	require.Empty(t, h.do("GET", ofInstance(gone), nil).arqs(http.StatusOK))

	require.Contains(t, bind(uuid.New()).fault(http.StatusNotFound), "no free attach handle", "at once: nothing would change")
	require.ElementsMatch(t, []cyborg.Holder{
		{Kind: cyborg.HolderInstance, ID: here.String()}, {Kind: cyborg.HolderInstance, ID: another.String()},
	}, h.holders(accelerator))
}

// What a deleted instance has left of accelerators that go to one holder is taken
// over, too. What an instance has that Nova still has is refused.
func TestBindTakesOverWhatGoesToOneHolder(t *testing.T) {
	t.Parallel()
	here, gone := uuid.New(), uuid.New()
	h := setupWith(t, func(deps *api.Deps) { deps.Instances = instances{here: {project: "tenant"}} })
	first := h.ready("first")
	second := h.host("h1", 2)["fpga-1"]
	h.do("POST", path(second), map[string]any{"name": "second"}).expect(http.StatusCreated)

	shared := report("h1", 2, 2)
	for i := range 2 {
		shared.Content.Backends[0].Devices[i].Deployables[0].SameHolder = "iommu/17"
	}
	shared.Digest = shared.Content.Digest()
	_, err := h.store.MergeReports(t.Context(), []agentapi.Report{shared})
	require.NoError(t, err)

	bind := func(instance uuid.UUID, to cyborg.Accelerator) *reply {
		return h.do("PATCH", requestsPath, toBind("h1", to.ProviderUUID, instance, h.requests("one", 1)...))
	}
	bind(gone, first).expect(http.StatusAccepted)
	bind(here, second).expect(http.StatusAccepted)
	require.Empty(t, h.do("GET", ofInstance(gone), nil).arqs(http.StatusOK))

	require.Contains(t, bind(uuid.New(), first).fault(http.StatusConflict), "they go to one holder")
	require.Equal(t, []cyborg.Holder{{Kind: cyborg.HolderInstance, ID: here.String()}}, h.holders(second))
	require.Empty(t, h.holders(first))
}

// A bind also takes over from an instance that Nova could put on no host, and
// whose requests it could not delete because it did not reach us.
func TestBindTakesOverFromUnschedulableInstance(t *testing.T) {
	t.Parallel()
	here, stranded, another := uuid.New(), uuid.New(), uuid.New()
	h := setupWith(t, func(deps *api.Deps) {
		deps.Instances = instances{here: {project: "tenant"}, stranded: {project: "tenant", stranded: true}, another: {project: "tenant"}}
	})

	accelerator := h.ready("first")
	bind := func(instance uuid.UUID) *reply {
		return h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, instance, h.requests("one", 1)...))
	}

	bind(here).expect(http.StatusAccepted)
	bind(stranded).expect(http.StatusAccepted)
	bind(another).expect(http.StatusAccepted)

	require.Empty(t, h.do("GET", ofInstance(stranded), nil).arqs(http.StatusOK))
	require.Len(t, h.do("GET", ofInstance(here), nil).arqs(http.StatusOK), 1)
}

// When an instance is unshelved again or built on another host, the requests of
// the first attempt are still there if Nova did not reach us to delete them. A
// new bind replaces them while Nova has the instance on no host. Nothing is
// taken from an instance that is on a host.
func TestRepeatedBind(t *testing.T) {
	t.Parallel()
	scheduled, running, unknown := uuid.New(), uuid.New(), uuid.New()
	h := setupWith(t, func(deps *api.Deps) {
		deps.Instances = instances{scheduled: {project: "tenant", scheduled: true}, running: {project: "tenant"}}
	})

	accelerator := h.ready("first")
	bind := func(instance uuid.UUID) (cyborg.Holder, *reply) {
		return cyborg.Holder{Kind: cyborg.HolderInstance, ID: instance.String()},
			h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, instance, h.requests("one", 1)...))
	}

	_, first := bind(scheduled)
	first.expect(http.StatusAccepted)
	before := h.do("GET", ofInstance(scheduled), nil).arqs(http.StatusOK)

	holder, again := bind(scheduled)
	again.expect(http.StatusAccepted)

	after := h.do("GET", ofInstance(scheduled), nil).arqs(http.StatusOK)
	require.Len(t, after, 1)
	require.Equal(t, cyborg.ARQBound, after[0].State)
	require.NotEqual(t, before[0].UUID, after[0].UUID)
	require.Equal(t, []cyborg.Holder{holder}, h.holders(accelerator))

	h.do("DELETE", ofInstance(scheduled), nil).expect(http.StatusNoContent)

	for _, instance := range []uuid.UUID{running, unknown} {
		holder, first := bind(instance)
		first.expect(http.StatusAccepted)
		_, again := bind(instance)
		require.Contains(t, again.fault(http.StatusBadRequest), "already has accelerator requests")
		require.Equal(t, []cyborg.Holder{holder}, h.holders(accelerator))
		h.do("DELETE", ofInstance(instance), nil).expect(http.StatusNoContent)
	}
}

// A repeated bind that comes while the first one still runs cancels the first
// and waits for its end.
func TestRepeatedBindDuringABind(t *testing.T) {
	t.Parallel()
	instance := uuid.New()
	h := setupOf(t, defaults(),
		func(deps *api.Deps) { deps.Instances = instances{instance: {project: "tenant", scheduled: true}} },
		func(c *api.Config) { c.V2.BindWait = poll })
	accelerator := h.ready("first")

	release := h.engine.block()
	defer release()
	h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, instance, h.requests("one", 1)...)).expect(http.StatusAccepted)
	again := h.requests("one", 1)
	h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, instance, again...)).expect(http.StatusAccepted)

	now := h.do("GET", ofInstance(instance), nil).arqs(http.StatusOK)
	require.Len(t, now, 1)
	require.Equal(t, again[0].UUID, now[0].UUID)
	require.Eventually(t, func() bool { return len(h.holders(accelerator)) == 1 }, waitLimit, poll)
}

// A bind waits while another operation works on its accelerator. Nova sees no
// conflict.
func TestBindWaitsForTheClaim(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("first")
	arqs := h.requests("one", 1)

	release := h.engine.block()
	defer release()
	h.do("PATCH", path(accelerator, "/program"), map[string]any{"image": map[string]any{"source": "a.img"}}, "Prefer", "respond-async").expect(http.StatusAccepted)

	answered := make(chan *reply, 1)
	var waits sync.WaitGroup
	waits.Go(func() {
		answered <- h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, uuid.New(), arqs...))
	})

	const provisionAndProgram = 2
	require.Eventually(t, func() bool { return h.metric("cyborg_operation_answers_total") > provisionAndProgram+1 }, waitLimit, poll,
		"it is tried again and again")
	require.Empty(t, answered)

	release()
	waits.Wait()
	(<-answered).expect(http.StatusAccepted)
	require.Equal(t, cyborg.ARQBound, h.do("GET", requestsPath, nil).arqs(http.StatusOK)[0].State)
}

// After a start of the database, a bind waits for the first heartbeat of its host,
// because the database may have lost who has the accelerator. An attach that begins
// before says so.
func TestBindWaitsForItsHost(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("first")
	last := report("h1", 2, 2)
	_, err := h.store.MergeReports(t.Context(), []agentapi.Report{last})
	require.NoError(t, err)
	arqs := h.requests("one", 1)

	// To the records, another start of PostgreSQL is another time of its start.
	sql, err := pgx.Connect(t.Context(), h.url)
	require.NoError(t, err)
	defer sql.Close(t.Context())
	_, err = sql.Exec(t.Context(), "UPDATE feed_epochs SET server_started = server_started - interval '1 day'")
	require.NoError(t, err)

	problem := h.do("PUT", path(accelerator), nil).problem(cyborg.ErrUnavailable)
	require.Contains(t, problem.Detail, "host h1 has not said what it has since the database was started, restored or failed over")
	require.Contains(t, problem.Hint, "next heartbeat")

	answered := make(chan *reply, 1)
	var waits sync.WaitGroup
	waits.Go(func() {
		answered <- h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, uuid.New(), arqs...))
	})

	const provisionAndAttach = 2
	require.Eventually(t, func() bool { return h.metric("cyborg_operation_answers_total") > provisionAndAttach+1 }, waitLimit, poll,
		"it is tried again and again")
	require.Empty(t, answered)

	_, err = h.store.RecordHeartbeats(t.Context(), []agentapi.Heartbeat{{
		Host: last.Host, BootID: last.BootID, AgentVersion: last.AgentVersion, Digest: last.Digest, Present: last.Digest,
	}})
	require.NoError(t, err)
	waits.Wait()
	(<-answered).expect(http.StatusAccepted)
	require.Equal(t, cyborg.ARQBound, h.do("GET", requestsPath, nil).arqs(http.StatusOK)[0].State)
}

// A server that stops answers waiting binds at once, so that they do not hold
// it up.
func TestServerStopEndsWaitingBinds(t *testing.T) {
	t.Parallel()
	h := setup(t, func(c *api.Config) { c.V2.BindTimeout = time.Hour })
	accelerator := h.ready("first")
	arqs := h.requests("one", 1)

	release := h.engine.block()
	defer release()
	h.do("PATCH", path(accelerator, "/program"), map[string]any{"image": map[string]any{"source": "a.img"}}, "Prefer", "respond-async").expect(http.StatusAccepted)

	before := h.metric("cyborg_operation_answers_total")
	address, stop := served(t, h.handler, api.Endpoint{}, api.ServeOptions{Grace: time.Hour})
	h.server.URL = "http://" + address

	answered := make(chan *reply, 1)
	go func() {
		answered <- h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, uuid.New(), arqs...))
	}()

	require.Eventually(t, func() bool { return h.metric("cyborg_operation_answers_total") > before }, waitLimit, poll)

	require.NoError(t, stop())
	answer := <-answered
	require.Contains(t, answer.fault(http.StatusServiceUnavailable), "the server stops")
	require.NotEmpty(t, answer.header.Get("Retry-After"))
}

// L3: A bind that waits for too long fails, and its requests say why.
func TestL3BindTimeout(t *testing.T) {
	t.Parallel()
	h := setup(t, func(c *api.Config) { c.V2.BindTimeout = 3 * time.Second })
	accelerator := h.ready("first")
	arqs := h.requests("one", 1)

	release := h.engine.block()
	defer release()
	h.do("PATCH", path(accelerator, "/program"), map[string]any{"image": map[string]any{"source": "a.img"}}, "Prefer", "respond-async").expect(http.StatusAccepted)
	message := h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, uuid.New(), arqs...)).fault(http.StatusGatewayTimeout)
	require.Contains(t, message, "works on accelerator")

	failed := h.do("GET", requestsPath, nil).arqs(http.StatusOK)[0]
	require.Equal(t, cyborg.ARQBindFailed, failed.State)
	require.Contains(t, failed.Reason, "as long as it may")
}

// L3: A process that has too much to do delays the answer for no longer than a
// bind may take.
func TestL3BindTimeoutUnderFullLoad(t *testing.T) {
	t.Parallel()
	h := setup(t, func(c *api.Config) {
		c.Operate.MaxInFlight, c.Operate.InFlightHold, c.V2.BindTimeout = 1, time.Hour, 3*time.Second
	})

	accelerator := h.ready("first")

	release := h.engine.block()
	defer release()
	other := h.host("h1", 2)["fpga-1"]
	h.do("POST", path(other, "/ready"), nil, "Prefer", "respond-async").expect(http.StatusAccepted) // has the only place

	message := h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, uuid.New(), h.requests("one", 1)...)).fault(http.StatusGatewayTimeout)
	require.Contains(t, message, "are in flight here")
}

// If Nova does not say whose an instance is, a bind gives up asking after half
// of its time and uses the rest to bind.
func TestBindWhileNovaDoesNotAnswer(t *testing.T) {
	t.Parallel()
	mute := muteInstances{asked: make(chan struct{}, 1)}
	h := setupOf(t, defaults(), func(deps *api.Deps) { deps.Instances = mute },
		func(c *api.Config) { c.V2.BindTimeout = 16 * time.Second })

	accelerator := h.ready("first")
	h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, uuid.New(), h.requests("one", 1)...)).expect(http.StatusAccepted)
	require.Len(t, mute.asked, 1)
}

// muteInstances is a Nova that never answers.
type muteInstances struct{ asked chan struct{} }

func (m muteInstances) Project(ctx context.Context, _ uuid.UUID) (string, error) {
	m.asked <- struct{}{}
	<-ctx.Done()
	return "", ctx.Err()
}

func (muteInstances) Scheduled(ctx context.Context, _ uuid.UUID) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}

func (muteInstances) HardReboot(ctx context.Context, _ uuid.UUID) (string, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

func (muteInstances) Stranded(ctx context.Context, _ uuid.UUID) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}

// Requests are not resolved while their bind goes on. If they are deleted
// meanwhile, nothing is left of them or of what they hold.
func TestDeleteDuringBind(t *testing.T) {
	t.Parallel()
	h := setup(t, func(c *api.Config) { c.V2.BindWait = poll })
	accelerator := h.ready("first")
	arqs := h.requests("one", 1)
	instance := uuid.New()

	release := h.engine.block()
	defer release()
	h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, instance, arqs...)).expect(http.StatusAccepted)

	require.Equal(t, "null", h.do("GET", ofInstance(instance)+"&bind_state=resolved", nil).expect(http.StatusLocked).text())
	require.Empty(t, h.do("GET", requestsPath+"?bind_state=resolved", nil).arqs(http.StatusOK))

	h.do("DELETE", ofInstance(instance), nil).expect(http.StatusNoContent)
	require.Empty(t, h.do("GET", requestsPath, nil).arqs(http.StatusOK))
	require.Empty(t, h.holders(accelerator))
}

func TestUnbindARQ(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("first")
	arq := h.requests("one", 1)[0]
	one := requestsPath + "/" + arq.UUID.String()

	h.do("PATCH", one, toBind("h1", accelerator.ProviderUUID, uuid.New(), arq)).expect(http.StatusAccepted)
	h.do("DELETE", path(accelerator), nil).problem(cyborg.ErrInUse)

	for _, named := range []string{"hostname", "/hostname"} { // a repeated unbind succeeds, too
		remove := map[string]any{arq.UUID.String(): []map[string]string{{"path": named, "op": "remove"}}}
		h.do("PATCH", one, remove).expect(http.StatusAccepted)
		require.Equal(t, cyborg.ARQUnbound, as[arqBody](h.do("GET", one, nil)).State)
	}

	require.Empty(t, h.holders(accelerator))
}

// instances is a Nova that has only these instances.
type instances map[uuid.UUID]struct {
	project             string
	scheduled, stranded bool
	rebooting           string // the request of a hard reboot
}

func (known instances) Project(_ context.Context, instance uuid.UUID) (string, error) {
	return known[instance].project, known.missing(instance)
}

func (known instances) Scheduled(_ context.Context, instance uuid.UUID) (bool, error) {
	return known[instance].scheduled, known.missing(instance)
}

func (known instances) Stranded(_ context.Context, instance uuid.UUID) (bool, error) {
	return known[instance].stranded, known.missing(instance)
}

func (known instances) HardReboot(_ context.Context, instance uuid.UUID) (string, error) {
	return known[instance].rebooting, known.missing(instance)
}

func (known instances) missing(instance uuid.UUID) error {
	if _, ok := known[instance]; ok {
		return nil
	}
	return cyborg.Errorf(cyborg.ErrNotFound, "there is no instance %s", instance)
}

// L4: A bound request belongs to the project of its instance, whoever binds it.
// If Nova does not know the instance, the request stays in its maker's project
// unless the bind names another.
func TestL4Project(t *testing.T) {
	t.Parallel()
	instance := uuid.New()
	h := setupWith(t, func(deps *api.Deps) { deps.Instances = instances{instance: {project: "tenant"}} })
	accelerator := h.ready("first")
	arqs := h.requests("one", 1)

	h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, instance, arqs...)).expect(http.StatusAccepted)
	require.Equal(t, "tenant", *h.do("GET", requestsPath, nil).arqs(http.StatusOK)[0].Project)

	more := h.requests("one", 1) // of an instance that Nova does not know
	h.do("PATCH", requestsPath, toBind("h1", accelerator.ProviderUUID, uuid.New(), more...)).expect(http.StatusAccepted)
	require.Nil(t, as[arqBody](h.do("GET", requestsPath+"/"+more[0].UUID.String(), nil)).Project)
	require.Len(t, h.do("GET", requestsPath+"?project_id=tenant", nil).arqs(http.StatusOK), 1)

	h.do("DELETE", requestsPath+"/"+more[0].UUID.String(), nil).expect(http.StatusNoContent)

	given := h.requests("one", 1)[0]
	body := toBind("h1", accelerator.ProviderUUID, uuid.New(), given)
	body[given.UUID.String()] = append(body[given.UUID.String()].([]map[string]string), map[string]string{"path": "/project_id", "op": "add", "value": "other"})

	h.do("PATCH", requestsPath, body, versionHeader, "accelerator 2.1").expect(http.StatusAccepted)
	require.Equal(t, "other", *as[arqBody](h.do("GET", requestsPath+"/"+given.UUID.String(), nil)).Project)
}

func TestARQService(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("first")
	arq := h.requests("one", 1)[0]
	body := toBind("h1", accelerator.ProviderUUID, uuid.New(), arq)
	body[arq.UUID.String()].([]map[string]string)[2] = map[string]string{"path": "/service", "op": "add", "value": "spdk"}

	h.do("PATCH", requestsPath, body).expect(http.StatusAccepted)

	text := string(h.do("GET", requestsPath, nil).body)
	require.Contains(t, text, `"service":"spdk"`)
	require.Equal(t, []cyborg.Holder{{Kind: cyborg.HolderService, ID: "spdk"}}, h.holders(accelerator))
}

// L4: A project sees its own requests only, and administrators see all. A
// service sees the requests of the instance that it asks for, whoever the user
// is, because Nova has made sure that the user may.
func TestL4ARQVisibility(t *testing.T) {
	t.Parallel()
	c := setupCloud(t)
	accelerator := c.as(adminToken).ready("first")

	user := func(name, project string, roles ...string) string {
		return c.keystone.Issue(openstacktest.Token{UserID: "u-" + name, User: name, ProjectID: project, ProjectIs: project, Roles: roles})
	}
	alice, bob, root := user("alice", "p1", "member", "reader"), user("bob", "p2", "member", "reader"), user("root", "p3", "admin", "member", "reader")
	nova := user("nova", "p-service", "service")
	const service = "X-Service-Token"

	_, err := c.store.CreateDeviceProfile(t.Context(), cyborg.DeviceProfile{
		Name: "one", Groups: []map[string]string{{"resources:FPGA": "1"}},
	}, cyborg.Actor{})
	require.NoError(t, err)

	made := c.ask(alice, "POST", requestsPath, map[string]string{"device_profile_name": "one"}).arqs(http.StatusCreated)
	require.Equal(t, "p1", *made[0].Project)

	one, instance := requestsPath+"/"+made[0].UUID.String(), uuid.New()
	body := toBind("h1", accelerator.ProviderUUID, instance, made...)
	require.Contains(t, c.ask(alice, "PATCH", requestsPath, body).fault(http.StatusForbidden), "requires a service token")
	c.ask(bob, "PATCH", requestsPath, body, service, nova).expect(http.StatusAccepted)
	require.Equal(t, "p1", *c.ask(alice, "GET", requestsPath, nil).arqs(http.StatusOK)[0].Project, "it is not the caller's now")

	for token, sees := range map[string]bool{alice: true, bob: false, root: true} {
		status, count := http.StatusNotFound, 0
		if sees {
			status, count = http.StatusOK, 1
		}

		c.ask(token, "GET", one, nil).expect(status)
		require.Len(t, c.ask(token, "GET", requestsPath, nil).arqs(http.StatusOK), count)
		require.Len(t, c.ask(token, "GET", ofInstance(instance), nil).arqs(http.StatusOK), count)

		require.Len(t, c.ask(token, "GET", ofInstance(instance), nil, service, nova).arqs(http.StatusOK), 1)
		c.ask(token, "GET", one, nil, service, nova).expect(http.StatusOK)
	}

	require.Empty(t, c.ask(bob, "GET", requestsPath+"?project_id=p1", nil).arqs(http.StatusOK))
	require.Empty(t, c.ask(bob, "GET", requestsPath, nil, service, nova).arqs(http.StatusOK), "without an instance, a user's list is the user's")

	c.ask(bob, "DELETE", one, nil).fault(http.StatusNotFound)
	c.ask(alice, "DELETE", one, nil).fault(http.StatusForbidden)
	c.ask(bob, "DELETE", ofInstance(instance), nil, service, nova).expect(http.StatusNoContent)
	require.Empty(t, c.ask(root, "GET", requestsPath, nil).arqs(http.StatusOK))
}

// Requests that were created before static members had projects of their own
// have none. They stay visible and usable to these members, and to nobody of
// Keystone.
func TestRequestsWithoutAProject(t *testing.T) {
	t.Parallel()
	c := setupCloud(t)
	_, err := c.store.CreateDeviceProfile(t.Context(), cyborg.DeviceProfile{Name: "one", Groups: []map[string]string{{"resources:FPGA": "1"}}}, cyborg.Actor{})
	require.NoError(t, err)

	create := func(project string) string {
		made, err := c.store.CreateARQs(t.Context(), "one", cyborg.Actor{Name: "mia", Project: project})
		require.NoError(t, err)
		return made[0].UUID.String()
	}
	old, empty, foreign := create(""), create(""), create("p2")
	conn, err := pgx.Connect(t.Context(), c.url)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), "UPDATE arqs SET project = NULL WHERE uuid = $1", empty)
	require.NoError(t, err)

	listed := func(token, query string) []string {
		var ids []string
		for _, one := range c.ask(token, "GET", requestsPath+query, nil).arqs(http.StatusOK) {
			ids = append(ids, one.UUID.String())
		}
		return ids
	}

	require.ElementsMatch(t, []string{old, empty}, listed(memberToken, ""))
	require.ElementsMatch(t, []string{old, empty}, listed(otherToken, ""))
	require.ElementsMatch(t, []string{old, empty, foreign}, listed(adminToken, ""))
	require.Empty(t, listed(memberToken, "?project_id=p2"))

	alice := c.user("member", "reader")
	require.Empty(t, listed(alice, ""))
	for _, id := range []string{old, empty} {
		c.ask(alice, "GET", requestsPath+"/"+id, nil).fault(http.StatusNotFound)
		c.ask(alice, "DELETE", requestsPath+"?arqs="+id, nil).fault(http.StatusNotFound)
		c.ask(memberToken, "GET", requestsPath+"/"+id, nil).expect(http.StatusOK)
		c.ask(memberToken, "DELETE", requestsPath+"?arqs="+id, nil).expect(http.StatusNoContent)
	}
	c.ask(memberToken, "DELETE", requestsPath+"?arqs="+foreign, nil).fault(http.StatusNotFound)
}
