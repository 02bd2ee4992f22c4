package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
)

// Whatever a caller sends, the answer is a problem that says what is wrong, and
// never has a status of 5xx.
func TestBadInput(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	op := as[map[string][]struct{ ID uuid.UUID }](h.do("GET", "/v1/operations", nil).expect(http.StatusOK))["operation"][0].ID

	deep := strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 40)
	bodies := map[string]string{
		"not JSON":          `{"name": `,
		"half a word":       `nul`,
		"two values":        `{} {}`,
		"a list":            `[1, 2]`,
		"a text":            `"name"`,
		"null":              `null`,
		"unknown property":  `{"colour": "red"}`,
		"unknown, nested":   `{"acc_specs": {"colour": "red"}}`,
		"given twice":       `{"name": "a", "name": "b"}`,
		"NUL":               `{"name": "a\u0000b"}`,
		"NUL in a property": `{"a\u0000b": 1}`,
		"deep":              deep,
		"deep in a tree":    `{"acc_specs": {"acc_capability": ` + deep + `}}`,
		"wrong types":       `{"name": 1, "uuid": 2, "acc_specs": 3, "host": 4, "instance": 5, "image": 6, "reason": 7, "options": 8}`,
		"wrong type inside": `{"acc_specs": {"num": "two"}, "image": {"source": []}, "reason": {}, "options": []}`,
		"number too large":  `{"acc_specs": {"num": 1e999}}`,
	}

	for _, route := range routes(t) {
		path := "/v1" + strings.ReplaceAll(fill(route.Pattern, accelerator), "{id}", op.String())
		if strings.Contains(route.Pattern, "{id}") {
			path = "/v1" + strings.ReplaceAll(route.Pattern, "{id}", op.String())
		}

		if route.Method != http.MethodGet {
			for name, body := range bodies {
				t.Run(route.Method+" "+route.Pattern+"/"+name, func(t *testing.T) {
					t.Parallel()
					at(h, t).do(route.Method, path, body).problem(cyborg.ErrInvalid)
				})
			}

			t.Run(route.Method+" "+route.Pattern+"/too large", func(t *testing.T) {
				t.Parallel()
				at(h, t).do(route.Method, path, `{"name": "`+strings.Repeat("a", 1<<20)+`"}`).problem(cyborg.ErrTooLarge)
			})
		}

		t.Run(route.Method+" "+route.Pattern+"/unknown parameter", func(t *testing.T) {
			t.Parallel()
			problem := at(h, t).do(route.Method, path+"?colour=red", validBody(route.Method, route.Pattern)).problem(cyborg.ErrInvalid)
			require.Contains(t, problem.Detail, "colour")
			require.Contains(t, problem.Detail, "red")
		})

		t.Run(route.Method+" "+route.Pattern+"/bad query", func(t *testing.T) {
			t.Parallel()
			at(h, t).do(route.Method, path+"?host=%zz", validBody(route.Method, route.Pattern)).problem(cyborg.ErrInvalid)
		})

		if parameterPattern.MatchString(route.Pattern) {
			t.Run(route.Method+" "+route.Pattern+"/bad path", func(t *testing.T) {
				t.Parallel()
				for _, text := range []string{"not-a-uuid", "%00", "a%0ab", strings.Repeat("x", 300), "%ff", "%20"} {
					bad := "/v1" + parameterPattern.ReplaceAllString(route.Pattern, text)
					answer := at(h, t).do(route.Method, bad, validBody(route.Method, route.Pattern))
					require.Contains(t, []int{http.StatusBadRequest, http.StatusNotFound}, answer.status, answer.what)
				}
			})

			t.Run(route.Method+" "+route.Pattern+"/nobody there", func(t *testing.T) {
				t.Parallel()
				absent := "/v1" + parameterPattern.ReplaceAllString(route.Pattern, uuid.NewString())
				at(h, t).do(route.Method, absent, validBody(route.Method, route.Pattern)).problem(cyborg.ErrNotFound)
			})
		}
	}

	require.Equal(t, accelerator.SpecVersion, h.accelerator(accelerator.UUID).SpecVersion)
}

// manyKinds are the parts of a layout, of one kind more than there may be.
func manyKinds() string {
	parts := make([]string, cyborg.MaxPartKinds+1)
	for i := range parts {
		parts[i] = fmt.Sprintf(`"kind-%d": 1`, i)
	}
	return strings.Join(parts, ",")
}

// at is the harness for a subtest.
func at(h *harness, t testing.TB) *harness { //nolint:thelper // h is whose method it would be
	t.Helper()
	other := *h
	other.t = t
	return &other
}

// validBody is a body that the route accepts, or nil if it needs none.
func validBody(method, pattern string) any {
	switch method + " " + pattern {
	case "POST /accelerators", "POST /accelerators/{uuid}":
		return `{"name": "beta"}`
	case "PUT /accelerators/{uuid}/acc_specs":
		return `{"acc_specs": {"acc_type": "compression"}}`
	case "PATCH /accelerators/{uuid}/program":
		return `{"image": {"source": "a.bin"}}`
	case "POST /accelerators/{uuid}/maintain", "POST /devices/{uuid}/maintain":
		return `{"reason": "a new fan"}`
	case "POST /devices/{uuid}/partition":
		return `{"layout": {"vf": 4}}`
	case "POST /hosts/{host}/drivers":
		return `{"name": "more", "driver": "fake"}`
	case "POST /hosts/{host}/nova-whitelist":
		return `{"devices": []}`
	case "PUT /hosts/{host}/drivers/{backend}":
		return `{"options": {}}`
	}
	return nil
}

func TestBadParameters(t *testing.T) {
	t.Parallel()
	h := setup(t)
	id := uuid.NewString()

	for path, named := range map[string]string{
		"/v1/accelerators?limit=0":                                         "limit",
		"/v1/accelerators?limit=1001":                                      "1001",
		"/v1/accelerators?limit=ten":                                       "ten",
		"/v1/accelerators?limit=1&limit=2":                                 "limit",
		"/v1/accelerators?marker=x":                                        "marker",
		"/v1/accelerators?marker=" + id:                                    id,
		"/v1/accelerators?status=happy":                                    "happy",
		"/v1/accelerators?uuid=x":                                          "uuid",
		"/v1/accelerators?device=x":                                        "device",
		"/v1/accelerators?host=":                                           "host",
		"/v1/accelerators?host=a%00b":                                      "host",
		"/v1/accelerators?host=%ff":                                        "host",
		"/v1/accelerators?name=" + strings.Repeat("n", 256):                "255",
		"/v1/accelerators?instance=x":                                      "instance",
		"/v1/accelerators?holder_host=a&holder_service=b":                  "two holders",
		"/v1/accelerators?host=h" + strings.Repeat("&host=h", 500):         "500 values",
		"/v1/operations?kind=dance":                                        "dance",
		"/v1/operations?state=happy":                                       "happy",
		"/v1/operations?open=perhaps":                                      "perhaps",
		"/v1/operations?accelerator=x":                                     "accelerator",
		"/v1/operations?accelerator=" + id + "&device=" + id:               "exclude",
		"/v1/operations?marker=" + id:                                      id,
		"/v1/accelerators?uuid_prefix=12345":                               "12345",
		"/v1/accelerators?uuid_prefix=1234567x":                            "1234567x",
		"/v1/operations?id_prefix=" + id + "0":                             id + "0",
		"/v1/operations?id=x":                                              "id",
		"/v1/devices?uuid_prefix=123456789":                                "123456789",
		"/v1/devices?limit=-1":                                             "-1",
		"/v1/devices?marker=7":                                             "marker",
		"/v1/hosts?limit=x":                                                "limit",
		"/v1/events?after=yesterday":                                       "yesterday",
		"/v1/events?operation=x":                                           "operation",
		"/v1/events?accelerator=x":                                         "accelerator",
		"/v1/accelerators/" + id + "/history?marker=1":                     "1",
		"/v1/accelerators?limit=99999999999999999999999999999999999999999": "limit",
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			problem := at(h, t).do("GET", path, nil).problem(cyborg.ErrInvalid)
			require.Contains(t, problem.Detail+problem.Hint, named)
		})
	}

	problem := h.do("GET", "/v1/accelerators?colour=red", nil).problem(cyborg.ErrInvalid)
	require.Contains(t, problem.Hint, "device_type", "it lists the known ones")
}

func TestBadHeaders(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")

	h.do("PUT", path(accelerator), "{}", "Prefer", "wait=soon").problem(cyborg.ErrInvalid)
	h.do("PUT", path(accelerator), "{}", "Idempotency-Key", strings.Repeat("k", 256)).problem(cyborg.ErrInvalid)
	h.do("PUT", path(accelerator, "/acc_specs"), `{"acc_specs":{}}`, "If-Match", "12").problem(cyborg.ErrInvalid)
	h.do("PUT", path(accelerator, "/acc_specs"), `{"acc_specs":{}}`, "If-Match", `"x"`).problem(cyborg.ErrInvalid)
	h.do("GET", "/v1/events", nil, "Last-Event-ID", "x").problem(cyborg.ErrInvalid)
}

// The answer to a wrong body names the property and shows the value.
func TestMessagesNamePropertyAndValue(t *testing.T) {
	t.Parallel()
	h := setup(t)
	accelerator := h.ready("alpha")
	device := "/devices/" + accelerator.DeviceUUID.String()

	for name, test := range map[string]struct {
		method, path, body string
		wants              []string
	}{
		"unknown":            {"POST", "/accelerators", `{"name":"a","colour":"red"}`, []string{"colour", "red"}},
		"unknown inside":     {"POST", "/accelerators", `{"name":"a","acc_specs":{"nmu":2}}`, []string{"acc_specs.nmu", "2"}},
		"type":               {"POST", "/accelerators", `{"name":"a","acc_specs":{"num":"two"}}`, []string{"acc_specs.num", "two"}},
		"fraction":           {"POST", "/accelerators", `{"name":"a","acc_specs":{"num":1.5}}`, []string{"acc_specs.num", "1.5"}},
		"no name":            {"POST", "/accelerators", `{}`, []string{"name is missing"}},
		"a mistyped name":    {"POST", "/accelerators", `{"nam":"a"}`, []string{"nam is no property here"}},
		"a mistyped source":  {"PATCH", path(accelerator, "/program"), `{"image":{"sorce":"a"}}`, []string{"image.sorce is no property here"}},
		"empty name":         {"POST", "/accelerators", `{"name":" "}`, []string{"name", "empty"}},
		"control character":  {"POST", "/accelerators", `{"name":"a\nb"}`, []string{"name", "control"}},
		"uuid":               {"POST", "/accelerators", `{"name":"a","uuid":"x"}`, []string{"uuid", "x"}},
		"other uuid":         {"POST", path(accelerator), `{"name":"a","uuid":"` + uuid.Nil.String()[:35] + `1"}`, []string{"path says"}},
		"other uuid, attach": {"PUT", path(accelerator), `{"uuid":"` + uuid.Nil.String()[:35] + `1"}`, []string{"path says"}},
		"both kinds":         {"PUT", path(accelerator), `{"acc_specs":{},"host":"h1"}`, []string{"acc_specs", "host"}},
		"two holders":        {"PUT", path(accelerator), `{"service":"ovs","host":"h1"}`, []string{"ovs", "h1"}},
		"instance":           {"PUT", path(accelerator), `{"instance":"vm-7"}`, []string{"instance", "vm-7"}},
		"another host":       {"PUT", path(accelerator), `{"host":"h2"}`, []string{"h2", "h1"}},
		"the hardware's":     {"PUT", path(accelerator), `{"acc_specs":{"num":7}}`, []string{"acc_specs.num", "7", "2"}},
		"no specs":           {"PUT", path(accelerator, "/acc_specs"), `{}`, []string{"acc_specs"}},
		"no image":           {"PATCH", path(accelerator, "/program"), `{}`, []string{"image"}},
		"no source":          {"PATCH", path(accelerator, "/program"), `{"image":{}}`, []string{"image.source"}},
		"absolute":           {"PATCH", path(accelerator, "/program"), `{"image":{"source":"/etc/passwd"}}`, []string{"/etc/passwd"}},
		"upwards":            {"PATCH", path(accelerator, "/program"), `{"image":{"source":"file:a/../../b"}}`, []string{"a/../../b"}},
		"another scheme":     {"PATCH", path(accelerator, "/program"), `{"image":{"source":"ftp://a/b"}}`, []string{"ftp://a/b"}},
		"no checksum":        {"PATCH", path(accelerator, "/program"), `{"image":{"source":"https://a/b"}}`, []string{"sha256"}},
		"a password":         {"PATCH", path(accelerator, "/program"), `{"image":{"source":"https://u:p@a/b"}}`, []string{"password"}},
		"bad checksum":       {"PATCH", path(accelerator, "/program"), `{"image":{"source":"a","sha256":"12"}}`, []string{"image.sha256", "12"}},
		"no reason":          {"POST", path(accelerator, "/maintain"), `{}`, []string{"reason"}},
		"both ends":          {"POST", path(accelerator, "/maintain"), `{"reason":"r","for":"1h","until":"2099-01-01T00:00:00Z"}`, []string{"until", "for"}},
		"past":               {"POST", path(accelerator, "/maintain"), `{"reason":"r","until":"2001-01-01T00:00:00Z"}`, []string{"until", "2001"}},
		"year 10000 in UTC":  {"POST", path(accelerator, "/maintain"), `{"reason":"r","until":"9999-12-31T23:59:59-12:00"}`, []string{"until", "9999", "UTC"}},
		"year -1 in UTC":     {"POST", path(accelerator, "/maintain"), `{"reason":"r","until":"0000-01-01T00:00:00+12:00"}`, []string{"until", "UTC"}},
		"no time":            {"POST", path(accelerator, "/maintain"), `{"reason":"r","until":"tomorrow"}`, []string{"until", "tomorrow"}},
		"no time span":       {"POST", path(accelerator, "/maintain"), `{"reason":"r","for":"-1h"}`, []string{"for", "-1h"}},
		"no way to clean":    {"POST", path(accelerator, "/clean"), `{"method":"wipe"}`, []string{"method is", "wipe", "reset, scrub"}},
		"no cleaning":        {"POST", path(accelerator, "/clean"), `{"method":"none"}`, []string{"method is", "none", "reset, scrub"}},
		"a strange method":   {"POST", path(accelerator, "/clean"), `{"method":["scrub"]}`, []string{"method is a list"}},
		"nothing declared":   {"POST", path(accelerator, "/clean"), `{"declared":" "}`, []string{"declared is empty"}},
		"a long declaration": {"POST", path(accelerator, "/clean"), `{"declared":"` + strings.Repeat("ä", cyborg.LongestEvidence+1) + `"}`, []string{"declared is", "more than 400 characters"}},
		"declared in lines":  {"POST", path(accelerator, "/clean"), `{"declared":"a\nb"}`, []string{"declared is", "control"}},
		"both ways to clean": {"POST", path(accelerator, "/clean"), `{"method":"scrub","declared":"wiped by hand"}`, []string{"both method and declared"}},
		"no layout":          {"POST", device + "/partition", ``, []string{"layout is missing"}},
		"an empty request":   {"POST", device + "/partition", `{}`, []string{"layout is missing"}},
		"layout null":        {"POST", device + "/partition", `{"layout":null}`, []string{"layout is missing"}},
		"a mistyped layout":  {"POST", device + "/partition", `{"layuot":{}}`, []string{"layuot is no property here"}},
		"a layout of words":  {"POST", device + "/partition", `{"layout":"vf=4"}`, []string{"layout is the text", "vf=4", "not an object"}},
		"a list of parts":    {"POST", device + "/partition", `{"layout":["vf"]}`, []string{"layout is a list"}},
		"no part kind":       {"POST", device + "/partition", `{"layout":{"v f":4}}`, []string{"v f", "no name of a kind of parts"}},
		"a nameless part":    {"POST", device + "/partition", `{"layout":{"":4}}`, []string{`""`, "no name of a kind of parts"}},
		"a long part kind":   {"POST", device + "/partition", `{"layout":{"` + strings.Repeat("v", 64) + `":4}}`, []string{"no name of a kind of parts"}},
		"no part":            {"POST", device + "/partition", `{"layout":{"vf":0}}`, []string{"layout.vf is 0", "from 1 to 256", "{} is the whole device"}},
		"less than none":     {"POST", device + "/partition", `{"layout":{"vf":-4}}`, []string{"layout.vf is -4"}},
		"half a part":        {"POST", device + "/partition", `{"layout":{"vf":1.5}}`, []string{"layout.vf is 1.5"}},
		"parts as a text":    {"POST", device + "/partition", `{"layout":{"vf":"4"}}`, []string{"layout.vf is the text"}},
		"parts null":         {"POST", device + "/partition", `{"layout":{"vf":null}}`, []string{"layout.vf is null"}},
		"too many parts":     {"POST", device + "/partition", `{"layout":{"vf":257}}`, []string{"layout.vf is 257"}},
		"beyond all numbers": {"POST", device + "/partition", `{"layout":{"vf":99999999999999999999}}`, []string{"layout.vf is"}},
		"too many kinds":     {"POST", device + "/partition", `{"layout":{` + manyKinds() + `}}`, []string{"layout has 65 kinds of parts"}},
		"a layout beside it": {"POST", device + "/partition", `{"layout":{},"vf":4}`, []string{"vf is no property here"}},
		"no backend":         {"POST", "/hosts/h1/drivers", `{"options":{}}`, []string{"driver"}},
		"a large tree":       {"PUT", path(accelerator), `{"acc_specs":{"acc_capability":{"a":"` + strings.Repeat("x", 64<<10) + `"}}}`, []string{"acc_capability", "65536"}},
		"no options":         {"PUT", "/hosts/h1/drivers/fake", `{}`, []string{"options"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			problem := at(h, t).do(test.method, test.path, test.body).problem(cyborg.ErrInvalid)
			for _, want := range test.wants {
				require.Contains(t, problem.Detail, want)
			}
		})
	}
}
