package v1

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/drain"
	"github.com/cyborg-project/cyborg/api/web"
)

// listHosts lists the hosts, one page at a time.
func (a *API) listHosts(w http.ResponseWriter, r *http.Request) error {
	q := readQuery(r, "limit", "marker")
	page := q.page()
	if q.err != nil {
		return q.err
	}

	hosts, err := a.store.Hosts(r.Context(), page)
	if err != nil {
		return err
	}

	return writeList(w, r, "host", each(hosts, viewHost), page.Limit, func(h cyborg.Host) string { return h.Name })
}

// showHost answers with one host and its backends.
func (a *API) showHost(w http.ResponseWriter, r *http.Request) error {
	host, err := a.host(r)
	if err != nil {
		return err
	}

	return web.WriteJSON(w, http.StatusOK, viewHost(host))
}

// host reads the host in the path, for requests without parameters.
func (a *API) host(r *http.Request) (cyborg.Host, error) {
	name, err := pathText(r, "host")
	if err != nil {
		return cyborg.Host{}, err
	}

	if q := readQuery(r); q.err != nil {
		return cyborg.Host{}, q.err
	}

	return a.store.Host(r.Context(), name)
}

// forgetHost deletes a host that will not come back. A repeat is answered with
// 404.
func (a *API) forgetHost(w http.ResponseWriter, r *http.Request) error {
	if err := a.emptyBody(w, r); err != nil {
		return err
	}

	host, err := a.host(r)
	if err != nil {
		return err
	}

	if err := a.store.ForgetHost(r.Context(), host.Name, actor(r)); err != nil {
		return err
	}

	w.WriteHeader(http.StatusNoContent)
	return nil
}

// discoveryView is the answer of a discovery: the report in which the host sent
// what it saw.
type discoveryView struct {
	Host       string         `json:"host"`
	Sequence   int64          `json:"sequence"`
	Generation int64          `json:"generation"`
	Devices    map[string]int `json:"devices"` // how many, by backend
	Errors     []string       `json:"errors"`
}

// discover makes a host look at its hardware now. What the host saw is recorded
// before the answer is sent.
func (a *API) discover(w http.ResponseWriter, r *http.Request) error {
	if err := a.emptyBody(w, r); err != nil {
		return err
	}

	host, err := a.host(r)
	if err != nil {
		return err
	}

	prefer, err := readPreference(r, a.config.SyncWait)
	if err != nil {
		return err
	}

	found, err := ask(r.Context(), a, host, prefer, a.engine.Discover)
	if err != nil {
		return err
	}

	view := discoveryView{
		Host: host.Name, Sequence: found.Sequence, Generation: found.Generation,
		Devices: found.Devices, Errors: notNil(found.Errors),
	}

	if view.Devices == nil {
		view.Devices = map[string]int{}
	}

	return web.WriteJSON(w, http.StatusOK, view)
}

// ask asks a host a question that takes it a moment, and waits for the answer
// as long as the caller allows. It refuses at once if the host is silent or
// Temporal is away, and counts as an operation in flight.
func ask[T any](
	ctx context.Context, a *API, host cyborg.Host, prefer preference, question func(ctx context.Context, host string, wait time.Duration) (T, error),
) (answer T, err error) {
	if host.Silent || !host.Revoked.IsZero() {
		return answer, silentError(host)
	}

	if err := a.operations.Available(ctx); err != nil {
		return answer, err
	}

	release, err := a.operations.TakePlace(ctx)
	if err != nil {
		return answer, err
	}
	defer release()

	wait := cmp.Or(prefer.wait, time.Second)
	ctx, cancel := drain.Within(ctx, wait)
	defer cancel()

	return question(ctx, host.Name, wait)
}

// silentError is the error for a host whose agent has not been heard from, or is heard
// by nobody.
func silentError(host cyborg.Host) error {
	if !host.Revoked.IsZero() {
		return cyborg.Errorf(cyborg.ErrHostSilent, "host %s cannot be asked for anything: its certificates were revoked", host.Name).
			WithHint("Enroll it again, with cyborg host enroll %s.", host.Name)
	}
	return cyborg.Errorf(cyborg.ErrHostSilent, "the agent of host %s is %s", host.Name, cyborg.SilentSince(host.LastSeen)).
		WithHint("Look at cyborg-agent on %s.", host.Name)
}

// hostServiceView is what one backend of a host offers.
type hostServiceView struct {
	Host     string              `json:"host"`
	Name     string              `json:"name"`
	Driver   string              `json:"driver"`
	State    cyborg.BackendState `json:"state"`
	Error    string              `json:"error,omitempty"`
	Services []string            `json:"services"`
}

// hostServices lists what acceleration services each backend of a host offers.
func (a *API) hostServices(w http.ResponseWriter, r *http.Request) error {
	host, err := a.host(r)
	if err != nil {
		return err
	}

	backends, err := a.store.Backends(r.Context(), host.Name)
	if err != nil {
		return err
	}

	services := each(backends, func(b cyborg.Backend) hostServiceView {
		return hostServiceView{
			Host: b.Host, Name: b.Name, Driver: b.Driver, State: b.State, Error: b.Error, Services: notNil(b.Services),
		}
	})

	return writeList(w, r, "service", services, 0, nil)
}

// listServices lists the processes of the system, and whether each is alive.
func (a *API) listServices(w http.ResponseWriter, r *http.Request) error {
	q := readQuery(r, "limit", "marker")
	page := q.page()
	if q.err != nil {
		return q.err
	}

	services, err := a.store.Services(r.Context(), page)
	if err != nil {
		return err
	}

	return writeList(w, r, "service", services, page.Limit, cyborg.Service.Key)
}
