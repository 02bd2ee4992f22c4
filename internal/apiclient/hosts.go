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

// The collections of hosts and devices.
const (
	hostsPath   = "/v1/hosts"
	devicesPath = "/v1/devices"
)

// Hosts lists hosts.
func (c *Client) Hosts(ctx context.Context, page Page) iter.Seq2[cyborg.Host, error] {
	return list(ctx, c, hostsPath, "host", nil, page, func(h cyborg.Host) string { return h.Name })
}

// Host reads one host.
func (c *Client) Host(ctx context.Context, name string) (host cyborg.Host, err error) {
	_, err = c.get(ctx, hostPath(name), nil, &host)
	return host, err
}

// HostHistory lists what happened on a host, oldest first.
func (c *Client) HostHistory(ctx context.Context, name string, page Page) iter.Seq2[cyborg.Event, error] {
	return history(ctx, c, hostPath(name), page)
}

// ForgetHost deletes a host that is silent and whose accelerators nobody holds.
func (c *Client) ForgetHost(ctx context.Context, name string) error {
	_, err := c.change(ctx, request{method: http.MethodDelete, path: hostPath(name)})
	return err
}

// Invitation is what a host's agent needs to enroll.
type Invitation struct {
	Host      string    `json:"host"`
	Token     string    `json:"token"` // good once
	ExpiresAt time.Time `json:"expires_at"`
	Pin       string    `json:"pin"`              // of the authority that signs certificates of hosts
	Server    string    `json:"server,omitempty"` // URL of an agent endpoint, where the server knows one
}

// EnrollHost makes a token with which a host's agent gets its certificate. The
// host need not be known.
func (c *Client) EnrollHost(ctx context.Context, name string) (invitation Invitation, err error) {
	answer, err := c.change(ctx, request{method: http.MethodPost, path: hostPath(name) + "/enroll"})
	if err != nil {
		return invitation, err
	}
	return invitation, answer.decode(&invitation)
}

// RevokeHost makes the certificates that a host has got until now count no more.
func (c *Client) RevokeHost(ctx context.Context, name, reason string) error {
	body := map[string]any{}
	if reason != "" {
		body["reason"] = reason
	}
	_, err := c.change(ctx, request{method: http.MethodPost, path: hostPath(name) + "/revoke", body: body})
	return err
}

// Rescue has Nova reboot the instances of a host that may have lost their
// accelerators when the host booted.
func (c *Client) Rescue(ctx context.Context, host string, options ...Option) (Answer, error) {
	return c.change(ctx, request{method: http.MethodPost, path: hostPath(host) + "/rescue", options: options})
}

// HostServices lists the acceleration services that each backend of a host
// offers.
func (c *Client) HostServices(ctx context.Context, name string) ([]cyborg.Backend, error) {
	return whole[cyborg.Backend](ctx, c, hostPath(name)+"/services", "service", nil)
}

// Discovery is what a host found when it was asked to look at its hardware.
type Discovery struct {
	Host       string `json:"host"`
	Sequence   int64  `json:"sequence"`
	Generation int64  `json:"generation"`
	// Devices counts the devices by backend.
	Devices map[string]int `json:"devices"`
	Errors  []string       `json:"errors,omitempty"`
}

// Discover asks a host to look at its hardware now. When it returns, what the
// host found has been recorded.
func (c *Client) Discover(ctx context.Context, host string) (found Discovery, err error) {
	answer, err := c.change(ctx, request{method: http.MethodPost, path: hostPath(host) + "/discover"})
	if err != nil {
		return found, err
	}
	return found, answer.decode(&found)
}

// Services lists the system's own processes: agents, conductors and APIs.
func (c *Client) Services(ctx context.Context, page Page) iter.Seq2[cyborg.Service, error] {
	return list(ctx, c, "/v1/services", "service", nil, page, cyborg.Service.Key)
}

// Drift is a difference between OpenStack and the records, as the API returns
// it.
type Drift struct {
	cyborg.Drift

	Repaired bool `json:"repaired"`
}

// DriftFilter selects differences; an empty field selects all.
type DriftFilter struct {
	Hosts   []string
	Classes []cyborg.DriftClass

	// Open excludes differences that have been repaired.
	Open bool
}

// Drift lists the differences between OpenStack and the records.
func (c *Client) Drift(ctx context.Context, filter DriftFilter, page Page) iter.Seq2[Drift, error] {
	q := query{}
	q.add("host", filter.Hosts...)
	q.add("class", asStrings(filter.Classes)...)
	if filter.Open {
		q.add("repaired", "false")
	}

	return list(ctx, c, "/v1/drift", "drift", url.Values(q), page, func(d Drift) string { return d.Key() })
}

// Drivers lists the backends of these hosts, or those of all hosts where none
// is named.
func (c *Client) Drivers(ctx context.Context, hosts []string, page Page) iter.Seq2[cyborg.Backend, error] {
	query := url.Values{}
	if len(hosts) > 0 {
		query["host"] = hosts
	}

	return list(ctx, c, "/v1/drivers", "driver", query, page, cyborg.Backend.Key)
}

// Driver reads one backend of a host.
func (c *Client) Driver(ctx context.Context, host, backend string) (found cyborg.Backend, err error) {
	_, err = c.get(ctx, driverPath(host, backend), nil, &found)
	return found, err
}

// InstallDriver enables a backend of a driver that the host's agent has
// compiled in. An empty driver means the one of the backend's name.
func (c *Client) InstallDriver(ctx context.Context, host, backend, driver string, settings cyborg.JSONObject, options ...Option) (Answer, error) {
	body := map[string]any{"name": backend}
	if driver != "" {
		body["driver"] = driver
	}

	if len(settings) > 0 {
		body["options"] = settings
	}

	return c.change(ctx, request{method: http.MethodPost, path: hostPath(host) + "/drivers", body: body, options: options})
}

// UpdateDriver replaces all options of a backend.
func (c *Client) UpdateDriver(ctx context.Context, host, backend string, settings cyborg.JSONObject, options ...Option) (Answer, error) {
	return c.change(ctx, request{
		method: http.MethodPut, path: driverPath(host, backend),
		body: map[string]any{"options": settings}, options: options,
	})
}

// UninstallDriver disables a backend. The API rejects it while one of the
// backend's devices is in use.
func (c *Client) UninstallDriver(ctx context.Context, host, backend string, options ...Option) (Answer, error) {
	return c.change(ctx, request{method: http.MethodDelete, path: driverPath(host, backend), options: options})
}

// Device is a physical card as the API returns it.
type Device struct {
	cyborg.Device

	// Accelerators is set for a single device; lists omit it.
	Accelerators []Accelerator `json:"accelerators,omitempty"`
}

// DeviceFilter selects devices; an empty field selects all.
type DeviceFilter struct {
	Prefix  string // how the UUID begins, eight characters or more
	Hosts   []string
	Types   []cyborg.DeviceType
	Vendors []string
}

// Devices lists the devices that match the filter.
func (c *Client) Devices(ctx context.Context, filter DeviceFilter, page Page) iter.Seq2[Device, error] {
	q := query{}
	q.add("uuid_prefix", filter.Prefix)
	q.add("host", filter.Hosts...)
	q.add("type", asStrings(filter.Types)...)
	q.add("vendor_id", filter.Vendors...)

	return list(ctx, c, devicesPath, "device", url.Values(q), page, func(d Device) string { return d.UUID.String() })
}

// Device reads one device with its accelerators.
func (c *Client) Device(ctx context.Context, id uuid.UUID) (device Device, err error) {
	_, err = c.get(ctx, devicePath(id), nil, &device)
	return device, err
}

// DeviceHistory lists the events of a device and its accelerators, oldest
// first.
func (c *Client) DeviceHistory(ctx context.Context, id uuid.UUID, page Page) iter.Seq2[cyborg.Event, error] {
	return history(ctx, c, devicePath(id), page)
}

// PartitionDevice divides a device into the parts of a layout, or makes it whole, for the
// empty one.
func (c *Client) PartitionDevice(ctx context.Context, id uuid.UUID, layout cyborg.Layout, options ...Option) (Answer, error) {
	return c.change(ctx, request{
		method: http.MethodPost, path: devicePath(id) + "/partition",
		body: map[string]any{"layout": layout.Normal()}, options: options,
	})
}

// MaintainDevice puts all accelerators of a device into maintenance, or none
// where one cannot be.
func (c *Client) MaintainDevice(ctx context.Context, id uuid.UUID, what Maintaining, options ...Option) (Device, error) {
	return c.changeDevice(ctx, request{method: http.MethodPost, path: devicePath(id) + "/maintain", body: what, options: options})
}

// EnableDevice ends the maintenance of all accelerators of a device.
func (c *Client) EnableDevice(ctx context.Context, id uuid.UUID, options ...Option) (Device, error) {
	return c.changeDevice(ctx, request{method: http.MethodPost, path: devicePath(id) + "/enable", options: options})
}

// changeDevice sends a change whose answer is the device.
func (c *Client) changeDevice(ctx context.Context, req request) (device Device, err error) {
	answer, err := c.change(ctx, req)
	if err != nil {
		return device, err
	}
	return device, answer.decode(&device)
}

// Usage asks the hosts (all where none is named) for the present use of their
// accelerators. A host that does not answer has its error in the census.
func (c *Client) Usage(ctx context.Context, hosts ...string) (census cyborg.Census, err error) {
	q := query{}
	q.add("host", hosts...)
	_, err = c.get(ctx, "/v1/usage", url.Values(q), &census)
	return census, err
}

// devicePath is the resource of one device.
func devicePath(id uuid.UUID) string { return devicesPath + "/" + id.String() }

// hostPath is the resource of one host, whose name may need escaping.
func hostPath(name string) string { return hostsPath + "/" + url.PathEscape(name) }

// driverPath is the resource of one backend.
func driverPath(host, backend string) string {
	return hostPath(host) + "/drivers/" + url.PathEscape(backend)
}
