package agents

import (
	"errors"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg"
)

// bodies bounds how many bodies are being read at once. If there is one too
// many, the one that has been read for longest is given up, of the peer that
// sends most of them. So whoever sends slowly, or sends much, makes room for
// the others and never keeps them out.
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
	givenUp bool
}

// read calls read, which reads the request's body. The error of a body that was
// given up is of kind ErrOverloaded, and that of one that took too long of kind
// ErrInvalid.
func (b *bodies) read(w http.ResponseWriter, r *http.Request, read func() ([]byte, error)) ([]byte, error) {
	one := &body{peer: peer(r), control: http.NewResponseController(w)}
	if err := one.control.SetReadDeadline(time.Now().Add(b.time)); err != nil {
		return nil, err
	}

	b.add(one)
	text, err := read()
	b.remove(one)

	switch {
	case one.givenUp:
		return nil, cyborg.Errorf(cyborg.ErrOverloaded, "%d bodies are being read, and this one came slowest", b.limit).
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

	at := slices.IndexFunc(b.open, func(other *body) bool { return count[other.peer] == most })
	slowest := b.open[at]
	b.open = slices.Delete(b.open, at, at+1)

	// Its handler still reads: it would first have to take the lock to leave.
	slowest.givenUp = true
	_ = slowest.control.SetReadDeadline(time.Now()) // it worked when the reading began
}

// remove removes a body that has been read or given up.
func (b *bodies) remove(one *body) {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.open = slices.DeleteFunc(b.open, func(other *body) bool { return other == one })
}

// peer identifies who sends a request before its body says for which host: by
// the certificate, or without one by the address.
func peer(r *http.Request) string {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return string(r.TLS.VerifiedChains[0][0].Raw)
	}

	return address(r)
}
