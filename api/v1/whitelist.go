package v1

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// whitelistedView is an accelerator in the whitelist of its host's Nova.
type whitelistedView struct {
	Accelerator uuid.UUID       `json:"accelerator"`
	Name        string          `json:"name"`
	Addresses   []string        `json:"addresses"`
	Spec        cyborg.NovaSpec `json:"spec"`
}

// showWhitelist lists what Cyborg has added to the whitelist of a host's Nova,
// as far as the records know.
func (a *API) showWhitelist(w http.ResponseWriter, r *http.Request) error {
	host, err := a.host(r)
	if err != nil {
		return err
	}

	accelerators, err := a.store.Whitelist(r.Context(), host.Name)
	if err != nil {
		return err
	}

	devices := each(accelerators, func(acc cyborg.Accelerator) whitelistedView {
		view := whitelistedView{Accelerator: acc.UUID, Name: acc.Name, Addresses: []string{}, Spec: *acc.Nova}
		for _, h := range acc.Handles {
			if address, isPCI := h.PCIAddress(); isPCI {
				view.Addresses = append(view.Addresses, address.String())
			}
		}
		return view
	})

	return writeList(w, r, "device", devices, 0, nil)
}

// whitelist sets what the host's Nova may give to instances by itself. Without
// apply, the answer only shows what would change.
func (a *API) whitelist(w http.ResponseWriter, r *http.Request) error {
	o, err := a.body(w, r)
	if err != nil {
		return err
	}

	named := o.whitelist("devices")
	apply, force := o.boolean("apply"), o.boolean("force")
	if err := o.done(); err != nil {
		return err
	}

	choose := func() (cyborg.Host, cyborg.WhitelistRequest, error) {
		request := cyborg.WhitelistRequest{Force: force != nil && *force}

		host, err := a.host(r)
		if err != nil {
			return host, request, err
		}

		request.Host = host.Name
		request.Devices, err = a.whitelistDevices(r.Context(), host.Name, named)

		return host, request, err
	}

	if apply == nil || !*apply {
		host, request, err := choose()
		if err != nil {
			return err
		}
		return a.previewWhitelist(w, r, host, request)
	}

	return a.operate(w, r, work{
		choose: func(context.Context) (cyborg.Request, error) {
			_, request, err := choose()
			return request, err
		},
		body: o.canonical,
		done: func(w http.ResponseWriter, _ *http.Request, op cyborg.Operation) error {
			return web.WriteJSON(w, http.StatusOK, viewOperation(op))
		},
	})
}

// previewWhitelist asks the host what the whitelist would change, and changes
// nothing.
func (a *API) previewWhitelist(w http.ResponseWriter, r *http.Request, host cyborg.Host, request cyborg.WhitelistRequest) error {
	prefer, err := readPreference(r, a.config.SyncWait)
	if err != nil {
		return err
	}

	work, err := a.store.PlanWhitelist(r.Context(), request)
	if err != nil {
		return err
	}

	preview, err := ask(r.Context(), a, host, prefer, func(ctx context.Context, host string, wait time.Duration) (cyborg.WhitelistPreview, error) {
		return a.engine.PreviewWhitelist(ctx, host, work, wait)
	})
	if err != nil {
		return err
	}

	preview.Notes = notNil(preview.Notes)
	return web.WriteJSON(w, http.StatusOK, preview)
}

// namedDevice is a device as the caller names it, with what Nova should know
// about it.
type namedDevice struct {
	name string
	spec cyborg.NovaSpec
}

// maxWhitelisted is how many devices a whitelist may have; no host has as many
// PCI functions.
const maxWhitelisted = 4096

// whitelist reads the devices of a whitelist. The list must be given even if it
// is empty, because an empty list removes all devices.
func (o *object) whitelist(name string) []namedDevice {
	value, ok := o.take(name)
	if !ok {
		o.missing(name)
		return nil
	}

	list, ok := value.([]any)
	if !ok || len(list) > maxWhitelisted {
		o.fail("%s is %s, not a list of up to %d objects", o.at(name), web.Describe(value), maxWhitelisted)
		return nil
	}

	out := make([]namedDevice, 0, len(list))
	for i, item := range list {
		place := o.at(name) + "[" + strconv.Itoa(i) + "]"

		properties, ok := item.(map[string]any)
		if !ok {
			o.fail("%s is %s, not an object", place, web.Describe(item))
			return nil
		}

		d := &object{path: place, unread: properties, failure: o.failure}
		device := namedDevice{name: d.name("device", maxName), spec: d.novaSpec("spec")}

		if device.name == "" {
			d.missing("device")
		}
		_ = d.done() // o returns the error

		out = append(out, device)

	}
	return out
}

// novaSpec reads what Nova should know about a device; the zero spec if it is
// absent.
func (o *object) novaSpec(name string) cyborg.NovaSpec {
	o = o.object(name)
	if o == nil {
		return cyborg.NovaSpec{}
	}

	spec := cyborg.NovaSpec{
		PhysicalNetwork: o.name("physical_network", maxName),
		ResourceClass:   o.name("resource_class", maxName),
		Traits:          o.names("traits"),
		Trusted:         o.boolean("trusted"),
		RemoteManaged:   o.boolean("remote_managed"),
		Managed:         o.boolean("managed"),
		LiveMigratable:  o.boolean("live_migratable"),
	}

	if err := spec.Check(); err != nil {
		o.fail("%s: %s", o.path, err)
	}
	_ = o.done() // the outer object returns the error

	return spec
}

// names reads a list of texts; nil if it is absent.
func (o *object) names(name string) []string {
	value, ok := o.take(name)
	if !ok {
		return nil
	}

	list, ok := value.([]any)
	if !ok {
		o.fail("%s is %s, not a list of texts", o.at(name), web.Describe(value))
	}

	var out []string
	for _, item := range list {
		text, ok := item.(string)
		if !ok {
			o.fail("%s has %s, not a text", o.at(name), web.Describe(item))
		}

		out = append(out, text)
	}
	return out
}

// whitelistDevices finds the accelerators that the caller names on the host: by
// UUID, name or PCI address, or by the UUID of a device, which means all
// accelerators on it. The error is of kind ErrNotFound for an unknown name, and
// ErrInvalid for an accelerator that is named twice.
func (a *API) whitelistDevices(ctx context.Context, host string, named []namedDevice) ([]cyborg.WhitelistDevice, error) {
	out := []cyborg.WhitelistDevice{}
	if len(named) == 0 {
		return out, nil
	}

	accelerators, err := a.acceleratorsOn(ctx, host)
	if err != nil {
		return nil, err
	}

	byName := map[string][]uuid.UUID{}
	for i := range accelerators {
		for _, name := range namesOf(&accelerators[i]) {
			byName[name] = append(byName[name], accelerators[i].UUID)
		}
	}

	for _, d := range named {
		found := byName[d.name]
		if address, err := cyborg.ParsePCIAddress(d.name); err == nil {
			found = byName[address.String()]
		}

		if len(found) == 0 {
			return nil, cyborg.Errorf(cyborg.ErrNotFound, "host %s has no device %q", host, web.Shorten(d.name)).
				WithHint("Name an accelerator by UUID, name or PCI address, or a device by UUID; cyborg accelerator list --host %s has them.", host)
		}

		for _, id := range found {
			if slices.ContainsFunc(out, func(other cyborg.WhitelistDevice) bool { return other.Accelerator == id }) {
				return nil, cyborg.Errorf(cyborg.ErrInvalid, "device %q is named twice", web.Shorten(d.name))
			}
			out = append(out, cyborg.WhitelistDevice{Accelerator: id, Spec: d.spec})
		}
	}

	return out, nil
}

// namesOf returns the names by which an accelerator can be whitelisted, each
// once.
func namesOf(acc *cyborg.Accelerator) []string {
	names := []string{acc.UUID.String(), acc.DeviceUUID.String(), acc.Name}
	for _, h := range acc.Handles {
		if address, isPCI := h.PCIAddress(); isPCI {
			names = append(names, address.String())
		}
	}

	slices.Sort(names)
	return slices.Compact(names)
}

// acceleratorsOn reads all accelerators of a host, page by page.
func (a *API) acceleratorsOn(ctx context.Context, host string) ([]cyborg.Accelerator, error) {
	var out []cyborg.Accelerator
	page := db.Page{Limit: maxLimit}
	for {
		some, err := a.store.Accelerators(ctx, db.AcceleratorFilter{Hosts: []string{host}}, page)
		if err != nil {
			return nil, err
		}

		out = append(out, some...)
		if len(some) < page.Limit {
			return out, nil
		}

		page.Marker = some[len(some)-1].UUID.String()
	}
}
