package engine

import (
	"context"
	"fmt"
	"net/http"
	"time"

	uiserver "github.com/temporalio/ui-server/v2/server"
	"github.com/temporalio/ui-server/v2/server/config"
	"github.com/temporalio/ui-server/v2/server/server_options"

	"github.com/cyborg-project/cyborg"
)

// uiLimit is how long the Web UI may take to answer.
const uiLimit = 10 * time.Second

// webUI is Temporal's Web UI.
type webUI struct {
	addr   address
	server *uiserver.Server
	ended  chan struct{}
}

// startUI starts the Web UI and returns when it answers. Where the UI cannot listen it ends the process, so the port is
// tried once more, at the last moment.
func startUI(ctx context.Context, addr address, frontend, namespace string, id *identity) (*webUI, error) {
	if _, err := addr.tryListen(); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "Temporal's Web UI cannot listen on %s any more: %w", addr, err)
	}
	cfg := &config.Config{
		Host: addr.ip.String(), Port: addr.port, TemporalGRPCAddress: frontend, DefaultNamespace: namespace,
		EnableUI: true, HideLogs: true,
		DisableNewsFetch: true,                              // it calls nobody
		CORS:             config.CORS{CookieInsecure: true}, // it speaks plain HTTP on loopback
	}
	if id != nil {
		cfg.TLS = id.ui
	}
	u := &webUI{
		addr: addr, ended: make(chan struct{}),
		server: uiserver.NewServer(server_options.WithConfigProvider(cfg)),
	}
	go func() {
		defer close(u.ended)
		_ = u.server.Start() // it returns errors of its configuration only, and that is ours
	}()
	if err := u.awaitReady(ctx); err != nil {
		u.stop()
		return nil, err
	}
	return u, nil
}

func (u *webUI) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, uiLimit)
	defer cancel()
	for {
		err := u.get(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-u.ended:
			return cyborg.Errorf(cyborg.ErrInternal, "Temporal's Web UI ended at its start")
		default:
		}
		if wait := sleep(ctx, 10*time.Millisecond); wait != nil {
			return cyborg.Errorf(cyborg.ErrUnavailable, "Temporal's Web UI does not answer at %s: %w", u.url(), err)
		}
	}
}

func (u *webUI) get(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.url()+"/healthz", nil)
	if err != nil {
		return err
	}
	// Not the default client, which would keep the connection and obey a proxy.
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	if err := response.Body.Close(); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s", response.Status)
	}
	return nil
}

func (u *webUI) url() string { return "http://" + u.addr.String() }

func (u *webUI) stop() {
	if u == nil {
		return
	}
	u.server.Stop()
	<-u.ended
}
