package api_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// listBody is a page of the list of accelerators.
type listBody struct {
	Accelerator []acceleratorBody `json:"accelerator"`
	Links       []struct{ Rel, Href string }
	NextLinks   []struct{ Rel, Href string } `json:"accelerator_links"`
}

// names lists the names on the page in alphabetical order.
func (l listBody) names() []string {
	var names []string
	for _, a := range l.Accelerator {
		names = append(names, a.Name)
	}
	slices.Sort(names)
	return names
}

// The calls of the first interface take an accelerator through its whole life,
// whichever of their paths is used.
func TestSeedContract(t *testing.T) {
	t.Parallel()
	h := setup(t)
	found := h.host("h1", 2)

	for _, prefix := range []string{"/accelerators", "/v1/accelerator"} {
		accelerator := found["fpga-0"]
		if prefix != "/accelerators" {
			accelerator = found["fpga-1"]
		}
		one := prefix + "/" + accelerator.UUID.String()
		name := "acc-" + accelerator.LocalName

		created := h.do("POST", one, map[string]any{"name": name}).expect(http.StatusCreated)
		require.Empty(t, created.body)
		require.Equal(t, path(accelerator), created.header.Get("Location"))
		require.NotEmpty(t, created.header.Get("Cyborg-Operation"))

		shown := as[acceleratorBody](h.do("GET", created.header.Get("Location"), nil).expect(http.StatusOK))
		require.Equal(t, cyborg.StatusReady, shown.Status)
		require.Equal(t, name, shown.Name)

		attached := as[acceleratorBody](h.do("PUT", one, map[string]any{"name": name}).expect(http.StatusOK))
		require.Equal(t, []cyborg.Holder{{Kind: cyborg.HolderHost, ID: "h1"}}, attached.Holders)

		instance := uuid.NewString()
		attached = as[acceleratorBody](h.do("PUT", one, map[string]any{"instance": instance}).expect(http.StatusOK))
		require.Equal(t, cyborg.StatusAttached, attached.Status)
		require.Contains(t, attached.Holders, cyborg.Holder{Kind: cyborg.HolderInstance, ID: instance})

		h.do("PUT", one, map[string]any{"service": "ovs"}).expect(http.StatusConflict)

		one204 := h.do("DELETE", one+"?instance="+instance, nil).expect(http.StatusNoContent)
		require.Empty(t, one204.body)
		shown = as[acceleratorBody](h.do("GET", one, nil).expect(http.StatusOK))
		require.Equal(t, []cyborg.Holder{{Kind: cyborg.HolderHost, ID: "h1"}}, shown.Holders)

		h.do("DELETE", one, nil).expect(http.StatusNoContent)
		nothing := h.do("DELETE", one, nil).expect(http.StatusNoContent)
		require.Empty(t, nothing.header.Get("Cyborg-Operation"), "nothing was attached, so there is no operation")
		shown = as[acceleratorBody](h.do("GET", one, nil).expect(http.StatusOK))
		require.Equal(t, cyborg.StatusReady, shown.Status, "the hardware stays")
	}
}

func TestListFilters(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.host("h1", 2)
	h.host("h2", 1)
	instance := uuid.NewString()

	list := func(query string) listBody {
		return as[listBody](h.do("GET", "/v1/accelerators"+query, nil).expect(http.StatusOK))
	}

	first := list("?host=h1&device_type=FPGA").Accelerator[0]
	h.do("POST", path(first.Accelerator), map[string]any{"name": "alpha"}).expect(http.StatusCreated)
	h.do("PUT", path(first.Accelerator), map[string]any{"instance": instance}).expect(http.StatusOK)
	h.do("PUT", path(first.Accelerator), map[string]any{"service": "ovs"}).expect(http.StatusOK)

	for query, want := range map[string]int{
		"":                                     5,
		"?host=h1":                             3,
		"?host=h1&host=h2":                     5,
		"?host=h3":                             0,
		"?device_type=GPU":                     2,
		"?device_type=GPU&host=h2":             1,
		"?driver=fake&backend=fake":            5,
		"?driver=other":                        0,
		"?status=inactive":                     4,
		"?status=attached&status=inactive":     5,
		"?name=alpha":                          1,
		"?uuid=" + first.UUID.String():         1,
		"?device=" + first.DeviceUUID.String(): 1,
		"?instance=" + instance:                1,
		"?instance=" + uuid.NewString():        0,
		"?holder_service=ovs":                  1,
		"?holder_host=h1":                      0,
	} {
		require.Len(t, list(query).Accelerator, want, query)
	}

	require.Equal(t, []string{"alpha"}, list("?status=attached").names())
}

// near lists the accelerators of one host, the nearest first, with the distance of each,
// page by page.
func TestListNear(t *testing.T) {
	t.Parallel()
	h := setup(t)
	r := report("h1", 1, 3)
	r.Content.Facts = &cyborg.HostFacts{NUMANodes: []cyborg.NUMANode{{ID: 0, Distances: []int{10, 32}}, {ID: 1, Distances: []int{32, 10}}}}
	for i, node := range []*int{new(1), nil, new(0)} {
		r.Content.Backends[0].Devices[i].NUMANode = node
	}
	_, err := h.store.MergeReports(t.Context(), []agentapi.Report{r})
	require.NoError(t, err)
	h.host("h2", 1)
	host := as[cyborg.Host](h.do("GET", "/v1/hosts/h1", nil).expect(http.StatusOK))
	require.Equal(t, r.Content.Facts, host.Facts)

	var found []acceleratorBody
	for next := "/v1/accelerators?host=h1&near=0&limit=1"; next != ""; {
		page := as[listBody](h.do("GET", next, nil).expect(http.StatusOK))
		found = append(found, page.Accelerator...)
		next = ""
		if len(page.NextLinks) > 0 {
			next = page.NextLinks[0].Href
		}
	}
	require.Len(t, found, 4)
	require.Equal(t, []*int{new(10), new(32), nil, nil}, []*int{found[0].NUMADistance, found[1].NUMADistance, found[2].NUMADistance, found[3].NUMADistance})
	require.Equal(t, []*int{new(0), new(1), nil, nil}, []*int{found[0].NUMANode, found[1].NUMANode, found[2].NUMANode, found[3].NUMANode})

	near := as[listBody](h.do("GET", "/v1/accelerators?status=inactive&near="+found[1].UUID.String(), nil).expect(http.StatusOK)).Accelerator
	require.Len(t, near, 4)
	require.Equal(t, found[1].UUID, near[0].UUID)

	for query, kind := range map[string]cyborg.ErrorKind{
		"near=": cyborg.ErrInvalid, "near=0": cyborg.ErrInvalid, "near=0&near=1&host=h1": cyborg.ErrInvalid, "near=7&host=h1": cyborg.ErrInvalid,
		"near=nobody": cyborg.ErrNotFound, "near=0&host=h9": cyborg.ErrNotFound, "host=h2&near=" + found[0].Name: cyborg.ErrInvalid,
	} {
		h.do("GET", "/v1/accelerators?"+query, nil).problem(kind)
	}
}

func TestListPages(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.host("h1", 6)

	var names []string
	pages := 0

	for next := "/accelerator?limit=3&host=h1"; next != ""; {
		page := as[listBody](h.do("GET", next, nil).expect(http.StatusOK))
		require.LessOrEqual(t, len(page.Accelerator), 3)
		names = append(names, page.names()...)
		next = ""

		if len(page.NextLinks) > 0 {
			require.Equal(t, "next", page.NextLinks[0].Rel)
			next = page.NextLinks[0].Href
			require.True(t, strings.HasPrefix(next, "/accelerator?"), next)
		}
		pages++
	}

	require.Equal(t, 3, pages)
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(names))), 7)
}

func TestProvisionChoosesAndConflicts(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.host("h1", 2)
	provision := func(body map[string]any) *reply { return h.do("POST", "/v1/accelerators", body) }

	created := provision(map[string]any{"name": "alpha", "acc_specs": map[string]any{"device_type": "GPU"}, "host": "h1"}).expect(http.StatusCreated)
	shown := as[acceleratorBody](h.do("GET", created.header.Get("Location"), nil).expect(http.StatusOK))
	require.Equal(t, cyborg.DeviceTypeGPU, shown.DeviceType)
	require.Equal(t, "alpha", shown.Name)

	problem := provision(map[string]any{"name": "beta", "acc_specs": map[string]any{"device_type": "GPU"}}).problem(cyborg.ErrNoFit)
	require.NotEmpty(t, problem.Detail)
	provision(map[string]any{"name": "beta", "acc_specs": map[string]any{"num": 99}}).problem(cyborg.ErrNoFit)
	require.Equal(t, http.StatusConflict, provision(map[string]any{"name": "alpha", "acc_specs": map[string]any{"device_type": "FPGA"}}).status,
		"the name is taken by one that is in service")
}

// Requests that come at the same moment take different accelerators.
func TestProvisionsTakeDifferentAccelerators(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.host("h1", 4)
	locations := make([]string, 4)

	var all sync.WaitGroup
	for i := range locations {
		all.Go(func() {
			locations[i] = h.do("POST", "/v1/accelerators", map[string]any{
				"name": fmt.Sprintf("acc-%d", i), "acc_specs": map[string]any{"device_type": "FPGA"},
			}).expect(http.StatusCreated).header.Get("Location")
		})
	}

	all.Wait()
	slices.Sort(locations)
	require.Len(t, slices.Compact(locations), 4)
}

func TestMakeReady(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.host("h1", 1)["fpga-0"]

	shown := as[acceleratorBody](h.do("POST", path(accelerator, "/ready"), nil).expect(http.StatusOK))
	require.Equal(t, cyborg.StatusReady, shown.Status)
	require.Equal(t, accelerator.Name, shown.Name)
	h.do("POST", path(accelerator, "/ready"), "{}").problem(cyborg.ErrChanged)
}

// Retire is the opposite of provision. Only administrators may retire an
// accelerator, and only one that nobody holds. The name stays.
func TestRetire(t *testing.T) {
	t.Parallel()
	h := setup(t, withTokens)
	ada, mia := h.as(adminToken), h.as(memberToken)
	accelerator := ada.ready("alpha")

	mia.do("POST", path(accelerator, "/retire"), nil).problem(cyborg.ErrForbidden)
	ada.do("POST", path(accelerator, "/retire"), `{"force": true}`).problem(cyborg.ErrInvalid)
	ada.do("POST", path(accelerator, "/retire")+"?force=true", nil).problem(cyborg.ErrInvalid)

	ada.do("PUT", path(accelerator), nil).expect(http.StatusOK)
	require.NotEmpty(t, ada.do("POST", path(accelerator, "/retire"), nil).problem(cyborg.ErrInUse).Hint)
	ada.do("DELETE", path(accelerator), nil).expect(http.StatusNoContent)

	key := []string{"Idempotency-Key", "k1"}
	answer := ada.do("POST", path(accelerator, "/retire"), nil, key...).expect(http.StatusOK)
	shown := as[acceleratorBody](answer)
	require.Equal(t, cyborg.StatusInactive, shown.Status)
	require.Equal(t, "alpha", shown.Name)

	op := as[cyborg.Operation](ada.do("GET", "/v1/operations/"+answer.header.Get("Cyborg-Operation"), nil).expect(http.StatusOK))
	require.Equal(t, cyborg.OperationRetire, op.Kind)
	again := ada.do("POST", path(accelerator, "/retire"), nil, key...).expect(http.StatusOK)
	require.Equal(t, op.ID.String(), again.header.Get("Cyborg-Operation"))

	ada.do("POST", path(accelerator, "/retire"), nil).problem(cyborg.ErrChanged)
	ada.do("PUT", path(accelerator), nil).problem(cyborg.ErrChanged)
	ada.do("POST", path(accelerator, "/ready"), nil).expect(http.StatusOK)
}

func TestUpdateSpecs(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	tag := h.do("GET", path(accelerator), nil).expect(http.StatusOK).header.Get("ETag")
	require.NotEmpty(t, tag)

	body := `{"acc_specs": {"acc_type": "compression", "acc_capability": {"gbps": 100}, "num": 2}}`
	changed := h.do("PUT", path(accelerator, "/acc_specs"), body, "If-Match", tag).expect(http.StatusOK)
	shown := as[acceleratorBody](changed)
	require.Equal(t, "compression", shown.Specs.Type)
	require.InDelta(t, 100, shown.Specs.Capability["gbps"], 0)
	require.NotEqual(t, tag, changed.header.Get("ETag"))

	h.do("PUT", path(accelerator), body, "If-Match", tag).problem(cyborg.ErrChanged)
	h.do("PUT", path(accelerator), body, "If-Match", changed.header.Get("ETag")).expect(http.StatusOK)
	h.do("PUT", path(accelerator), body).expect(http.StatusOK)
	h.do("PUT", path(accelerator), body, "If-Match", "*").expect(http.StatusOK)
	require.Equal(t, "compression", h.accelerator(accelerator.UUID).Specs.Type)
}

func TestMaintainAndEnable(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")

	shown := as[acceleratorBody](h.do("POST", path(accelerator, "/maintain"), `{"reason": "a new fan", "for": "2h"}`).expect(http.StatusOK))
	require.Equal(t, cyborg.StatusMaintaining, shown.Status)
	require.Equal(t, "a new fan", shown.Maintenance.Reason)
	require.Equal(t, "local", shown.Maintenance.By)
	require.False(t, shown.Maintenance.Until.IsZero())

	h.do("PUT", path(accelerator), nil).problem(cyborg.ErrChanged)

	shown = as[acceleratorBody](h.do("POST", path(accelerator, "/maintain"), `{"reason": "still", "until": "2099-01-01T00:00:00Z"}`).expect(http.StatusOK))
	require.Equal(t, "still", shown.Maintenance.Reason)
	shown = as[acceleratorBody](h.do("POST", path(accelerator, "/enable"), nil).expect(http.StatusOK))
	require.Equal(t, cyborg.StatusReady, shown.Status)
	h.do("PUT", path(accelerator), nil).expect(http.StatusOK)
}

func TestProgram(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	sum := strings.Repeat("ab", 32)
	image := map[string]any{"image": map[string]any{"source": "https://images.example.org/a.bin", "sha256": strings.ToUpper(sum), "id": "a"}}

	answer := h.do("PATCH", path(accelerator, "/program"), image).expect(http.StatusOK)
	require.Equal(t, accelerator.UUID, as[acceleratorBody](answer).UUID)

	op := as[cyborg.Operation](h.do("GET", "/v1/operations/"+answer.header.Get("Cyborg-Operation"), nil).expect(http.StatusOK))
	require.Equal(t, cyborg.OperationProgram, op.Kind)
	require.Equal(t, sum, op.Input["image"].(map[string]any)["sha256"])

	h.do("PUT", path(accelerator), nil).expect(http.StatusOK)
	h.do("PATCH", path(accelerator, "/program"), image).problem(cyborg.ErrInUse)
}

// While one request attaches an accelerator, another is refused and told which
// operation is in the way.
func TestConflictNamesTheOperation(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	release := h.engine.block()
	defer release()

	accepted := as[cyborg.Operation](h.do("PUT", path(accelerator), nil, "Prefer", "respond-async").expect(http.StatusAccepted))
	problem := h.do("PUT", path(accelerator), nil).problem(cyborg.ErrClaimed)
	require.Equal(t, accepted.ID, problem.Operation)

	shown := as[acceleratorBody](h.do("GET", path(accelerator), nil).expect(http.StatusOK))
	require.Equal(t, cyborg.StatusAttaching, shown.Status)
	require.Equal(t, accepted.ID, shown.Claim.Operation)
}

func TestAttachExpectsTheName(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	problem := h.do("PUT", path(accelerator), map[string]any{"name": "beta"}).problem(cyborg.ErrChanged)
	require.Contains(t, problem.Detail, "alpha")
	h.do("PUT", path(accelerator), map[string]any{"name": "alpha", "uuid": accelerator.UUID, "host": "h1"}).expect(http.StatusOK)
}

func TestMaintenanceCoversTheWholeDevice(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	device := "/v1/devices/" + accelerator.DeviceUUID.String()

	type body struct {
		Accelerators []acceleratorBody `json:"accelerators"`
	}

	shown := as[body](h.do("POST", device+"/maintain", `{"reason": "a new fan", "for": "2h"}`).expect(http.StatusOK))
	require.Len(t, shown.Accelerators, 1)
	require.Equal(t, cyborg.StatusMaintaining, shown.Accelerators[0].Status)
	require.Equal(t, "a new fan", h.accelerator(accelerator.UUID).Maintenance.Reason)

	h.do("PUT", path(accelerator), nil).problem(cyborg.ErrChanged)
	h.do("POST", device+"/maintain", `{}`).problem(cyborg.ErrInvalid)

	shown = as[body](h.do("POST", device+"/enable", nil).expect(http.StatusOK))
	require.Equal(t, cyborg.StatusReady, shown.Accelerators[0].Status)
	h.do("POST", device+"/enable", nil).expect(http.StatusOK)
}

func TestUUIDPrefixes(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	operation := as[struct{ Operation []cyborg.Operation }](h.do("GET", "/v1/operations", nil).expect(http.StatusOK)).Operation[0]

	type found struct {
		Accelerator, Device []struct{ UUID uuid.UUID }
		Operation           []struct{ ID uuid.UUID }
	}

	for prefix := range slices.Values([]int{8, 9, 12, 24, 36}) {
		id := accelerator.UUID.String()[:prefix]
		got := as[found](h.do("GET", "/v1/accelerators?uuid_prefix="+strings.ToUpper(id), nil).expect(http.StatusOK))
		require.Len(t, got.Accelerator, 1)
		require.Equal(t, accelerator.UUID, got.Accelerator[0].UUID)

		got = as[found](h.do("GET", "/v1/devices?uuid_prefix="+accelerator.DeviceUUID.String()[:prefix], nil).expect(http.StatusOK))
		require.Len(t, got.Device, 1)
		require.Equal(t, accelerator.DeviceUUID, got.Device[0].UUID)

		got = as[found](h.do("GET", "/v1/operations?id_prefix="+operation.ID.String()[:prefix], nil).expect(http.StatusOK))
		require.Len(t, got.Operation, 1)
		require.Equal(t, operation.ID, got.Operation[0].ID)
	}

	require.Empty(t, as[found](h.do("GET", "/v1/accelerators?uuid_prefix=00000000", nil).expect(http.StatusOK)).Accelerator)
	got := as[found](h.do("GET", "/v1/operations?id="+uuid.NewString()+"&id="+operation.ID.String(), nil).expect(http.StatusOK))
	require.Len(t, got.Operation, 1)
}

// eventsBody is a page of a history.
type eventsBody struct {
	Event []cyborg.Event               `json:"event"`
	Links []struct{ Rel, Href string } `json:"event_links"`
}

func TestHistory(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	h.do("PUT", path(accelerator), nil, web.RequestIDHeader, "req-5b7a31d2-6a0c-4a6b-9d33-6a58a2f0c1de").expect(http.StatusOK)

	var all []cyborg.Event
	require.Eventually(t, func() bool { // older transactions of others may hold the feed back for a moment
		all = nil
		for next := path(accelerator, "/history?limit=3"); next != ""; {
			page := as[eventsBody](h.do("GET", next, nil).expect(http.StatusOK))
			all = append(all, page.Event...)
			next = ""
			if len(page.Links) > 0 {
				next = page.Links[0].Href
			}
		}
		return slices.ContainsFunc(all, func(e cyborg.Event) bool { return e.Axis == cyborg.AxisHolder && e.To == "host:h1" })
	}, waitLimit, poll)

	axes := map[cyborg.EventAxis]bool{}
	ours := false

	for i, event := range all {
		axes[event.Axis] = true
		ours = ours || event.RequestID == "req-5b7a31d2-6a0c-4a6b-9d33-6a58a2f0c1de"
		if i > 0 {
			require.NotEqual(t, all[i-1].Cursor, event.Cursor)
		}
	}

	for _, axis := range []cyborg.EventAxis{cyborg.AxisPresence, cyborg.AxisLifecycle, cyborg.AxisName, cyborg.AxisClaim, cyborg.AxisHolder} {
		require.True(t, axes[axis], axis)
	}

	require.True(t, ours, "events name the request that caused them")

	read := func(path string) []cyborg.Event {
		return as[eventsBody](h.do("GET", path+"/history?limit=1000", nil).expect(http.StatusOK)).Event
	}

	attach := all[len(all)-1].Operation
	for path, also := range map[string]func(cyborg.Event) bool{
		"/v1/devices/" + accelerator.DeviceUUID.String(): func(e cyborg.Event) bool { return e.Subject.Kind == cyborg.SubjectDevice },
		"/v1/hosts/h1": func(e cyborg.Event) bool { return e.Axis == cyborg.AxisBoot },
		operationPath(attach): func(e cyborg.Event) bool {
			return e.Subject.Kind == cyborg.SubjectOperation && e.To == string(cyborg.OperationSucceeded)
		},
	} {
		events := read(path)
		require.True(t, slices.ContainsFunc(events, func(e cyborg.Event) bool { return e.Axis == cyborg.AxisHolder && e.To == "host:h1" }), path)
		require.True(t, slices.ContainsFunc(events, also), path)
	}

	require.False(t, slices.ContainsFunc(read(operationPath(attach)), func(e cyborg.Event) bool { return e.Operation != attach }))
	h.do("GET", "/v1/accelerators/"+uuid.NewString()+"/history", nil).problem(cyborg.ErrNotFound)
}
