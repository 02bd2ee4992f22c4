package api_test

import (
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

func TestHosts(t *testing.T) {
	t.Parallel()
	type body struct {
		Host  []cyborg.Host
		Links []struct{ Href string } `json:"host_links"`
	}

	h := setup(t)
	h.host("h1", 1)
	h.host("h2.example.org", 2)

	page := as[body](h.do("GET", "/v1/hosts?limit=1", nil).expect(http.StatusOK))
	require.Len(t, page.Host, 1)
	require.Equal(t, "h1", page.Host[0].Name)
	page = as[body](h.do("GET", page.Links[0].Href, nil).expect(http.StatusOK))
	require.Equal(t, "h2.example.org", page.Host[0].Name)

	host := as[cyborg.Host](h.do("GET", "/v1/hosts/h2.example.org", nil).expect(http.StatusOK))
	require.Equal(t, 3, host.Devices)
	require.False(t, host.Silent)
	require.Len(t, host.Backends, 1)

	h.do("GET", "/v1/hosts/h3", nil).problem(cyborg.ErrNotFound)
	h.do("GET", "/v1/hosts/a%2Fb", nil).problem(cyborg.ErrNotFound)
}

func TestDevices(t *testing.T) {
	t.Parallel()
	type device struct {
		cyborg.Device
		Accelerators []acceleratorBody `json:"accelerators"`
	}
	type body struct{ Device []device }

	h := setup(t)
	h.host("h1", 2)
	h.host("h2", 1)

	for query, want := range map[string]int{
		"": 5, "?host=h1": 3, "?type=GPU": 2, "?type=GPU&host=h2": 1, "?vendor_id=1d5c": 5, "?vendor_id=0x1D5C": 5, "?vendor_id=ffff": 0, "?limit=4": 4,
	} {
		require.Len(t, as[body](h.do("GET", "/v1/devices"+query, nil).expect(http.StatusOK)).Device, want, query)
	}

	first := as[body](h.do("GET", "/v1/devices?limit=1", nil)).Device[0]
	shown := as[device](h.do("GET", "/v1/devices/"+first.UUID.String(), nil).expect(http.StatusOK))
	require.Len(t, shown.Accelerators, 1)
	require.Equal(t, cyborg.StatusInactive, shown.Accelerators[0].Status)
	h.do("GET", "/v1/devices/"+uuid.NewString(), nil).problem(cyborg.ErrNotFound)
}

func TestServices(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.host("h1", 1)

	services := as[map[string][]cyborg.Service](h.do("GET", "/v1/services", nil).expect(http.StatusOK))["service"]
	require.Len(t, services, 1)
	require.Equal(t, "agent", services[0].Role)
	require.True(t, services[0].Alive)

	offered := as[map[string][]cyborg.Backend](h.do("GET", "/v1/hosts/h1/services", nil).expect(http.StatusOK))["service"]
	require.Len(t, offered, 1)
	require.ElementsMatch(t, []string{"install", "attach", "program"}, offered[0].Services)
	h.do("GET", "/v1/hosts/h9/services", nil).problem(cyborg.ErrNotFound)
}

func TestDiscover(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.host("h1", 1)

	var found struct {
		Host     string
		Sequence int64
		Devices  map[string]int
	}

	h.do("POST", "/v1/hosts/h1/discover", nil).expect(http.StatusOK).json(&found)
	require.Equal(t, "h1", found.Host)
	require.Equal(t, map[string]int{"fake": 2}, found.Devices)
	h.do("POST", "/v1/hosts/h9/discover", nil).problem(cyborg.ErrNotFound)

	h.host("h2", 1)
	h.do("POST", "/v1/hosts/h2/revoke", map[string]any{"reason": "stolen"}).expect(http.StatusNoContent)
	h.do("POST", "/v1/hosts/h2/discover", nil).problem(cyborg.ErrHostSilent)

	h.engine.set(func(e *engine) { e.away = true })
	require.Eventually(t, func() bool { // that Temporal answered is remembered for a moment
		return h.do("POST", "/v1/hosts/h1/discover", nil).status == http.StatusServiceUnavailable
	}, waitLimit, poll)
}

func TestDrivers(t *testing.T) {
	t.Parallel()
	type body struct{ Driver []cyborg.Backend }
	h := setup(t)
	found := h.host("h1", 1)
	h.host("h2", 1)

	require.Len(t, as[body](h.do("GET", "/v1/drivers", nil).expect(http.StatusOK)).Driver, 2)
	require.Len(t, as[body](h.do("GET", "/v1/drivers?host=h2&host=h2", nil).expect(http.StatusOK)).Driver, 1)
	require.Len(t, as[body](h.do("GET", "/v1/hosts/h1/drivers", nil).expect(http.StatusOK)).Driver, 1)
	h.do("GET", "/v1/drivers?host=h9", nil).problem(cyborg.ErrNotFound)

	first := h.do("GET", "/v1/drivers?limit=1", nil).expect(http.StatusOK)
	next := as[map[string][]map[string]any](first)["driver_links"][0]["href"]
	require.Equal(t, "/v1/drivers?limit=1&marker=h1%2Ffake", next)

	second := as[body](h.do("GET", "/v1/drivers?limit=1&marker=h1%2Ffake", nil).expect(http.StatusOK)).Driver
	require.Len(t, second, 1)
	require.Equal(t, "h2", second[0].Host)

	h.do("GET", "/v1/drivers?marker=h1", nil).problem(cyborg.ErrInvalid)
	h.do("GET", "/v1/services?marker=h1", nil).problem(cyborg.ErrInvalid)
	require.Equal(t, "fake", as[cyborg.Backend](h.do("GET", "/v1/hosts/h1/drivers/fake", nil).expect(http.StatusOK)).Driver)
	h.do("GET", "/v1/hosts/h1/drivers/none", nil).problem(cyborg.ErrNotFound)

	h.engine.set(func(e *engine) { e.result = cyborg.JSONObject{"state": "ok", "devices": 3} })
	created := h.do("POST", "/v1/hosts/h1/drivers", map[string]any{"name": "fake-2", "driver": "fake", "options": map[string]any{"cards": 3}})
	op := as[cyborg.Operation](created.expect(http.StatusCreated))
	require.Equal(t, "/v1/hosts/h1/drivers/fake-2", created.header.Get("Location"))
	require.Equal(t, cyborg.OperationConfigure, op.Kind)
	require.Equal(t, "ok", op.Result["state"])
	require.InDelta(t, 3, op.Input["options"].(map[string]any)["cards"], 0)

	named := h.do("POST", "/v1/hosts/h1/drivers", map[string]any{"driver": "generic"}).expect(http.StatusCreated)
	require.Equal(t, "/v1/hosts/h1/drivers/generic", named.header.Get("Location"), "by its driver, where it has no name of its own")
	h.do("POST", "/v1/hosts/h1/drivers", map[string]any{"options": map[string]any{}}).problem(cyborg.ErrInvalid)

	h.do("PUT", "/v1/hosts/h1/drivers/fake", map[string]any{"options": map[string]any{"cards": 4}}).expect(http.StatusOK)
	h.do("DELETE", "/v1/hosts/h2/drivers/fake", nil).expect(http.StatusNoContent)

	accelerator := found["fpga-0"]
	h.do("POST", path(accelerator, "/ready"), nil).expect(http.StatusOK)
	h.do("PUT", path(accelerator), nil).expect(http.StatusOK)
	h.do("DELETE", "/v1/hosts/h1/drivers/fake", nil).problem(cyborg.ErrInUse)
}

func TestUsage(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.host("h1", 1)["fpga-0"]
	h.host("h2", 1)

	var asked, limited []string
	h.engine.set(func(e *engine) {
		e.census = func(hosts, deployables []string) (cyborg.Census, error) {
			asked, limited = hosts, deployables
			out := cyborg.Census{}
			for _, host := range hosts {
				usage := cyborg.HostUsage{Host: host}
				if host == "h2" {
					usage.Error, out.Partial = "did not answer in time", true
				} else {
					usage.Deployables = []cyborg.DeployableUsage{{
						Backend: "fake", Deployable: "fpga-0", Metrics: map[string]float64{"temperature_celsius": 41},
						Handles: []cyborg.HandleUsage{{Handle: "0000:01:00.0", Attached: true, InUse: true, By: "qemu"}},
					}}
				}
				out.Hosts = append(out.Hosts, usage)
			}
			return out, nil
		}
	})

	census := as[cyborg.Census](h.do("GET", "/v1/usage", nil).expect(http.StatusOK))
	require.Equal(t, []string{"h1", "h2"}, asked)
	require.True(t, census.Partial)
	require.Equal(t, "did not answer in time", census.Hosts[1].Error)

	census = as[cyborg.Census](h.do("GET", "/v1/usage?host=h1", nil, "Prefer", "wait=2").expect(http.StatusOK))
	require.False(t, census.Partial)
	require.Equal(t, []string{"h1"}, asked)
	require.Empty(t, limited)

	usage := as[cyborg.HostUsage](h.do("GET", path(accelerator, "/usage"), nil).expect(http.StatusOK))
	require.Equal(t, []string{"fpga-0"}, limited)
	require.True(t, usage.Deployables[0].Handles[0].InUse)
	require.Equal(t, accelerator.UUID, usage.Deployables[0].Accelerator)
	require.Equal(t, "h1_fpga-0", usage.Deployables[0].Name, "as the lists have it, not as the driver")

	h.do("GET", "/v1/usage?host=h9", nil).problem(cyborg.ErrNotFound)
	h.do("GET", "/v1/accelerators/"+uuid.NewString()+"/usage", nil).problem(cyborg.ErrNotFound)

	h.engine.set(func(e *engine) {
		e.census = func([]string, []string) (cyborg.Census, error) {
			return cyborg.Census{}, cyborg.Errorf(cyborg.ErrTimeout, "no answer within the time of the request")
		}
	})
	h.do("GET", "/v1/usage", nil).problem(cyborg.ErrTimeout)
}
