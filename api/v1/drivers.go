package v1

import (
	"context"
	"net/http"
	"slices"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// listDrivers lists the backends of the named hosts, or of all hosts.
func (a *API) listDrivers(w http.ResponseWriter, r *http.Request) error {
	q := readQuery(r, "host", "limit", "marker")
	hosts, page := q.texts("host"), q.page()
	if q.err != nil {
		return q.err
	}

	backends, err := a.store.BackendsOf(r.Context(), hosts, page)
	if err != nil {
		return err
	}

	return writeList(w, r, "driver", each(backends, viewBackend), page.Limit, cyborg.Backend.Key)
}

// hostDrivers lists the backends of one host, without pages: a host has few.
func (a *API) hostDrivers(w http.ResponseWriter, r *http.Request) error {
	host, err := a.host(r)
	if err != nil {
		return err
	}

	backends, err := a.store.Backends(r.Context(), host.Name)
	if err != nil {
		return err
	}

	return writeList(w, r, "driver", each(backends, viewBackend), 0, nil)
}

// showDriver answers with one backend of a host.
func (a *API) showDriver(w http.ResponseWriter, r *http.Request) error {
	host, err := a.host(r)
	if err != nil {
		return err
	}

	name, err := pathText(r, "backend")
	if err != nil {
		return err
	}

	backends, err := a.store.Backends(r.Context(), host.Name)
	if err != nil {
		return err
	}

	i := slices.IndexFunc(backends, func(b cyborg.Backend) bool { return b.Name == name })
	if i < 0 {
		return cyborg.Errorf(cyborg.ErrNotFound, "host %s has no backend %q", host.Name, web.Shorten(name))
	}

	return web.WriteJSON(w, http.StatusOK, viewBackend(backends[i]))
}

// installDriver enables a backend on a host, for a driver that the host's agent
// knows. A backend without a name of its own has its driver's name.
func (a *API) installDriver(w http.ResponseWriter, r *http.Request) error {
	o, err := a.body(w, r)
	if err != nil {
		return err
	}

	request := cyborg.ConfigureRequest{
		Action:  cyborg.ConfigureInstall,
		Backend: o.name("name", maxName),
		Driver:  o.name("driver", maxName),
		Options: o.tree("options"),
	}

	if request.Backend == "" {
		request.Backend = request.Driver
	}
	if request.Backend == "" {
		o.missing("driver")
	}

	if err := o.done(); err != nil {
		return err
	}

	return a.configure(w, r, request, o.canonical, http.StatusCreated)
}

// updateDriver changes a backend's options. The body may repeat the driver, but
// not change it.
func (a *API) updateDriver(w http.ResponseWriter, r *http.Request) error {
	o, err := a.body(w, r)
	if err != nil {
		return err
	}

	request := cyborg.ConfigureRequest{
		Action: cyborg.ConfigureUpdate, Driver: o.name("driver", maxName), Options: o.tree("options"),
	}
	if request.Options == nil {
		o.fail("options are missing")
	}

	if err := o.done(); err != nil {
		return err
	}

	request.Backend, err = pathText(r, "backend")
	if err != nil {
		return err
	}

	return a.configure(w, r, request, o.canonical, http.StatusOK)
}

// uninstallDriver disables a backend. The operation fails if one of the
// backend's devices is in use.
func (a *API) uninstallDriver(w http.ResponseWriter, r *http.Request) error {
	if err := a.emptyBody(w, r); err != nil {
		return err
	}

	backend, err := pathText(r, "backend")
	if err != nil {
		return err
	}

	request := cyborg.ConfigureRequest{Action: cyborg.ConfigureUninstall, Backend: backend}
	return a.configure(w, r, request, "", http.StatusNoContent)
}

// configure runs a configure operation on the host in the path and answers with
// the operation, whose result says what the agent saw. The records change
// later, with the host's next report.
func (a *API) configure(w http.ResponseWriter, r *http.Request, request cyborg.ConfigureRequest, body string, success int) error {
	choose := func(context.Context) (cyborg.Request, error) {
		host, err := a.host(r)
		request.Host = host.Name
		return request, err
	}

	return a.operate(w, r, work{
		choose: choose, body: body,
		done: func(w http.ResponseWriter, _ *http.Request, op cyborg.Operation) error {
			if success == http.StatusNoContent {
				w.WriteHeader(success)
				return nil
			}
			w.Header().Set("Location", driverLocation(op.Host, request.Backend))
			return web.WriteJSON(w, success, viewOperation(op))
		},
	})
}
