package agents

import (
	"context"
	"errors"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/api/web"
	"github.com/cyborg-project/cyborg/internal/agentapi"
)

// bodies bounds how many bodies are being read at once. If there is one too
// many, the one that has been read for longest is given up, of the peer that
// sends most of them. So whoever sends slowly, or sends much, makes room for
// the others. If no peer sends more than one, the newest is given up: the older
// ones are as good, and have nearly arrived.
type bodies struct {
	limit int
	time  time.Duration // how long a body may take

	mu   sync.Mutex
	open []*body // in the order in which their reading began
}

// body is one body that is being read.
type body struct {
	peer    string
	control *http.ResponseController
	until   time.Time // when the body must have arrived
	giveUp  context.CancelFunc
	givenUp bool
}

// read calls read, which reads the request's body; its context ends when the
// body is given up. The error of a body that was
// given up is of kind ErrOverloaded, and that of one that took too long of kind
// ErrInvalid.
func (b *bodies) read(w http.ResponseWriter, r *http.Request, read func(ctx context.Context, one *body) ([]byte, error)) ([]byte, error) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()

	one := &body{peer: peer(r), control: http.NewResponseController(w), until: time.Now().Add(b.time), giveUp: cancel}
	if err := one.control.SetReadDeadline(one.until); err != nil {
		return nil, err
	}

	b.add(one)
	text, err := read(ctx, one)
	b.remove(one)

	switch {
	case one.givenUp:
		return nil, cyborg.Errorf(cyborg.ErrOverloaded, "%d bodies are being read, and there is no room for this one", b.limit).
			WithHint("Send it again in a moment.")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, cyborg.Errorf(cyborg.ErrInvalid, "the body did not arrive within %s", b.time)
	case err != nil:
		return nil, err
	}

	// The server watches the connection while the handler works: a deadline that
	// passes meanwhile would look as if the agent had left.
	return text, one.control.SetReadDeadline(time.Time{})
}

// add adds a body, and gives up another one if there are too many now.
func (b *bodies) add(one *body) {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.open = append(b.open, one)
	if len(b.open) <= b.limit {
		return
	}

	count, most := map[string]int{}, 0
	for _, other := range b.open {
		count[other.peer]++
		most = max(most, count[other.peer])
	}

	at := len(b.open) - 1
	if most > 1 {
		at = slices.IndexFunc(b.open, func(other *body) bool { return count[other.peer] == most })
	}
	surplus := b.open[at]
	b.open = slices.Delete(b.open, at, at+1)

	// Its handler still reads or waits: it would first have to take the lock to
	// leave.
	surplus.givenUp = true
	surplus.giveUp()
	_ = surplus.control.SetReadDeadline(time.Now()) // it worked when the reading began
}

// pause calls wait, whose time does not count as time that the body takes.
func (b *bodies) pause(one *body, wait func() error) error {
	began := time.Now()
	if err := wait(); err != nil {
		return err
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	if one.givenUp { // its deadline stays over
		return nil
	}

	one.until = one.until.Add(time.Since(began))
	return one.control.SetReadDeadline(one.until)
}

// remove removes a body that has been read or given up.
func (b *bodies) remove(one *body) {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.open = slices.DeleteFunc(b.open, func(other *body) bool { return other == one })
}

// peer identifies who sends a request before its body says for which host: by
// the identity in the certificate, or without one by the address. An agent of
// this process says so itself: all of them have the same address. All
// certificates of one host are one peer, because a host gets as many as it likes.
func peer(r *http.Request) string {
	if inProcess(r) {
		return r.Header.Get(agentapi.HostHeader)
	}

	if told(r) {
		certificate := r.TLS.VerifiedChains[0][0]
		if len(certificate.URIs) == 1 {
			return certificate.URIs[0].String()
		}
		return string(certificate.Raw)
	}

	return web.ClientNetwork(r)
}

// told reports whether something tells the agent that sends a request apart from
// all others: a certificate, or that it is in this process.
func told(r *http.Request) bool {
	return inProcess(r) || r.TLS != nil && len(r.TLS.VerifiedChains) > 0
}
