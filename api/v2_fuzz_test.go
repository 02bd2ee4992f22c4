package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api"
	v2 "github.com/cyborg-project/cyborg/api/v2"
	"github.com/cyborg-project/cyborg/internal/fuzztest"
)

// FuzzAPIV2 is FuzzAPI for OpenStack's interface: nothing is answered with 500,
// every answer is one of the document, an error has one of the shapes that
// clients know, and what is refused changes nothing (L32, L34).
func FuzzAPIV2(f *testing.F) {
	h := setup(f, func(config *api.Config) {
		config.V2.SyncWait, config.V2.BindTimeout, config.V2.BodyLimit = time.Second, time.Second, 64<<10
	})

	h.defects.wanted.Store(true) // fuzz looks for them itself

	accelerator := h.ready("alpha")
	there := &fuzzed{accelerator: accelerator}
	there.restore(h)

	sql, err := pgxpool.New(f.Context(), h.url)
	require.NoError(f, err)
	f.Cleanup(sql.Close)

	table := fuzzedRoutes(f, theContractV2(f))
	for i, route := range table {
		body, err := json.Marshal(fullBodyV2(route.method, route.path, there))
		require.NoError(f, err)

		for prefix := range fuzzedPrefixTable {
			f.Add(uint8(i+prefix*len(table)), "", "", "", true, uint8(0), string(body))
		}

		for leaf, value := range fuzztest.Values() {
			if string(body) != "{}" {
				f.Add(uint8(i), "", "", "", false, uint8(leaf), value)
			}
		}

		for _, text := range []string{"not-a-uuid", "\x00", "a\nb", strings.Repeat("x", 300), "\xff", " ", "..", "a/b", "%", "1", "-1", "foo", "foo,bar"} {
			if parameterPattern.MatchString(route.path) {
				f.Add(uint8(i), text, "", "", true, uint8(0), string(body))
			}
		}

		for _, query := range nastyQueryV2Table {
			f.Add(uint8(i), "", query, "", true, uint8(0), "")
		}

		for _, header := range append(nastyHeaderTable, nastyHeaderV2Table...) {
			f.Add(uint8(i), "", "", header, true, uint8(0), string(body))
		}
	}

	f.Fuzz(func(t *testing.T, which uint8, parameter, query, headers string, whole bool, leaf uint8, text string) {
		h := at(h, t)

		if route := table[int(which)%len(table)]; route.method != http.MethodGet {
			h.engine.work.Wait()
			there.restore(h)
		}

		route := table[int(which)%len(table)]
		prefix := fuzzedPrefixTable[int(which)/len(table)%len(fuzzedPrefixTable)]

		path := prefix + strings.TrimPrefix(parameterPattern.ReplaceAllStringFunc(route.path, func(name string) string {
			if parameter != "" {
				return url.PathEscape(parameter)
			}
			return there.named(name)
		}), v2.Prefix)

		if query != "" {
			path += "?" + query
		}

		body := text
		if !whole {
			body = fuzztest.ReplaceLeaf(t, fullBodyV2(route.method, route.path, there), int(leaf), text)
		}

		h.fuzz(sql, route.method, path, "Content-Type: application/json\r\n"+headers, body)
	})
}

// fuzzedPrefixTable has the prefixes under which the routes are served.
var fuzzedPrefixTable = []string{v2.Prefix, "/accelerator/v2", "/v2.0"}

// fuzzed has what requests are about.
type fuzzed struct {
	accelerator        cyborg.Accelerator
	profile, attribute uuid.UUID
	arq                arqBody
}

// named is the value of a route's parameter.
func (f *fuzzed) named(parameter string) string {
	return map[string]uuid.UUID{
		"{profile}": f.profile, "{device}": f.accelerator.DeviceUUID, "{deployable}": f.accelerator.UUID, "{attribute}": f.attribute, "{arq}": f.arq.UUID,
	}[parameter].String()
}

// restore makes anew what an earlier request deleted, bound or disabled.
func (f *fuzzed) restore(h *harness) {
	h.t.Helper()
	h.do("POST", "/v2/devices/"+f.accelerator.DeviceUUID.String()+"/enable", nil).expect(http.StatusNoContent)

	for _, arq := range h.do("GET", requestsPath, nil).arqs(http.StatusOK) {
		if arq.UUID != f.arq.UUID || arq.State != cyborg.ARQInitial {
			h.do("DELETE", requestsPath+"/"+arq.UUID.String(), nil).expect(http.StatusNoContent)
			f.arq = arqBody{}
		}
	}

	if f.arq.UUID == uuid.Nil || h.do("GET", requestsPath+"/"+f.arq.UUID.String(), nil).status != http.StatusOK {
		f.arq = h.requests("two", 1)[0]
	}

	if f.profile == uuid.Nil || h.do("GET", "/v2/device_profiles/"+f.profile.String(), nil).status != http.StatusOK {
		f.profile = h.profile("p" + uuid.NewString()).UUID
	}

	if f.attribute == uuid.Nil || h.do("GET", "/v2/attributes/"+f.attribute.String(), nil).status != http.StatusOK {
		f.attribute = as[struct{ UUID uuid.UUID }](h.do("POST", "/v2/attributes",
			map[string]any{"deployable_id": f.accelerator.ID, "key": uuid.NewString(), "value": "red"}).expect(http.StatusCreated)).UUID
	}
}

// requireFault requires an error to have one of upstream's shapes, or that of
// Keystone's middleware.
func requireFault(t testing.TB, response *http.Response, body []byte, what string) {
	t.Helper()
	require.Equal(t, "application/json", response.Header.Get("Content-Type"), what)
	var shapes struct {
		Message string `json:"error_message"`
		Error   struct{ Message string }
	}
	require.NoError(t, json.Unmarshal(body, &shapes), what)

	if response.StatusCode == http.StatusUnauthorized {
		fuzztest.RequireSanitized(t, shapes.Error.Message)
		return
	}

	require.NotEmpty(t, shapes.Message, what)
	if !strings.HasPrefix(shapes.Message, "{") {
		fuzztest.RequireSanitized(t, strings.ReplaceAll(shapes.Message, "\n", " "))
		return
	}

	var fault struct{ Faultcode, Faultstring string }
	require.NoError(t, json.Unmarshal([]byte(shapes.Message), &fault), what)
	require.NotEmpty(t, fault.Faultstring, what)
	fuzztest.RequireSanitized(t, fault.Faultstring)
}

// fullBodyV2 is a body with every member that a route knows, or an empty
// object.
func fullBodyV2(method, path string, there *fuzzed) any {
	switch method + " " + strings.TrimPrefix(path, "/v2") {
	case "POST /device_profiles":
		return []any{map[string]any{
			"name": "bar", "description": "some text", "uuid": uuid.Max.String(), "groups": []any{
				map[string]any{"resources:FPGA": "1", "trait:CUSTOM_A": "required", "accel:function_id": "x"}, map[string]any{"resources:CUSTOM_X": 2},
			},
		}}
	case "POST /attributes":
		return map[string]any{"deployable_id": fmt.Sprint(there.accelerator.ID), "key": "trait7", "value": "CUSTOM_X"}
	case "POST /accelerator_requests":
		return map[string]any{"device_profile_name": "two", "device_profile_group_id": "0", "image_uuid": nil}
	case "PATCH /accelerator_requests", "PATCH /accelerator_requests/{arq}":
		return toBind("h1", there.accelerator.ProviderUUID, uuid.Max, there.arq)
	case "PATCH /deployables/{deployable}/program":
		return []any{map[string]any{"path": "/program", "op": "replace", "value": []any{map[string]any{"image_uuid": imageUUID}}}}
	}
	return map[string]any{}
}

var (
	nastyQueryV2Table = []string{
		"name=%zz", "name=", "name=a%00", "name=,", "name=" + strings.Repeat("n,", 300), "limit=0", "limit=-1", "limit=99999999999999999999",
		"limit=1&limit=2", "marker=x", "marker=" + uuid.Nil.String(), "marker=" + uuid.Max.String(), "sort_key=uuid", "sort_key=id%3B--", "sort_dir=x",
		"sort_key=name&sort_dir=desc&limit=1", "filters=abc", "filters.field=limit", "filters.field=limit&filters.value=1",
		"filters.field=marker&filters.value=x", "filters.field=sort_key&filters.value=%ff", "filters.value=1", "type=GPU&vendor=0x&hostname=%ff",
		"vendor=0xfffff", "type=", "device_id=-1", "device_id=99999999999", "deployable_id=1e3", "deployable_id=9223372036854775808",
		"key=", "key=%00", "value=", "value=,,", "value=foo,foo", "value=" + uuid.Nil.String(), "colour=red", "a;b=c",
		"instance=x", "instance=" + uuid.Max.String() + "&bind_state=resolved", "bind_state=foo", "state=Bound,x", "project_id=%00",
		"arqs=x", "arqs=,", "arqs=" + uuid.Max.String(), "arqs=" + uuid.Nil.String() + "&instance=" + uuid.Nil.String(),
		"device_profile_name=two&hostname=h1&sort_key=state&limit=1",
	}
	nastyHeaderV2Table = []string{
		"OpenStack-API-Version: accelerator 2.2", "OpenStack-API-Version: accelerator 9.9", "OpenStack-API-Version: \xff", "OpenStack-API-Version: ",
		"OpenStack-API-Version: accelerator 99999999999999999999.1", "OpenStack-API-Version: accelerator latest, accelerator 2.0",
		"X-Auth-Token: x", "X-Service-Token: \xff", "Accept: text/html", "Accept: \xff", "Content-Type: application/json; charset=latin1",
	}
)
