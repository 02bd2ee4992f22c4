// Package nova notifies OpenStack's Nova of the outcome of accelerator
// requests, and reads instances from it, with the server's own credentials. It
// must not import the API, the store or a workflow.
package nova

import (
	"context"
	"net/http"
	"strings"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/openstack"
)

// Session makes clients of the cloud's services; *openstack.Session implements
// it.
type Session interface {
	Service(ctx context.Context, serviceType string) (*gophercloud.ServiceClient, error)
	// User returns the id of our own user.
	User(ctx context.Context) (string, error)
}

// Nova is the Compute API of a cloud.
type Nova struct{ session Session }

// New returns the Nova of the session's cloud. It sends nothing yet.
func New(session Session) *Nova { return &Nova{session} }

const (
	// service is Nova's type in the catalog.
	service = "compute"
	// microversion is the first one that knows the event accelerator-request-bound.
	microversion = "2.82"
	boundEvent   = "accelerator-request-bound"
)

// Event is the outcome of one accelerator request of an instance.
type Event struct {
	Instance uuid.UUID
	ARQ      uuid.UUID
	Bound    bool // false: the bind has failed
}

// event is an event in Nova's external event API. Code is set in answers only.
type event struct {
	Name   string `json:"name"`
	Server string `json:"server_uuid"`
	Tag    string `json:"tag"`
	Status string `json:"status"`
	Code   int    `json:"code,omitempty"`
}

// Delivered counts events by Nova's answer.
type Delivered struct {
	// Accepted events were passed on to the instance's nova-compute.
	Accepted int
	// NotOnHost events are for instances that are not on a host yet. They need no
	// repetition: whoever builds the instance on a host lists its requests before
	// it waits for events.
	NotOnHost int
	// NotFound events are for instances that do not exist.
	NotFound int
}

// Notify sends events to Nova, all of them in one request. The error is of kind
// ErrUnavailable if Nova does not answer or did not take one of the events; the
// caller then has to send them again. Nova accepts the same event any number of
// times.
func (n *Nova) Notify(ctx context.Context, events []Event) (Delivered, error) {
	var (
		delivered Delivered
		answer    struct {
			Events []event `json:"events"`
		}
		list = make([]event, len(events))
	)

	for i, e := range events {
		list[i] = event{Name: boundEvent, Server: e.Instance.String(), Tag: e.ARQ.String(), Status: "failed"}
		if e.Bound {
			list[i].Status = "completed"
		}
	}

	client, err := n.client(ctx)
	if err != nil {
		return delivered, err
	}

	// Nova answers 404 as a whole if none of the instances exists. A wrong address
	// is a 404, too, but not with itemNotFound.
	response, err := client.Post(ctx, client.ServiceURL("os-server-external-events"), map[string][]event{"events": list}, &answer, //nolint:bodyclose // gophercloud closes what it decodes
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusOK, http.StatusMultiStatus}})
	if gophercloud.ResponseCodeIs(err, http.StatusNotFound) && strings.Contains(err.Error(), "itemNotFound") {
		return Delivered{NotFound: len(events)}, nil
	}

	if err != nil {
		return delivered, unavailable(err)
	}
	if response.StatusCode == http.StatusOK {
		return Delivered{Accepted: len(events)}, nil
	}

	for _, e := range answer.Events {
		switch e.Code {
		case http.StatusOK:
			delivered.Accepted++
		case http.StatusUnprocessableEntity:
			delivered.NotOnHost++
		case http.StatusNotFound:
			delivered.NotFound++
		default:
			return delivered, cyborg.Errorf(cyborg.ErrUnavailable, "Nova answered %d to the event of accelerator request %s for instance %s", e.Code, e.Tag, e.Server)
		}
	}

	if delivered.Accepted+delivered.NotOnHost+delivered.NotFound < len(events) {
		return delivered, cyborg.Errorf(cyborg.ErrUnavailable, "Nova's answer says nothing of %d events", len(events)-delivered.Accepted-delivered.NotOnHost-delivered.NotFound)
	}

	return delivered, nil
}

// unavailable turns any refusal into an error of kind ErrUnavailable, which
// callers retry: what Nova refuses today for a wrong role or configuration, an
// operator may repair tomorrow.
func unavailable(err error) error {
	explained := openstack.Explain(service, err)
	e := cyborg.AsError(explained)

	if e.Kind == cyborg.ErrUnavailable || e.Kind == cyborg.ErrInternal {
		return explained
	}

	return cyborg.Errorf(cyborg.ErrUnavailable, "%w", explained).WithHint("%s", e.Hint)
}

// client returns a client of the Compute API with the microversion that this
// package needs.
func (n *Nova) client(ctx context.Context) (*gophercloud.ServiceClient, error) {
	client, err := n.session.Service(ctx, service)
	if err != nil {
		return nil, err
	}
	client.Microversion = microversion
	return client, nil
}
