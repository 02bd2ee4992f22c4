package v1

import (
	"context"
	"net/http"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
)

// rescue has Nova reboot the instances that may have lost their accelerators
// when their host booted. It answers 204 if there are none.
func (a *API) rescue(w http.ResponseWriter, r *http.Request) error {
	if err := a.emptyBody(w, r); err != nil {
		return err
	}

	choose := func(context.Context) (cyborg.Request, error) {
		host, err := a.host(r)
		if err == nil && a.config.RescueWithin == 0 {
			err = cyborg.Errorf(cyborg.ErrUnsupported, "this server has no Nova to ask").
				WithHint("Its operator sets openstack.auth_url, and leaves nova.enabled on.")
		}
		return cyborg.RescueRequest{Host: host.Name, Within: a.config.RescueWithin}, err
	}

	return a.operate(w, r, work{
		choose: choose,
		done: func(w http.ResponseWriter, _ *http.Request, op cyborg.Operation) error {
			return web.WriteJSON(w, http.StatusOK, viewOperation(op))
		},
	})
}
