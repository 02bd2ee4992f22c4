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
	"github.com/cyborg-project/cyborg/internal/clock"
)

// uiLimit is how long the Web UI may take to answer after its start.
const uiLimit = 10 * time.Second

// webUI is Temporal's Web UI, which runs in this process.
type webUI struct {
	addr   address
	server *uiserver.Server
	ended  chan struct{} // closed when the server has ended
}

// startUI starts the Web UI and returns when it answers. The UI ends the whole
// process if it cannot listen, so startUI tests the port once more immediately
// before.
func startUI(ctx context.Context, addr address, frontend string, settings Config, id *identity) (*webUI, error) {
	if _, err := addr.tryListen(); err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "Temporal's Web UI cannot listen on %s any more: %w", addr, err)
	}

	cfg := &config.Config{
		Host: addr.ip.String(), Port: addr.port, TemporalGRPCAddress: frontend, DefaultNamespace: settings.Namespace,
		EnableUI: true, HideLogs: true,
		DisableWriteActions: !settings.UIWrites,
		DisableNewsFetch:    true,                              // it would send requests to Temporal's maker
		CORS:                config.CORS{CookieInsecure: true}, // it speaks plain HTTP on loopback
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
		_ = u.server.Start() // it returns only errors of the configuration above
	}()

	if err := u.awaitReady(ctx); err != nil {
		u.stop()
		return nil, err
	}

	return u, nil
}

// awaitReady waits until the UI answers. It returns an error if the UI ends or
// uiLimit passes first.
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

		if wait := clock.Sleep(ctx, 10*time.Millisecond); wait != nil {
			return cyborg.Errorf(cyborg.ErrUnavailable, "Temporal's Web UI does not answer at %s: %w", u.url(), err)
		}
	}
}

// get requests the UI's health.
func (u *webUI) get(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.url()+"/healthz", nil)
	if err != nil {
		return err
	}

	// The default client would keep the connection open and use a proxy of the
	// environment.
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

// stop stops the UI and waits for its end. It does nothing for a UI that was
// never started.
func (u *webUI) stop() {
	if u == nil {
		return
	}
	u.server.Stop()
	<-u.ended
}
