package apiclient

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// acceleratorsPath is the collection of accelerators.
const acceleratorsPath = "/v1/accelerators"

// Accelerator is an accelerator as the API returns it: the record, and what the
// API computes from it.
type Accelerator struct {
	cyborg.Accelerator

	// Status is computed from the record; see docs/concepts.md for its order of
	// precedence.
	Status  cyborg.Status   `json:"status"`
	Holders []cyborg.Holder `json:"holders"`
}

// AcceleratorFilter selects accelerators. An empty field selects all; an
// accelerator must match every field, and one value of each field.
type AcceleratorFilter struct {
	Prefix      string // how the UUID begins, eight characters or more
	Names       []string
	Hosts       []string
	Drivers     []string
	Backends    []string
	DeviceTypes []cyborg.DeviceType

	Statuses []cyborg.Status

	Device uuid.UUID

	Holder cyborg.Holder // who holds a handle of it

	// Near is the number of a NUMA node on the one host of Hosts, or an accelerator by UUID,
	// name or, on that host, PCI address: then the nearest accelerators come first.
	Near string
}

// Accelerators lists the accelerators that match the filter, page by page as
// the caller consumes them.
func (c *Client) Accelerators(ctx context.Context, filter AcceleratorFilter, page Page) iter.Seq2[Accelerator, error] {
	q := query{}
	q.add("uuid_prefix", filter.Prefix)
	q.add("name", filter.Names...)
	q.add("host", filter.Hosts...)
	q.add("driver", filter.Drivers...)
	q.add("backend", filter.Backends...)
	q.add("device_type", asStrings(filter.DeviceTypes)...)
	q.add("status", asStrings(filter.Statuses)...)
	q.addUUID("device", filter.Device)
	q.add("near", filter.Near)

	switch filter.Holder.Kind {
	case cyborg.HolderInstance:
		q.add("instance", filter.Holder.ID)
	case cyborg.HolderHost:
		q.add("holder_host", filter.Holder.ID)
	case cyborg.HolderService:
		q.add("holder_service", filter.Holder.ID)
	}

	return list(ctx, c, acceleratorsPath, "accelerator", url.Values(q), page, func(a Accelerator) string { return a.UUID.String() })
}

// Accelerator reads one accelerator, and the ETag of its specs for IfMatch. An
// unknown UUID is ErrNotFound.
func (c *Client) Accelerator(ctx context.Context, id uuid.UUID) (accelerator Accelerator, etag string, err error) {
	answer, err := c.get(ctx, acceleratorPath(id), nil, &accelerator)
	return accelerator, answer.ETag, err
}

// Provisioning is the body of Provision.
type Provisioning struct {
	Name string `json:"name,omitempty"`

	// UUID chooses the accelerator. Without it, the API takes the accelerator that
	// has Name already, or else the best match of Specs and Host.
	UUID  uuid.UUID         `json:"uuid,omitzero"`
	Specs cyborg.SpecsPatch `json:"acc_specs,omitzero"`
	Host  string            `json:"host,omitempty"`
}

// Provision takes an accelerator into service under a name.
func (c *Client) Provision(ctx context.Context, what Provisioning, options ...Option) (Answer, error) {
	return c.change(ctx, request{method: http.MethodPost, path: acceleratorsPath, body: what, options: options})
}

// MakeReady takes an accelerator into service under its present name.
func (c *Client) MakeReady(ctx context.Context, id uuid.UUID, options ...Option) (Answer, error) {
	return c.change(ctx, request{method: http.MethodPost, path: acceleratorPath(id) + "/ready", options: options})
}

// Retire takes an accelerator out of service.
func (c *Client) Retire(ctx context.Context, id uuid.UUID, options ...Option) (Answer, error) {
	return c.change(ctx, request{method: http.MethodPost, path: acceleratorPath(id) + "/retire", options: options})
}

// Cleaning is the body of Clean. At most one of the two may be set; without both, each
// handle is cleaned as it needs.
type Cleaning struct {
	// Method is used where it is stronger than what a handle needs.
	Method cyborg.CleanMethod `json:"method,omitempty"`
	// Declared is why the handles are clean without their host.
	Declared string `json:"declared,omitempty"`
}

// Clean has the unclean handles of an accelerator cleaned now, or declares them clean.
func (c *Client) Clean(ctx context.Context, id uuid.UUID, what Cleaning, options ...Option) (Answer, error) {
	return c.change(ctx, request{method: http.MethodPost, path: acceleratorPath(id) + "/clean", body: what, options: options})
}

// SetSpecs changes those specs of an accelerator that the patch sets. With
// IfMatch it fails with ErrChanged where somebody else has changed them.
func (c *Client) SetSpecs(ctx context.Context, id uuid.UUID, specs cyborg.SpecsPatch, options ...Option) (Accelerator, error) {
	return c.changeAccelerator(ctx, request{
		method: http.MethodPut, path: acceleratorPath(id) + "/acc_specs",
		body: map[string]any{"acc_specs": specs}, options: options,
	})
}

// Attach gives a free handle of an accelerator to a holder; the zero holder
// means the accelerator's own host.
func (c *Client) Attach(ctx context.Context, id uuid.UUID, to cyborg.Holder, options ...Option) (Answer, error) {
	return c.AttachWith(ctx, id, to, nil, options...)
}

// AttachWith is Attach of a handle for which parameters are chosen.
func (c *Client) AttachWith(ctx context.Context, id uuid.UUID, to cyborg.Holder, parameters map[string]string, options ...Option) (Answer, error) {
	body := map[string]any{}
	if to != (cyborg.Holder{}) {
		body[string(to.Kind)] = to.ID
	}
	if len(parameters) > 0 { // a server of an earlier release does not know them
		body["parameters"] = parameters
	}
	return c.change(ctx, request{method: http.MethodPut, path: acceleratorPath(id), body: body, options: options})
}

// Detach takes handles of an accelerator back: those of one holder, or those of
// all holders for the zero holder.
func (c *Client) Detach(ctx context.Context, id uuid.UUID, from cyborg.Holder, options ...Option) (Answer, error) {
	q := query{}
	q.add(string(from.Kind), from.ID)
	return c.change(ctx, request{method: http.MethodDelete, path: acceleratorPath(id), query: url.Values(q), options: options})
}

// ForceDetach frees handles of an accelerator in the records alone, for a host
// that cannot take them back.
func (c *Client) ForceDetach(ctx context.Context, id uuid.UUID, from cyborg.Holder, options ...Option) (Answer, error) {
	q := query{}
	q.add(string(from.Kind), from.ID)
	q.add("force", "true")
	return c.change(ctx, request{method: http.MethodDelete, path: acceleratorPath(id), query: url.Values(q), options: options})
}

// Program loads an image into an accelerator.
func (c *Client) Program(ctx context.Context, id uuid.UUID, image cyborg.Image, options ...Option) (Answer, error) {
	return c.change(ctx, request{
		method: http.MethodPatch, path: acceleratorPath(id) + "/program",
		body: map[string]any{"image": image}, options: options,
	})
}

// Maintaining is the body of Maintain and MaintainDevice. At most one of Until
// and For may be set; without both, the maintenance lasts until Enable.
type Maintaining struct {
	Reason string    `json:"reason"`
	Until  time.Time `json:"until,omitzero"`
	// For is the length as a Go duration, such as "2h30m". The server adds it to
	// its own clock.
	For string `json:"for,omitempty"`
}

// Maintain keeps new work off an accelerator for a while.
func (c *Client) Maintain(ctx context.Context, id uuid.UUID, what Maintaining, options ...Option) (Accelerator, error) {
	return c.changeAccelerator(ctx, request{
		method: http.MethodPost, path: acceleratorPath(id) + "/maintain", body: what, options: options,
	})
}

// Enable ends the maintenance of an accelerator.
func (c *Client) Enable(ctx context.Context, id uuid.UUID, options ...Option) (Accelerator, error) {
	return c.changeAccelerator(ctx, request{method: http.MethodPost, path: acceleratorPath(id) + "/enable", options: options})
}

// AcceleratorUsage asks the host of an accelerator for its present use.
func (c *Client) AcceleratorUsage(ctx context.Context, id uuid.UUID) (usage cyborg.HostUsage, err error) {
	_, err = c.get(ctx, acceleratorPath(id)+"/usage", nil, &usage)
	return usage, err
}

// History lists the events of an accelerator, oldest first.
func (c *Client) History(ctx context.Context, id uuid.UUID, page Page) iter.Seq2[cyborg.Event, error] {
	return history(ctx, c, acceleratorPath(id), page)
}

// history lists the events of the resource at the path.
func history(ctx context.Context, c *Client, path string, page Page) iter.Seq2[cyborg.Event, error] {
	return list(ctx, c, path+"/history", "event", nil, page, func(e cyborg.Event) string { return e.Cursor.String() })
}

// changeAccelerator sends a change whose answer is the accelerator.
func (c *Client) changeAccelerator(ctx context.Context, req request) (accelerator Accelerator, err error) {
	answer, err := c.change(ctx, req)
	if err != nil {
		return accelerator, err
	}
	return accelerator, answer.decode(&accelerator)
}

// acceleratorPath is the resource of one accelerator.
func acceleratorPath(id uuid.UUID) string { return acceleratorsPath + "/" + id.String() }
