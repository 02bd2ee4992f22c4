package chaos_test

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// wish is the state that the last change of accelerator requests asked for.
type wish string

const (
	wishMade    wish = "made"
	wishBound   wish = "bound"
	wishUnbound wish = "unbound"
	wishGone    wish = "deleted"
)

// binding holds the accelerator requests of one instance, which are created,
// bound, unbound and deleted together.
type binding struct {
	ids      []uuid.UUID
	profile  string
	instance uuid.UUID
	at       apiclient.Accelerator
	image    string // the image that must be loaded while they are bound; empty for any
	programs bool   // their profile asks for an image
	admin    bool   // the client is an administrator

	wish     wish
	status   int  // HTTP status of the answer to the last change
	answered bool // that answer is final
	raced    bool // deleted during the bind, and it is unknown which came first

	sent, said time.Time // when the last try of the last change began, and when it was answered
	losses     bool      // commits were lost while somebody changed the requests

	boots            int  // boots of its host since the binding exists
	bootedWhileBound bool // its host has booted while the requests were certainly bound
}

// allowed returns the states that the requests may have at rest; "" stands for
// deleted requests. The answer 504 says that an operation goes on, which may be that
// of an earlier try without an answer, so a bind or an unbind may still be done.
func (b *binding) allowed() []cyborg.ARQState {
	taken := b.answered && b.status < http.StatusBadRequest
	unknown := !b.answered || b.status == http.StatusGatewayTimeout
	var states []cyborg.ARQState
	switch b.wish {
	case wishMade:
		states = []cyborg.ARQState{cyborg.ARQInitial, ""} // unbound requests are deleted after a while
	case wishBound:
		states = []cyborg.ARQState{cyborg.ARQBindFailed}
		if taken || unknown {
			states = append(states, cyborg.ARQBound)
		}
		if !taken { // the bind may not have been recorded
			states = append(states, cyborg.ARQInitial, "")
		}
	case wishUnbound:
		states = []cyborg.ARQState{cyborg.ARQBound, cyborg.ARQUnbindFailed}
		if taken || unknown {
			states = append(states, cyborg.ARQUnbound, "")
		}
	case wishGone:
		states = []cyborg.ARQState{""}
		if !b.answered || b.raced {
			states = append(states, cyborg.ARQBound, cyborg.ARQBindFailed, cyborg.ARQInitial, cyborg.ARQUnbound, cyborg.ARQUnbindFailed)
		}
	}

	return states
}

// ledger holds what the clients know of all accelerator requests.
type ledger struct {
	mu       sync.Mutex // guards the fields below
	bindings []*binding
	changes  []change
	boots    map[string]int // of each host
	lost     int            // requests that a try without an answer may have created
	tally    map[string]int // how many changes got which answer
}

// all returns the bindings so far.
func (l *ledger) all() []*binding {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.bindings)
}

// forgetAnswer notes that the answer to the last change of a binding says nothing of
// what the records have.
func (l *ledger) forgetAnswer(b *binding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.answered = false
}

// add adds a binding.
func (l *ledger) add(b *binding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bindings = append(l.bindings, b)
}

// change is a change of accelerator requests that was answered with success.
type change struct {
	ids       []uuid.UUID
	to        wish
	asked, at time.Time // when its last try began, and when it was answered
}

// note notes a change that was answered with success.
func (l *ledger) note(c change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changes = append(l.changes, c)
}

// allChanges returns the changes so far that were answered with success.
func (l *ledger) allChanges() []change {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.changes)
}

// unknown returns the requests that no client knows.
func (l *ledger) unknown(shown map[uuid.UUID]requestView) []requestView {
	known := map[uuid.UUID]bool{}
	for _, b := range l.all() {
		for _, id := range b.ids {
			known[id] = true
		}
	}

	var out []requestView
	for id, arq := range shown {
		if !known[id] {
			out = append(out, arq)
		}
	}
	return out
}

// rebooted notes a boot of a host, whose cards lose their images.
func (l *ledger) rebooted(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.boots == nil {
		l.boots = map[string]int{}
	}
	l.boots[host]++

	for _, b := range l.bindings {
		if b.at.Host == host {
			b.image = ""
			b.boots++
		}
	}
}

// bootsOf returns how often a host has booted.
func (l *ledger) bootsOf(host string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.boots[host]
}

// noteBoundBoot notes that the host of the binding boots while its requests are
// certainly bound.
func (l *ledger) noteBoundBoot(b *binding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.bootedWhileBound = true
}

// copyOf returns a copy of a binding. The original may change with a boot of
// its host at any moment.
func (l *ledger) copyOf(b *binding) binding {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *b
}

// checkReboots returns an error where an instance lost its accelerators at a
// boot of its host and was not rebooted, or where it was rebooted more often
// than its host has booted.
func (l *ledger) checkReboots(reboots func(instance uuid.UUID) int) error {
	l.mu.Lock()
	defer l.mu.Unlock()

	for _, b := range l.bindings {
		if n := reboots(b.instance); n > b.boots || b.bootedWhileBound && n == 0 {
			return fmt.Errorf("instance %s was rebooted %d times, but its host has booted %d times", b.instance, n, b.boots)
		}
	}
	return nil
}

// lose notes that n requests may have been created without an answer.
func (l *ledger) lose(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost += n
}

// count counts an answer for the summary.
func (l *ledger) count(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tally == nil {
		l.tally = map[string]int{}
	}
	l.tally[what]++
}
