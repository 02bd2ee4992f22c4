package audit

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/cyborg-project/cyborg/api/web"
)

// Window is for how long the requests of callers who prove nothing are counted
// in one line.
const Window = time.Minute

const (
	// mostAddresses is how many addresses are counted one by one. All others share
	// a count.
	mostAddresses = 1000
	otherwise     = "others"
)

// unknownCallers counts the requests of callers who prove nothing: anybody can
// make as many as they like, and each would otherwise cost a line. The first of
// an address in a window has a line of its own. When the window is over, one
// more line has the last request, and how many there were besides the first.
type unknownCallers struct {
	window time.Duration

	mu        sync.Mutex
	addresses map[string]*count
}

// count is what an address has done in its window.
type count struct {
	began    time.Time
	repeated int
	last     web.Exchange
}

// add counts a request, and returns the lines to write now.
func (u *unknownCallers) add(x web.Exchange) []line {
	u.mu.Lock()
	defer u.mu.Unlock()

	lines := u.take(func(c *count) bool { return x.Time.Sub(c.began) >= u.window })

	from := address(x.Remote)
	if u.addresses[from] == nil && len(u.addresses) >= mostAddresses {
		from = otherwise
	}

	if known := u.addresses[from]; known != nil {
		known.repeated++
		known.last = x
		return lines
	}

	u.addresses[from] = &count{began: x.Time}
	return append(lines, line{exchange: x})
}

// end returns the lines of all windows that have not been written.
func (u *unknownCallers) end() []line {
	u.mu.Lock()
	defer u.mu.Unlock()

	return u.take(func(*count) bool { return true })
}

// take removes the windows that are over, and returns their lines. The caller
// holds mu.
func (u *unknownCallers) take(over func(*count) bool) (lines []line) {
	for from, c := range u.addresses {
		if !over(c) {
			continue
		}
		delete(u.addresses, from)
		if c.repeated > 0 {
			lines = append(lines, line{exchange: c.last, repeated: c.repeated})
		}
	}
	return lines
}

// line is a line of the trail that is to be written.
type line struct {
	exchange web.Exchange
	repeated int // how many requests it stands for; 0 means itself
}

// Run writes the lines of windows that are over, until ctx ends.
func (t *Trail) Run(ctx context.Context) {
	ticker := time.NewTicker(t.unknown.window)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			t.unknown.mu.Lock()
			lines := t.unknown.take(func(c *count) bool { return now.Sub(c.began) >= t.unknown.window })
			t.unknown.mu.Unlock()
			t.writeLines(ctx, lines)
		}
	}
}

// repeatedAttachment says how many requests a line stands for.
func repeatedAttachment(repeated int) Attachment {
	return Attachment{Name: "repeated", ContentType: "text/plain", Content: strconv.Itoa(repeated)}
}
