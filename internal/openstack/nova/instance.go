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

// Instance is what Nova returns about an instance. Fields that Nova does not
// show to our user are empty.
type Instance struct {
	ID      string `json:"id"`
	Project string `json:"tenant_id"`
	Status  string `json:"status"` // ACTIVE, SHUTOFF, ERROR, SHELVED_OFFLOADED, UNKNOWN while its cell is down, …

	// Task is the task in progress, such as "scheduling"; empty if there is none.
	Task string `json:"OS-EXT-STS:task_state"`

	// Node and Compute are the names of the instance's host and of the nova-compute
	// there; both are empty if the instance is on no host.
	Node    string  `json:"OS-EXT-SRV-ATTR:hypervisor_hostname"`
	Compute Compute `json:"OS-EXT-SRV-ATTR:host"`

	// HostStatus is UP if the nova-compute of the instance's host is alive.
	HostStatus string `json:"host_status"`
}

// Compute is the name of a nova-compute; an empty name means that the instance
// is on no host.
type Compute struct {
	Name string
	// Shown is true if Nova's answer has the member at all. Without it, an empty
	// name means nothing.
	Shown bool
}

// UnmarshalJSON reads a name, or null for none.
func (c *Compute) UnmarshalJSON(text []byte) error {
	c.Shown = true
	return json.Unmarshal(text, &c.Name)
}

// On reports whether the instance is on the host, as far as is known: an
// instance on no host is not on another one either, so the result is then true.
func (i *Instance) On(host string) bool {
	return i.Node == "" && i.Compute.Name == "" || slices.Contains([]string{i.Node, i.Compute.Name}, host)
}

// onNone reports whether the instance is certainly on no host, so that no guest
// can be using an accelerator. It is not certain when Nova shows no host at
// all, as for an instance of a cell that is down.
func (i *Instance) onNone() bool { return i.Compute.Shown && i.Compute.Name == "" && i.Node == "" }

// Scheduled reports whether the instance is on no host while Nova is looking
// for one: it is being built, built again after a failure, or unshelved.
// Requests that it had before are useless then, because Nova has just created
// new ones (nova/conductor/manager.py, build_instances, unshelve_instance).
func (i *Instance) Scheduled() bool {
	return i.onNone() && (i.Task == "scheduling" || i.Task == "unshelving")
}

// Stranded reports whether the instance is on no host and has no task in
// progress: building or unshelving it has failed. If Nova ever puts it on a
// host, it creates new requests for that.
func (i *Instance) Stranded() bool {
	return i.onNone() && i.Task == "" && (i.Status == "ERROR" || i.Status == "SHELVED_OFFLOADED")
}

// Project returns the id of the project that an instance belongs to. Errors are
// those of Instance.
func (n *Nova) Project(ctx context.Context, instance uuid.UUID) (string, error) {
	found, err := n.Instance(ctx, instance)
	return found.Project, err
}

// Scheduled reports whether an instance is on no host while Nova is looking for
// one. Errors are those of Instance.
func (n *Nova) Scheduled(ctx context.Context, instance uuid.UUID) (bool, error) {
	found, err := n.Instance(ctx, instance)
	return found.Scheduled(), err
}

// Stranded reports whether an instance is on no host and has no task in
// progress. Errors are those of Instance.
func (n *Nova) Stranded(ctx context.Context, instance uuid.UUID) (bool, error) {
	found, err := n.Instance(ctx, instance)
	return found.Stranded(), err
}

// Instance reads an instance. The error is of kind ErrNotFound if the instance
// certainly does not exist, and of kind ErrUnavailable if that cannot be
// determined.
//
// Nova answers 404 to a user who may not see an instance. The list of all
// projects comes first because Nova refuses it to such users, so that their 404
// is never mistaken for a deleted instance. The instance itself is asked for
// next, because lists leave out the instances of a cell that is down.
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

// noInstance is the error for an instance that does not exist.
func noInstance(id uuid.UUID) error {
	return cyborg.Errorf(cyborg.ErrNotFound, "there is no instance %s", id)
}
