// Package nova tells OpenStack's Nova what became of accelerator requests, and asks it for instances, with the server's own
// credentials. It must not import the API, the store or a workflow.
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

// Session gives clients of the cloud's services. *openstack.Session does.
type Session interface {
	Service(ctx context.Context, serviceType string) (*gophercloud.ServiceClient, error)
	User(ctx context.Context) (string, error)
}

// Nova is a cloud's Nova.
type Nova struct{ session Session }

// New returns the Nova of the session's cloud; nothing is asked of it yet.
func New(session Session) *Nova { return &Nova{session} }

const (
	service = "compute"
	// microversion is the first that knows the event accelerator-request-bound.
	microversion = "2.82"
	boundEvent   = "accelerator-request-bound"
)

// Event says what became of one accelerator request of an instance.
type Event struct {
	Instance uuid.UUID
	ARQ      uuid.UUID
	Bound    bool
}

// event is one as Nova reads and answers it.
type event struct {
	Name   string `json:"name"`
	Server string `json:"server_uuid"`
	Tag    string `json:"tag"`
	Status string `json:"status"`
	Code   int    `json:"code,omitempty"`
}

// Told counts what Nova said to events.
type Delivered struct {
	Taken int // it passed them on
	// Early are of instances that are not on a host yet: whoever builds them there asks us before it waits for events.
	Early int
	Gone  int // of instances that do not exist
}

// Tell sends events, all of them in one request. The error is of kind ErrUnavailable where Nova has to be told again: it does not
// answer, or did not take one of them.
func (n *Nova) Notify(ctx context.Context, events []Event) (Delivered, error) {
	var (
		told   Delivered
		answer struct {
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
		return told, err
	}
	response, err := client.Post(ctx, client.ServiceURL("os-server-external-events"), map[string][]event{"events": list}, &answer, //nolint:bodyclose // gophercloud closes what it decodes
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusOK, http.StatusMultiStatus}})
	if gophercloud.ResponseCodeIs(err, http.StatusNotFound) && strings.Contains(err.Error(), "itemNotFound") {
		return Delivered{Gone: len(events)}, nil // none of the instances exists; a wrong address has another answer
	}
	if err != nil {
		return told, unavailable(err)
	}
	if response.StatusCode == http.StatusOK {
		return Delivered{Taken: len(events)}, nil
	}
	for _, e := range answer.Events {
		switch e.Code {
		case http.StatusOK:
			told.Taken++
		case http.StatusUnprocessableEntity:
			told.Early++
		case http.StatusNotFound:
			told.Gone++
		default:
			return told, cyborg.Errorf(cyborg.ErrUnavailable, "Nova answered %d to the event of accelerator request %s for instance %s", e.Code, e.Tag, e.Server)
		}
	}
	if told.Taken+told.Early+told.Gone < len(events) {
		return told, cyborg.Errorf(cyborg.ErrUnavailable, "Nova's answer says nothing of %d events", len(events)-told.Taken-told.Early-told.Gone)
	}
	return told, nil
}

// unavailable explains what went wrong as something to try again: what Nova refuses today an operator may mend tomorrow.
func unavailable(err error) error {
	explained := openstack.Explain(service, err)
	e := cyborg.AsError(explained)
	if e.Kind == cyborg.ErrUnavailable || e.Kind == cyborg.ErrInternal {
		return explained
	}
	return cyborg.Errorf(cyborg.ErrUnavailable, "%w", explained).WithHint("%s", e.Hint)
}

func (n *Nova) client(ctx context.Context) (*gophercloud.ServiceClient, error) {
	client, err := n.session.Service(ctx, service)
	if err != nil {
		return nil, err
	}
	client.Microversion = microversion
	return client, nil
}
