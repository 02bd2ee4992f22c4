package apiclient

import (
	"context"
	"iter"
	"net/http"
	"net/url"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

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

// HostServices lists what each backend of a host offers.
func (c *Client) HostServices(ctx context.Context, name string) ([]cyborg.Backend, error) {
	return whole[cyborg.Backend](ctx, c, hostPath(name)+"/services", "service", nil)
}

// Discovery is what a host found when it was asked to look.
type Discovery struct {
	Host       string         `json:"host"`
	Sequence   int64          `json:"sequence"`
	Generation int64          `json:"generation"`
	Devices    map[string]int `json:"devices"` // by backend
	Errors     []string       `json:"errors,omitempty"`
}

// Discover asks a host to look at its hardware now; what it finds is recorded when this returns.
func (c *Client) Discover(ctx context.Context, host string) (found Discovery, err error) {
	answer, err := c.change(ctx, request{method: http.MethodPost, path: hostPath(host) + "/discover"})
	if err != nil {
		return found, err
	}
	return found, answer.decode(&found)
}

// Services lists the running processes of the system.
func (c *Client) Services(ctx context.Context) ([]cyborg.Service, error) {
	return whole[cyborg.Service](ctx, c, "/v1/services", "service", nil)
}

// Drivers lists the backends of a host; of all hosts where host is empty.
func (c *Client) Drivers(ctx context.Context, host string) ([]cyborg.Backend, error) {
	if host != "" {
		return whole[cyborg.Backend](ctx, c, hostPath(host)+"/drivers", "driver", nil)
	}
	return whole[cyborg.Backend](ctx, c, "/v1/drivers", "driver", nil)
}

// InstallDriver enables a backend of a compiled-in driver on a host.
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

// UpdateDriver changes the options of a backend.
func (c *Client) UpdateDriver(ctx context.Context, host, backend string, settings cyborg.JSONObject, options ...Option) (Answer, error) {
	return c.change(ctx, request{
		method: http.MethodPut, path: driverPath(host, backend),
		body: map[string]any{"options": settings}, options: options,
	})
}

// UninstallDriver disables a backend; the API refuses it while one of its devices is in use.
func (c *Client) UninstallDriver(ctx context.Context, host, backend string, options ...Option) (Answer, error) {
	return c.change(ctx, request{method: http.MethodDelete, path: driverPath(host, backend), options: options})
}

// Device is a physical card as the API shows it.
type Device struct {
	cyborg.Device

	Accelerators []Accelerator `json:"accelerators,omitempty"`
}

// DeviceFilter chooses devices; empty fields choose all.
type DeviceFilter struct {
	Hosts   []string
	Types   []cyborg.DeviceType
	Vendors []string
}

// Devices lists devices.
func (c *Client) Devices(ctx context.Context, filter DeviceFilter, page Page) iter.Seq2[Device, error] {
	q := query{}
	q.add("host", filter.Hosts...)
	q.add("type", asStrings(filter.Types)...)
	q.add("vendor_id", filter.Vendors...)
	return list(ctx, c, devicesPath, "device", url.Values(q), page, func(d Device) string { return d.UUID.String() })
}

// Device reads one device with its accelerators.
func (c *Client) Device(ctx context.Context, id uuid.UUID) (device Device, err error) {
	_, err = c.get(ctx, devicesPath+"/"+id.String(), nil, &device)
	return device, err
}

// Usage is a census: the hosts (all where none is named) are asked now.
func (c *Client) Usage(ctx context.Context, hosts ...string) (census cyborg.Census, err error) {
	q := query{}
	q.add("host", hosts...)
	_, err = c.get(ctx, "/v1/usage", url.Values(q), &census)
	return census, err
}

func hostPath(name string) string { return hostsPath + "/" + url.PathEscape(name) }

func driverPath(host, backend string) string {
	return hostPath(host) + "/drivers/" + url.PathEscape(backend)
}
