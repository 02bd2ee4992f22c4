package v1

import (
	"maps"
	"net/http"
	"net/url"
	"strconv"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/redact"
)

// The views are what the API shows of the domain's types: what is recorded, and
// what is computed from it. Lists are never null.

// acceleratorView is an accelerator with its computed status and holders.
type acceleratorView struct {
	cyborg.Accelerator
	Status  cyborg.Status   `json:"status"`
	Holders []cyborg.Holder `json:"holders"`
}

func viewAccelerator(acc cyborg.Accelerator) acceleratorView {
	acc.Attributes = notNil(acc.Attributes)
	acc.Handles = notNil(acc.Handles)
	if acc.Specs.Capability == nil {
		acc.Specs.Capability = cyborg.JSONObject{}
	}

	return acceleratorView{Accelerator: acc, Status: acc.Status(), Holders: acc.Holders()}
}

// deviceView is a device, with its accelerators where they were read.
type deviceView struct {
	cyborg.Device
	Accelerators []acceleratorView `json:"accelerators,omitempty"`
}

func viewDevice(device cyborg.Device) deviceView {
	return deviceView{Device: device, Accelerators: each(device.Deployables, viewAccelerator)}
}

// operationView is an operation with the ID of its workflow.
type operationView struct {
	cyborg.Operation

	// WorkflowID is the ID under which Temporal has the operation's run.
	WorkflowID string `json:"workflow_id"`
}

// viewOperation shows an operation. What would let readers fetch its image is
// left out; see cyborg.ShowSource.
func viewOperation(op cyborg.Operation) operationView {
	op.Steps = notNil(op.Steps)
	op.Subjects = notNil(op.Subjects)
	op.Input = showInput(op.Input)

	return operationView{Operation: op, WorkflowID: op.WorkflowID()}
}

// viewBackend returns the backend without null lists, and with options as
// readers may see them.
func viewBackend(backend cyborg.Backend) cyborg.Backend {
	backend.Services = notNil(backend.Services)
	backend.Options = redact.Options(backend.Options)
	return backend
}

// viewHost returns the host without null lists.
func viewHost(host cyborg.Host) cyborg.Host {
	host.Backends = each(host.Backends, viewBackend)
	return host
}

// viewHostUsage returns the usage without null lists.
func viewHostUsage(usage cyborg.HostUsage) cyborg.HostUsage {
	usage.Deployables = each(usage.Deployables, func(d cyborg.DeployableUsage) cyborg.DeployableUsage {
		d.Handles = notNil(d.Handles)
		return d
	})
	return usage
}

// each converts every value of a list. The result is never nil.
func each[T, V any](values []T, view func(T) V) []V {
	out := make([]V, len(values))
	for i, value := range values {
		out[i] = view(value)
	}

	return out
}

// notNil returns an empty list for nil, which JSON would show as null.
func notNil[T any](values []T) []T {
	if values == nil {
		return []T{}
	}
	return values
}

// link is a link from a page of a list to the next page.
type link struct {
	Rel  string `json:"rel"`
	Href string `json:"href"`
}

// writeList answers with a list under its key. If the page is full, it adds a
// link to the next page, whose marker is that of the last item. A limit of 0
// means a list without pages.
func writeList[T any](w http.ResponseWriter, r *http.Request, key string, items []T, limit int, marker func(T) string) error {
	body := map[string]any{key: notNil(items)}

	if limit > 0 && len(items) >= limit {
		values := r.URL.Query()
		values.Set("limit", strconv.Itoa(limit))
		values.Set("marker", marker(items[len(items)-1]))
		next := url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: values.Encode()}
		body[key+"_links"] = []link{{Rel: "next", Href: next.String()}}
	}

	return web.WriteJSON(w, http.StatusOK, body)
}

func acceleratorLocation(id string) string  { return Prefix + "/accelerators/" + id }
func operationLocation(id uuid.UUID) string { return Prefix + "/operations/" + id.String() }
func driverLocation(host, backend string) string {
	return Prefix + "/hosts/" + url.PathEscape(host) + "/drivers/" + url.PathEscape(backend)
}

// showInput returns the input of an operation as readers may see it. It changes
// a copy, because the caller may still need the whole input.
func showInput(input cyborg.JSONObject) cyborg.JSONObject {
	shown := cyborg.JSONObject{}
	maps.Copy(shown, input)

	if options, ok := shown["options"].(map[string]any); ok {
		shown["options"] = redact.Options(options)
	}

	image, ok := shown["image"].(map[string]any)
	if !ok {
		return shown
	}

	if source, ok := image["source"].(string); ok {
		image = maps.Clone(image)
		image["source"] = cyborg.ShowSource(source)
		shown["image"] = image
	}

	return shown
}
