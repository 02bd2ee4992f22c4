package v1

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// What the API shows of the domain's types: what is recorded, with what is computed from it, and lists that are never null.

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

type deviceView struct {
	cyborg.Device
	Accelerators []acceleratorView `json:"accelerators,omitempty"`
}

func viewDevice(device cyborg.Device) deviceView {
	return deviceView{Device: device, Accelerators: each(device.Deployables, viewAccelerator)}
}

type operationView struct {
	cyborg.Operation
	// WorkflowID finds the operation's run in Temporal.
	WorkflowID string `json:"workflow_id"`
}

func viewOperation(op cyborg.Operation) operationView {
	op.Steps = notNil(op.Steps)
	op.Subjects = notNil(op.Subjects)
	if op.Input == nil {
		op.Input = cyborg.JSONObject{}
	}
	return operationView{Operation: op, WorkflowID: op.WorkflowID()}
}

func viewBackend(backend cyborg.Backend) cyborg.Backend {
	backend.Services = notNil(backend.Services)
	return backend
}

func viewHost(host cyborg.Host) cyborg.Host {
	host.Backends = each(host.Backends, viewBackend)
	return host
}

func viewHostUsage(usage cyborg.HostUsage) cyborg.HostUsage {
	usage.Deployables = each(usage.Deployables, func(d cyborg.DeployableUsage) cyborg.DeployableUsage {
		d.Handles = notNil(d.Handles)
		return d
	})
	return usage
}

func each[T, V any](values []T, view func(T) V) []V {
	out := make([]V, len(values))
	for i, value := range values {
		out[i] = view(value)
	}
	return out
}

func notNil[T any](values []T) []T {
	if values == nil {
		return []T{}
	}
	return values
}

// link is a link of a list to its next page.
type link struct {
	Rel  string `json:"rel"`
	Href string `json:"href"`
}

// writeList answers with a list under its key, and with the link to the next page where this one is full.
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
