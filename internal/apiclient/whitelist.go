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

// WhitelistDevice names a device: an accelerator by UUID, name or PCI address, or a device by UUID.
type WhitelistDevice struct {
	Device string          `json:"device"`
	Spec   cyborg.NovaSpec `json:"spec"`
}

// Whitelist lists what the whitelist of a host's Nova has.
func (c *Client) Whitelist(ctx context.Context, host string) ([]Whitelisted, error) {
	return whole[Whitelisted](ctx, c, hostPath(host)+"/nova-whitelist", "device", nil)
}

// PreviewWhitelist says what these devices, in place of those that the whitelist has, would change.
func (c *Client) PreviewWhitelist(ctx context.Context, host string, devices []WhitelistDevice) (preview cyborg.WhitelistPreview, err error) {
	answer, err := c.change(ctx, request{
		method: http.MethodPost, path: hostPath(host) + "/nova-whitelist", body: map[string]any{"devices": whitelisting(devices)},
	})
	if err != nil {
		return preview, err
	}
	return preview, answer.decode(&preview)
}

// ApplyWhitelist makes these devices all that the whitelist of a host's Nova has; force replaces a file that somebody else wrote.
func (c *Client) ApplyWhitelist(ctx context.Context, host string, devices []WhitelistDevice, force bool, options ...Option) (Answer, error) {
	body := map[string]any{"devices": whitelisting(devices), "apply": true}
	if force {
		body["force"] = true
	}
	return c.change(ctx, request{method: http.MethodPost, path: hostPath(host) + "/nova-whitelist", body: body, options: options})
}

// whitelisting says also that there are none: the API wants to hear that.
func whitelisting(devices []WhitelistDevice) []WhitelistDevice {
	if devices == nil {
		return []WhitelistDevice{}
	}
	return devices
}
