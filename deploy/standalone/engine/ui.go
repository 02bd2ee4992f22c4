package engine

import (
	"context"
	"io/fs"
	"log/slog"
	"net"
	"net/http"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/temporalio/ui-server/v2/server/config"
	"github.com/temporalio/ui-server/v2/server/csrf"
	"github.com/temporalio/ui-server/v2/server/route"
	"github.com/temporalio/ui-server/v2/ui"

	"github.com/cyborg-project/cyborg"
)

// webUI is Temporal's Web UI, which runs in this process. The UI has no listener
// of its own, so that nobody reaches it past Config.UIGuard.
type webUI struct {
	addr  address
	end   context.CancelFunc
	ended chan struct{} // closed when it serves no more
}

// startUI starts the Web UI.
func startUI(ctx context.Context, addr address, frontend string, settings Config, id *identity, log *slog.Logger) (*webUI, error) {
	handler, err := uiHandler(frontend, settings, id, log) //nolint:contextcheck // each request is logged with its own context
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrInternal, "Temporal's Web UI does not start: %w", err)
	}
	if settings.UIGuard != nil {
		handler = settings.UIGuard(handler)
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr.String())
	if err != nil {
		return nil, cyborg.Errorf(cyborg.ErrUnavailable, "Temporal's Web UI cannot listen on %s any more: %w", addr, err)
	}

	serving, end := context.WithCancel(context.WithoutCancel(ctx)) // until stop
	u := &webUI{addr: addr, end: end, ended: make(chan struct{})}

	go func() {
		defer close(u.ended)
		if err := settings.ServeUI(serving, listener, handler, log); err != nil {
			log.ErrorContext(serving, "Temporal's Web UI has ended", "error", err)
		}
	}()

	return u, nil
}

// uiHandler returns the Web UI as a handler: its pages, and its API, which is a
// client of the frontend.
func uiHandler(frontend string, settings Config, id *identity, log *slog.Logger) (http.Handler, error) {
	configured, err := config.NewConfigProviderWithRefresh(&config.Config{
		TemporalGRPCAddress: frontend, DefaultNamespace: settings.Namespace, TLS: id.ui,
		EnableUI:            true,
		DisableWriteActions: !settings.UIWrites,
		// What temporalauth refuses to everybody but servers is not offered.
		StartWorkflowDisabled: true, BatchActionsDisabled: true, WorkflowUpdateDisabled: true, WorkflowPauseDisabled: true,
		ActivityCommandsDisabled: true,

		DisableNewsFetch: true,                              // it would send requests to Temporal's maker
		CORS:             config.CORS{CookieInsecure: true}, // it speaks plain HTTP on loopback
	})
	if err != nil {
		return nil, err
	}

	all, err := ui.Assets()
	if err != nil {
		return nil, err
	}
	pages, err := fs.Sub(all, "local") // the other ones are those of Temporal's cloud
	if err != nil {
		return nil, err
	}

	// The pages send the token of the cookie with each request that changes
	// something.
	const secure = false // the cookie goes over plain HTTP
	e := echo.New()
	survive := middleware.RecoverWithConfig(middleware.RecoverConfig{LogErrorFunc: func(c echo.Context, err error, stack []byte) error {
		log.ErrorContext(c.Request().Context(), "Temporal's Web UI has failed", "error", err, "stack", string(stack))
		return err
	}})
	e.Use(survive, middleware.Gzip(), middleware.Secure(),
		csrf.EnsureTokenCookie(secure), middleware.CSRFWithConfig(csrf.MiddlewareConfig(configured, secure)))

	route.SetHealthRoute(e)
	route.SetRenderRoute(e, "/")
	if err := route.SetAPIRoutes(e, configured, nil); err != nil {
		return nil, err
	}
	return e, route.SetUIRoutes(e, "", pages, configured)
}

func (u *webUI) url() string { return "http://" + u.addr.String() }

// stop stops the UI and waits for its end. It does nothing for a UI that was
// never started.
func (u *webUI) stop() {
	if u == nil {
		return
	}
	u.end()
	<-u.ended
}
