package agent_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// conductor is one that agents report to.
type conductor struct {
	*httptest.Server
	mu      sync.Mutex
	reports []agentapi.Report
	beats   []agentapi.Heartbeat
	refused int // reports, since a newer one was there
	images  map[string][]byte
	// trouble, where set, answers in its place.
	trouble func(w http.ResponseWriter, r *http.Request) (answered bool)
	wants   bool // a report, with the next heartbeat
	// compares heartbeats with the reports, as the real conductor does. It is for
	// tests in which all reports are in reports.
	compares bool
}

func newConductor(t *testing.T) *conductor {
	t.Helper()
	c := &conductor{images: map[string][]byte{}}
	c.Server = httptest.NewServer(http.HandlerFunc(c.serve))
	t.Cleanup(c.Close)
	return c
}

func (c *conductor) serve(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	trouble := c.trouble
	c.mu.Unlock()
	if trouble != nil && trouble(w, r) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r.Method + " " + r.URL.Path {
	case "POST /agent/v1/differences":
		encode(w, agentapi.ReportReply{Whole: true}) // c.reports has whole ones only
	case "POST /agent/v1/reports":
		var report agentapi.Report
		if !decode(w, r, &report) {
			return
		}
		reply := agentapi.ReportReply{Accepted: len(c.reports) == 0 || c.reports[len(c.reports)-1].Sequence < report.Sequence}
		if reply.Accepted {
			c.reports = append(c.reports, report)
		} else {
			c.refused++
			reply.Exceed = c.reports[len(c.reports)-1].Sequence
		}
		reply.Generation = int64(len(c.reports))
		encode(w, reply)
	case "POST /agent/v1/heartbeats":
		var beat agentapi.Heartbeat
		if !decode(w, r, &beat) {
			return
		}
		c.beats = append(c.beats, beat)
		encode(w, agentapi.HeartbeatReply{Report: c.wants || c.compares && c.differs(beat)})
		c.wants = false
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// differs says that the records are not those of the report that the agent
// takes for the last one, as after a kill between an acknowledgement and the
// moment at which the agent saves it. The real conductor asks for a report then.
func (c *conductor) differs(beat agentapi.Heartbeat) bool {
	if len(c.reports) == 0 {
		return false
	}
	return beat.Digest != c.reports[len(c.reports)-1].Digest || beat.Generation != int64(len(c.reports))
}

// hang does not answer before the client goes away; the server notices that only once the request is read.
func hang(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // whatever it was
	<-r.Context().Done()
}

func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return false
	}
	return true
}

func encode(w http.ResponseWriter, answer any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // a test's client that went away notices by itself
}

// ail makes the conductor answer otherwise; nil makes it well again.
func (c *conductor) ail(trouble func(w http.ResponseWriter, r *http.Request) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trouble = trouble
}

func (c *conductor) want() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wants = true
}

func (c *conductor) reported() []agentapi.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]agentapi.Report(nil), c.reports...)
}

func (c *conductor) refusals() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused
}

func (c *conductor) heard() []agentapi.Heartbeat {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]agentapi.Heartbeat(nil), c.beats...)
}
