package agent_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// conductor is a conductor that records what agents report.
type conductor struct {
	*httptest.Server
	mu      sync.Mutex
	reports []agentapi.Report
	beats   []agentapi.Heartbeat
	refused int // how many reports were refused because a newer one is recorded
	images  map[string][]byte
	// trouble, if set, may answer in the conductor's place.
	trouble func(w http.ResponseWriter, r *http.Request) (answered bool)
	wants   bool // whether the next heartbeat's answer asks for a report
	// compares says to compare heartbeats with the reports, as the real conductor
	// does. It requires that reports has all reports.
	compares bool
}

// floor is the assignment number from which on the conductor gives out others.
const floor = 500

// newConductor starts a conductor that ends with the test.
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
		encode(w, agentapi.ReportReply{Whole: true}) // c.reports keeps only whole reports
	case "POST /agent/v1/reports":
		var report agentapi.Report
		if !decode(w, r, &report) {
			return
		}

		later := len(c.reports) == 0 || c.reports[len(c.reports)-1].Sequence < report.Sequence
		if known := c.knownJournal(); later && known != (cyborg.JournalPosition{}) && known.Opening != report.Journal.Opening && report.Follows != known {
			encode(w, agentapi.ReportReply{Known: known})
			return
		}

		reply := agentapi.ReportReply{Accepted: later}
		if reply.Accepted {
			c.reports = append(c.reports, report)
		} else {
			c.refused++
			reply.Exceed = c.reports[len(c.reports)-1].Sequence
		}

		if reply.Accepted && report.AskFloor {
			reply.Floor = &agentapi.Floor{Number: floor, Open: []int64{floor - 1}}
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

// record records a report that did not come from the agent.
func (c *conductor) record(report agentapi.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reports = append(c.reports, report)
}

// knownJournal returns how far the agent's journal had got in the last report.
func (c *conductor) knownJournal() cyborg.JournalPosition {
	if len(c.reports) == 0 {
		return cyborg.JournalPosition{}
	}
	return c.reports[len(c.reports)-1].Journal
}

// differs tells whether the agent's last acknowledged report is not the last
// one recorded. An agent that is killed between an acknowledgement and saving
// it is in that state, and the real conductor then asks for a report.
func (c *conductor) differs(beat agentapi.Heartbeat) bool {
	if len(c.reports) == 0 {
		return false
	}
	return beat.Digest != c.reports[len(c.reports)-1].Digest || beat.Generation != int64(len(c.reports))
}

// hang does not answer before the client has gone away. The server notices that
// only after the request was read.
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
	_ = json.NewEncoder(w).Encode(answer) // a client that has gone away needs no answer
}

// ail has a function answer in the conductor's place; nil ends that.
func (c *conductor) ail(trouble func(w http.ResponseWriter, r *http.Request) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trouble = trouble
}

// compare makes the conductor compare heartbeats with the reports.
func (c *conductor) compare() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.compares = true
}

// want asks for a report with the answer to the next heartbeat.
func (c *conductor) want() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wants = true
}

// reported returns the accepted reports.
func (c *conductor) reported() []agentapi.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]agentapi.Report(nil), c.reports...)
}

// refusals returns how many reports were refused as outdated.
func (c *conductor) refusals() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused
}

// heard returns the heartbeats.
func (c *conductor) heard() []agentapi.Heartbeat {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]agentapi.Heartbeat(nil), c.beats...)
}
