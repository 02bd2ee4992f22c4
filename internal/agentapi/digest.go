package agentapi

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/cyborg-project/cyborg"
)

// Digest returns a fingerprint of the content, in hexadecimal. It does not
// depend on the order of the lists: otherwise a driver that lists the same
// things in another order each time would make every report a change.
func (c Content) Digest() string {
	return c.DigestOf(DeviceDigest)
}

// DigestOf is Digest for a caller that knows the digests of the devices
// already, and so need not compute them again.
func (c Content) DigestOf(device func(*cyborg.DeviceReport) string) string {
	type backend struct {
		BackendReport
		Devices []string `json:"devices"` // digests
	}

	c = c.inOrder()

	var backends []backend
	for _, b := range c.Backends {
		short := backend{BackendReport: b}
		for i := range b.Devices {
			short.Devices = append(short.Devices, device(&b.Devices[i]))
		}

		backends = append(backends, short)
	}

	return digest(struct {
		Backends    []backend    `json:"backends"`
		Attachments []Attachment `json:"attachments"`

		Whitelist *cyborg.WhitelistFile `json:"whitelist,omitempty"`
		Facts     *cyborg.HostFacts     `json:"facts,omitempty"`
	}{backends, c.Attachments, c.Whitelist, c.Facts})
}

// DeviceDigest returns a fingerprint of the device, in hexadecimal. It does not
// depend on the order of the lists.
func DeviceDigest(d *cyborg.DeviceReport) string {
	inOrder := *d
	inOrder.Deployables = sortedDeployables(d.Deployables)
	return digest(inOrder)
}

// digest is the SHA-256 of a value's JSON.
func digest(value any) string {
	text, err := json.Marshal(value)
	if err != nil { // impossible: only a channel or a function in Options cannot be marshalled, and Options come from JSON
		panic(fmt.Sprintf("inventory content does not marshal: %v", err))
	}

	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// inOrder returns a copy with sorted lists, except for those within devices.
// Entries of the same name, which no host should report, keep their order,
// because the first one counts.
func (c Content) inOrder() Content {
	c.Backends = sorted(c.Backends, func(a, b BackendReport) int { return cmp.Compare(a.Name, b.Name) })
	for i := range c.Backends {
		b := &c.Backends[i]
		b.Services = sorted(b.Services, cmp.Compare)
		b.Devices = sorted(b.Devices, func(a, b cyborg.DeviceReport) int { return cmp.Compare(a.Identity, b.Identity) })
	}

	c.Attachments = sorted(c.Attachments, func(a, b Attachment) int {
		return cmp.Or(cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.Deployable, b.Deployable), cmp.Compare(a.Handle, b.Handle))
	})

	return c
}

// sortedDeployables returns a sorted copy, with the lists in each deployable
// sorted as well.
func sortedDeployables(list []cyborg.DeployableReport) []cyborg.DeployableReport {
	list = sorted(list, func(a, b cyborg.DeployableReport) int { return cmp.Compare(a.Name, b.Name) })

	for i := range list {
		d := &list[i]
		d.Attributes = sorted(d.Attributes, func(a, b cyborg.Attribute) int {
			return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Value, b.Value))
		})

		d.Handles = sorted(d.Handles, func(a, b cyborg.HandleReport) int {
			return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Identity, b.Identity))
		})
	}

	return list
}

// sorted returns a sorted copy. An empty list becomes nil, so that both have
// the same JSON.
func sorted[T any](list []T, compare func(a, b T) int) []T {
	if len(list) == 0 {
		return nil
	}

	list = slices.Clone(list)
	slices.SortStableFunc(list, compare)
	return list
}
