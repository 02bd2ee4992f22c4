package chaos_test

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg/internal/apiclient"
	"github.com/cyborg-project/cyborg/tests/harness"
)

// A request may stay without an answer, or get one of 5xx, only where a fault
// was active on the way that it takes. That the client has asked again, and got
// an answer then, is no excuse. Nothing excuses a 500, which is a defect.

// failedTry is one try of a request that has failed.
type failedTry struct {
	what         string
	api          string // the one that was asked
	nova         bool   // as Nova asks: with tokens of Keystone
	began, ended time.Time
	status       int   // HTTP status; 0 without an answer
	err          error // without an answer, or as the API told it
}

// noteTry notes a try of a request where it has failed. An operation that has
// failed is no failed try, although its answer may be one of 5xx: how it has
// ended is in the records, and judged there. A 500 is noted in any case.
func (d *driver) noteTry(t failedTry) {
	if problem, ok := errors.AsType[*apiclient.Problem](t.err); ok {
		t.status = problem.Status
		if problem.Err.Operation != uuid.Nil && t.status != http.StatusInternalServerError {
			return
		}
	}
	if t.err == nil && t.status < http.StatusInternalServerError || t.status != 0 && t.status < http.StatusInternalServerError {
		return
	}

	t.ended = time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failed = append(d.failed, t)
}

// failedTries returns the tries that have failed so far.
func (d *driver) failedTries() []failedTry {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.failed)
}

// keepsFromAnswering reports whether the fault is on the way that the request
// takes: the API that was asked, what the API needs, and the links between them.
// That neither agents nor conductors are on it is promised: a request waits for
// its operation for a while only, and is answered then. What Nova asks for needs
// its tokens checked, and at last it gives up waiting: 504 is the answer where a
// host or a conductor is away.
func (f fault) keepsFromAnswering(t failedTry) bool {
	switch f.faultKind {
	case restore, rotate: // the servers are stopped
		return true
	case jump, second, old, forge, renew, terminate, reset:
		return false
	}

	way := []string{
		t.api, "postgres", "temporal",
		harness.Client + ">" + t.api, t.api + ">postgres", t.api + ">temporal", "temporal>postgres",
	}
	if t.nova {
		for _, service := range services() {
			way = append(way, service, t.api+">"+service)
		}
	}
	if t.nova && t.status == http.StatusGatewayTimeout {
		way = append(way, nodesOf(harness.NodeConductor)...)
		way = append(way, nodesOf(harness.NodeAgent)...)
		for _, link := range links() {
			if !slices.Contains(way, link) {
				way = append(way, link)
			}
		}
	}
	return slices.Contains(way, f.target)
}

// explainTry returns an error where no fault explains why a try has failed: none
// on its way was active meanwhile, or had been a moment before.
func explainTry(injected []injection, shifts []shift, t failedTry) error {
	if t.status != http.StatusInternalServerError && (timedOut(shifts, t) || slices.ContainsFunc(injected, func(i injection) bool {
		return i.keepsFromAnswering(t) && i.began.Before(t.ended) && i.ended.Add(backWithin).After(t.began)
	})) {
		return nil
	}
	return fmt.Errorf("%s, asked of %s from %s to %s, has failed with status %d (%w), and no fault on its way explains that",
		t.what, t.api, t.began.Format(time.TimeOnly), t.ended.Format(time.TimeOnly), t.status, t.err)
}

// timedOut reports whether a try has got an answer that says that the database did
// not answer in time, because PostgreSQL's clock was set forward meanwhile: its
// timeouts are over at that moment. Setting it forward is also the end of a time
// when it was behind.
func timedOut(shifts []shift, t failedTry) bool {
	return t.status != 0 && slices.ContainsFunc(shifts, func(s shift) bool {
		at := s.began
		if s.offset < 0 {
			at = s.ended
		}
		return s.target == string(harness.NodePostgres) && !at.IsZero() && at.Before(t.ended) && at.Add(shiftSlack).After(t.began)
	})
}

// checkTries returns an error where a try has failed without an explanation.
func (k *checker) checkTries(injected []injection, shifts []shift) error {
	var all []error
	for _, t := range k.driver.failedTries() {
		all = append(all, explainTry(injected, shifts, t))
	}
	return errors.Join(all...)
}

// internalErrorPattern finds the requests that an API has answered with a 500 in
// what it logs, those of readers and of the checks included.
var internalErrorPattern = regexp.MustCompile(`(?m)^.* msg=request .*\bstatus=500\b.*$`)
