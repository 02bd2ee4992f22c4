package api

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/cyborg-project/cyborg"
	v2 "github.com/cyborg-project/cyborg/api/v2"
	"github.com/cyborg-project/cyborg/api/web"
)

// checkLimit bounds how long one check of readiness may take.
const checkLimit = 2 * time.Second

// healthz answers that the process serves requests. Whether the services that
// it needs answer is the question of /readyz.
func healthz(w http.ResponseWriter, _ *http.Request) error {
	return web.WriteJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// readiness says whether everything that requests need is working.
type readiness struct {
	log    *slog.Logger
	checks []Check

	// running shares one run of the checks among all who ask at the same time.
	// Anybody may ask without a credential, and each run costs the services that
	// are checked something.
	running singleflight.Group
}

// checkView is the result of one check.
type checkView struct {
	Name   string  `json:"name"`
	OK     bool    `json:"ok"`
	TookMS float64 `json:"took_ms"`
	Detail string  `json:"detail,omitempty"`
}

// readyView is the answer of /readyz.
type readyView struct {
	Status string      `json:"status"`
	Checks []checkView `json:"checks,omitempty"`
}

// serve answers 200 if every check passes, else 503. With ?verbose it lists the
// checks.
func (c *readiness) serve(w http.ResponseWriter, r *http.Request) error {
	answer := c.running.DoChan("", func() (any, error) { return c.runAll(context.WithoutCancel(r.Context())), nil }) //nolint:contextcheck // the run is shared, and must outlive the request that began it

	var views []checkView
	select {
	case result := <-answer:
		views, _ = result.Val.([]checkView)
	case <-r.Context().Done():
		return r.Context().Err()
	}

	view, status := readyView{Status: "ready"}, http.StatusOK
	for _, v := range views {
		if !v.OK {
			view.Status, status = "not ready", http.StatusServiceUnavailable
		}
	}

	if r.URL.Query().Has("verbose") {
		view.Checks = views
	}

	return web.WriteJSON(w, status, view)
}

// runAll runs all checks at the same time.
func (c *readiness) runAll(ctx context.Context) []checkView {
	views := make([]checkView, len(c.checks))
	var running sync.WaitGroup
	for i, check := range c.checks {
		running.Go(func() { views[i] = c.run(ctx, check) })
	}

	running.Wait()
	return views
}

// run runs one check. The reason of a failure goes to the log only: anybody can
// read the answer.
func (c *readiness) run(ctx context.Context, check Check) checkView {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()

	start := time.Now()
	err := check.Run(ctx)
	view := checkView{Name: check.Name, OK: err == nil, TookMS: float64(time.Since(start).Microseconds()) / 1000}

	if err != nil {
		view.Detail = "does not answer"
		c.log.WarnContext(ctx, "not ready", slog.String("check", check.Name), slog.String("error", err.Error()))
	}

	return view
}

// versionView describes /v1 in lists of versions.
type versionView struct {
	ID             string     `json:"id"`
	Status         string     `json:"status"`
	Product        string     `json:"product"`
	Release        string     `json:"release"`
	Authentication string     `json:"authentication"`
	Links          []linkView `json:"links"`
}

// linkView is a link of a version.
type linkView struct {
	Rel  string `json:"rel"`
	Href string `json:"href"`
}

// versionView returns the description of /v1.
func (s *server) versionView() versionView {
	return versionView{
		ID: "v1", Status: "CURRENT", Product: "cyborg", Release: cyborg.Version, Authentication: s.auth.Scheme(),
		Links: []linkView{{Rel: "self", Href: "/v1"}, {Rel: "describedby", Href: "/openapi.json"}},
	}
}

// versions answers GET / in the form that OpenStack's clients expect, with the
// description of /v1 added.
func (s *server) versions(w http.ResponseWriter, r *http.Request) error {
	return web.WriteJSON(w, http.StatusOK, struct {
		v2.DiscoveryView

		V1 versionView `json:"v1"`
	}{v2.Discovery(r), s.versionView()})
}

// version answers GET /v1.
func (s *server) version(w http.ResponseWriter, _ *http.Request) error {
	return web.WriteJSON(w, http.StatusOK, s.versionView())
}
