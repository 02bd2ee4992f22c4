package nova

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"

	"github.com/cyborg-project/cyborg"
)

// Instance is what Nova says of one. What our user may not see is empty.
type Instance struct {
	ID      string `json:"id"`
	Project string `json:"tenant_id"`
	Status  string `json:"status"` // ACTIVE, SHUTOFF, ERROR, SHELVED_OFFLOADED, UNKNOWN while its cell is down, …
	// Task is what is being done with it; empty where that is nothing.
	Task string `json:"OS-EXT-STS:task_state"`
	// Node and Compute are the names of the host that it is on, and of the nova-compute there; empty where it is on none.
	Node    string  `json:"OS-EXT-SRV-ATTR:hypervisor_hostname"`
	Compute Compute `json:"OS-EXT-SRV-ATTR:host"`
	// HostStatus is UP where the nova-compute of its host is heard.
	HostStatus string `json:"host_status"`
}

// Compute is the name of a nova-compute, empty for none.
type Compute struct {
	Name string
	Told bool // Nova says it; of an instance that is on no host, too
}

// UnmarshalJSON reads a name, or null.
func (c *Compute) UnmarshalJSON(text []byte) error {
	c.Told = true
	return json.Unmarshal(text, &c.Name)
}

// On says whether it is on that host, as far as is known: one that is on none is not elsewhere.
func (i *Instance) On(host string) bool {
	return i.Node == "" && i.Compute.Name == "" || slices.Contains([]string{i.Node, i.Compute.Name}, host)
}

// onNone says that it is certainly on no host: so it has no guest that could have an accelerator. What Nova does not show, as of
// a cell that is down, is not certain.
func (i *Instance) onNone() bool { return i.Compute.Told && i.Compute.Name == "" && i.Node == "" }

// Scheduled says that it is on no host, and Nova is looking for one: it is built, anew after that failed, or unshelved. Whatever
// requests it had before are of no use to it: Nova has just made others (nova/conductor/manager.py, build_instances,
// unshelve_instance).
func (i *Instance) Scheduled() bool {
	return i.onNone() && (i.Task == "scheduling" || i.Task == "unshelving")
}

// Stranded says that it is on no host, and nothing is done with it: building or unshelving it has failed. If it is ever put on a
// host, then with requests that Nova makes for that.
func (i *Instance) Stranded() bool {
	return i.onNone() && i.Task == "" && (i.Status == "ERROR" || i.Status == "SHELVED_OFFLOADED")
}

// Project is to which project an instance belongs. Errors are those of Instance.
func (n *Nova) Project(ctx context.Context, instance uuid.UUID) (string, error) {
	found, err := n.Instance(ctx, instance)
	return found.Project, err
}

// Scheduled says whether an instance is on no host, and Nova is looking for one. Errors are those of Instance.
func (n *Nova) Scheduled(ctx context.Context, instance uuid.UUID) (bool, error) {
	found, err := n.Instance(ctx, instance)
	return found.Scheduled(), err
}

// Stranded says whether an instance is on no host, and nothing is done with it. Errors are those of Instance.
func (n *Nova) Stranded(ctx context.Context, instance uuid.UUID) (bool, error) {
	found, err := n.Instance(ctx, instance)
	return found.Stranded(), err
}

// Instance reads an instance. The error is of kind ErrNotFound where there is certainly no such instance, and Unavailable where
// nobody can tell.
//
// Nova tells users who may not see an instance that there is none. So its list of all projects is asked, which it refuses
// to those, and then for the instance itself, because lists leave out the instances of a cell that is down.
func (n *Nova) Instance(ctx context.Context, instance uuid.UUID) (Instance, error) {
	client, err := n.client(ctx)
	if err != nil {
		return Instance{}, err
	}
	var list struct {
		Servers []Instance `json:"servers"`
	}
	query := url.Values{"all_tenants": {"1"}, "uuid": {instance.String()}}
	if _, err := client.Get(ctx, client.ServiceURL("servers", "detail")+"?"+query.Encode(), &list, nil); err != nil { //nolint:bodyclose // gophercloud closes what it decodes
		return Instance{}, unavailable(err)
	}
	for _, s := range list.Servers {
		if s.ID == instance.String() {
			return s, nil
		}
	}
	var one struct {
		Server Instance `json:"server"`
	}
	_, err = client.Get(ctx, client.ServiceURL("servers", instance.String()), &one, nil) //nolint:bodyclose // likewise
	if gophercloud.ResponseCodeIs(err, http.StatusNotFound) {
		return Instance{}, noInstance(instance)
	}
	if err != nil {
		return Instance{}, unavailable(err)
	}
	return one.Server, nil
}

func noInstance(id uuid.UUID) error {
	return cyborg.Errorf(cyborg.ErrNotFound, "there is no instance %s", id)
}
