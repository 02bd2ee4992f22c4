package v1

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/drain"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/db"
)

// censusGrace is how much later than its deadline the answer of a census may
// arrive.
const censusGrace = 5 * time.Second

// usage asks the named hosts, or all hosts, how their accelerators are used at
// this moment. Silent hosts are not asked.
func (a *API) usage(w http.ResponseWriter, r *http.Request) error {
	q := readQuery(r, "host")
	names := slices.Compact(slices.Sorted(slices.Values(q.texts("host"))))

	prefer, err := readPreference(r, a.config.SyncWait)
	if err != nil {
		q.fail(err)
	}

	if q.err != nil {
		return q.err
	}

	hosts, err := a.hostsOf(r, names)
	if err != nil {
		return err
	}

	census, err := a.census(r, hosts, nil, prefer)
	if err != nil {
		return err
	}

	return web.WriteJSON(w, http.StatusOK, census)
}

// acceleratorUsage asks the accelerator's host how the accelerator is used at
// this moment.
func (a *API) acceleratorUsage(w http.ResponseWriter, r *http.Request) error {
	id, err := pathUUID(r, "uuid")
	if err != nil {
		return err
	}

	if q := readQuery(r); q.err != nil {
		return q.err
	}

	prefer, err := readPreference(r, a.config.SyncWait)
	if err != nil {
		return err
	}

	accelerator, err := a.store.Accelerator(r.Context(), id)
	if err != nil {
		return err
	}

	hosts, err := a.hostsOf(r, []string{accelerator.Host})
	if err != nil {
		return err
	}

	census, err := a.census(r, hosts, []string{accelerator.LocalName}, prefer)
	if err != nil {
		return err
	}

	return web.WriteJSON(w, http.StatusOK, census.Hosts[0])
}

// hostsOf reads the named hosts, or all hosts if none is named.
func (a *API) hostsOf(r *http.Request, names []string) ([]cyborg.Host, error) {
	var hosts []cyborg.Host
	for _, name := range names {
		host, err := a.store.Host(r.Context(), name)
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, host)
	}

	if len(names) > 0 {
		return hosts, nil
	}

	page := db.Page{Limit: maxLimit}
	for {
		some, err := a.store.Hosts(r.Context(), page)
		if err != nil {
			return nil, err
		}

		hosts = append(hosts, some...)
		if len(some) < page.Limit {
			return hosts, nil
		}
		page.Marker = some[len(some)-1].Name
	}
}

// census asks the hosts that are not silent, and merges the answers with the
// names of the accelerators in the records. The answer is partial if a host is
// silent or does not answer in time.
func (a *API) census(r *http.Request, hosts []cyborg.Host, deployables []string, prefer preference) (cyborg.Census, error) {
	out := cyborg.Census{Hosts: []cyborg.HostUsage{}}
	var asked []string
	for _, host := range hosts {
		if host.Silent {
			out.Partial = true
			out.Hosts = append(out.Hosts, viewHostUsage(cyborg.HostUsage{Host: host.Name, Error: silentError(host).Error()}))
			continue
		}
		asked = append(asked, host.Name)
	}

	if len(asked) == 0 {
		return out, nil
	}

	if err := a.operations.Available(r.Context()); err != nil {
		return out, err
	}

	names, err := a.store.AcceleratorNames(r.Context(), asked)
	if err != nil {
		return out, err
	}

	// A census counts as one operation in flight, however many hosts it asks.
	release, err := a.operations.TakePlace(r.Context())
	if err != nil {
		return out, err
	}
	defer release()

	deadline := a.config.CensusWait
	if prefer.waited {
		deadline = max(prefer.wait, time.Second)
	}

	ctx, cancel := drain.Within(r.Context(), deadline+censusGrace)
	defer cancel()

	answer, err := a.engine.Census(ctx, asked, deployables, deadline)
	if err != nil {
		return out, err
	}

	out.Partial = out.Partial || answer.Partial
	out.Hosts = append(out.Hosts, each(answer.Hosts, viewHostUsage)...)
	slices.SortFunc(out.Hosts, func(a, b cyborg.HostUsage) int { return strings.Compare(a.Host, b.Host) })
	nameUsage(out.Hosts, names)

	return out, nil
}

// nameUsage adds to each deployable the UUID and the name of its accelerator.
// Hosts cannot say them: they know only the names that their drivers give.
func nameUsage(hosts []cyborg.HostUsage, names []db.AcceleratorName) {
	type key struct{ host, deployable string }
	recorded := make(map[key]db.AcceleratorName, len(names))
	for _, name := range names {
		recorded[key{name.Host, name.LocalName}] = name
	}

	for _, host := range hosts {
		for i := range host.Deployables {
			d := &host.Deployables[i]
			name := recorded[key{host.Host, d.Deployable}]
			d.Accelerator, d.Name = name.UUID, name.Name
		}
	}
}
