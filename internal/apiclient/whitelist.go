package apiclient

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
)

// Whitelisted is an accelerator in the whitelist of a host's Nova.
type Whitelisted struct {
	Accelerator uuid.UUID       `json:"accelerator"`
	Name        string          `json:"name"`
	Addresses   []string        `json:"addresses"`
	Spec        cyborg.NovaSpec `json:"spec"`
}

// WhitelistDevice names what to put into a whitelist: an accelerator by UUID,
// name or PCI address, or all of a device by the device's UUID.
type WhitelistDevice struct {
	Device string          `json:"device"`
	Spec   cyborg.NovaSpec `json:"spec"`
}

// Whitelist lists the accelerators in the whitelist of a host's Nova.
func (c *Client) Whitelist(ctx context.Context, host string) ([]Whitelisted, error) {
	return whole[Whitelisted](ctx, c, hostPath(host)+"/nova-whitelist", "device", nil)
}

// PreviewWhitelist returns what would change if these devices replaced those in
// the whitelist. It changes nothing.
func (c *Client) PreviewWhitelist(ctx context.Context, host string, devices []WhitelistDevice) (preview cyborg.WhitelistPreview, err error) {
	answer, err := c.change(ctx, request{
		method: http.MethodPost, path: hostPath(host) + "/nova-whitelist", body: map[string]any{"devices": notNil(devices)},
	})
	if err != nil {
		return preview, err
	}
	return preview, answer.decode(&preview)
}

// ApplyWhitelist replaces the devices in the whitelist of a host's Nova. With
// force it also replaces a file that somebody else wrote or changed.
func (c *Client) ApplyWhitelist(ctx context.Context, host string, devices []WhitelistDevice, force bool, options ...Option) (Answer, error) {
	body := map[string]any{"devices": notNil(devices), "apply": true}

	if force {
		body["force"] = true
	}

	return c.change(ctx, request{method: http.MethodPost, path: hostPath(host) + "/nova-whitelist", body: body, options: options})
}

// notNil makes an empty whitelist an empty list in JSON and not null: the API
// demands the list, so that none is left out by mistake.
func notNil(devices []WhitelistDevice) []WhitelistDevice {
	if devices == nil {
		return []WhitelistDevice{}
	}
	return devices
}
