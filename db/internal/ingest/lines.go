package ingest

import (
	"maps"
	"sync"
	"time"
)

const (
	// linesWindow is for how long what a host does has one line in the log.
	linesWindow = time.Minute

	// linesHosts is for how many hosts. Further ones count as one.
	linesHosts = 1000
)

// lines bounds the lines in the log of which a host causes as many as it likes.
type lines struct {
	mu    sync.Mutex
	hosts map[string]*hostLines
}

// hostLines are the lines about one host.
type hostLines struct {
	began    time.Time // when the last one was logged
	repeated int       // how many were not logged since
}

// count counts a line about the host. It reports whether to log it, and how many
// there were since the last one that was logged.
func (l *lines) count(host string, now time.Time) (repeated int, line bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if len(l.hosts) >= linesHosts && l.hosts[host] == nil {
		maps.DeleteFunc(l.hosts, func(_ string, h *hostLines) bool { return now.Sub(h.began) >= linesWindow })
		if len(l.hosts) >= linesHosts {
			host = ""
		}
	}

	h := l.hosts[host]
	if h != nil && now.Sub(h.began) < linesWindow {
		h.repeated++
		return 0, false
	}

	if h != nil {
		repeated = h.repeated
	}
	if l.hosts == nil {
		l.hosts = map[string]*hostLines{}
	}
	l.hosts[host] = &hostLines{began: now}

	return repeated, true
}
