package sysfs

import (
	"cmp"
	"context"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs/kernelcall"
)

// answerLimit is how long the kernel may take to answer a question.
const answerLimit = 30 * time.Second

// questions are what the kernel is asked at this moment.
type questions struct {
	pending singleflight.Group // by the root and the access

	mu    sync.Mutex
	asked map[string]time.Time // the paths, with their root, of which the kernel is asked, and since when; mu guards it
}

// asking has the questions of all trees of this process: while a driver is exchanged for
// another one, both ask about the same functions.
var asking = questions{asked: map[string]time.Time{}} //nolint:gochecknoglobals // a process is what asks

// ask makes an access that may sleep in the kernel, because the driver of a
// device answers it or holds a lock meanwhile. A process of its own makes it, and
// while that one sleeps, everybody who asks the same waits for its answer, also another
// tree of the same directory: another process would only sleep beside it. One that an
// earlier agent has started, and of which its note tells, has nobody who could wait for
// it. The error is of kind ErrTimeout where the kernel does not answer in time, and
// otherwise that of kernelcall.
func (v *view) ask(ctx context.Context, call kernelcall.Call) (string, error) {
	call.Root, call.Most = v.root.Name(), cmp.Or(call.Most, maxText)
	what := call.String()
	answer := asking.pending.DoChan(call.Root+"\x00"+what, func() (any, error) { //nolint:contextcheck // others may wait for it, too
		if earlier, asks := kernelcall.Find(call.Note); asks {
			return nil, cyborg.Errorf(cyborg.ErrTimeout, "%s has not come back since %s", what, earlier.Since.UTC().Format(time.RFC3339)).
				WithHint("%s", silentHint)
		}

		asking.note(call, time.Now())
		defer asking.note(call, time.Time{})
		return call.Do()
	})

	timer := time.NewTimer(answerLimit)
	defer timer.Stop()
	select {
	case a := <-answer:
		text, _ := a.Val.(string)
		return text, a.Err
	case <-ctx.Done():
		return "", interrupted(ctx.Err(), what)
	case <-timer.C:
		return "", cyborg.Errorf(cyborg.ErrTimeout, "%s has not come back for %s", what, answerLimit).
			WithHint("%s", silentHint)
	}
}

// silentHint says what to do about a question that the kernel does not answer.
const silentHint = "The driver of the device, or the kernel below it, hangs. The kernel log (dmesg) may say why."

// note remembers since when the kernel is asked for a path; no longer with the zero
// time.
func (q *questions) note(call kernelcall.Call, since time.Time) {
	name := filepath.Join(call.Root, call.Path)
	q.mu.Lock()
	defer q.mu.Unlock()
	if since.IsZero() {
		delete(q.asked, name)
	} else {
		q.asked[name] = since
	}
}

// since returns since when the kernel is asked for a path; false where it is not.
func (q *questions) since(root, name string) (since time.Time, waits bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	since, waits = q.asked[filepath.Join(root, name)]
	return since, waits
}

// Unanswered returns since when the kernel has not answered whether a function is
// there (Presence), also to an earlier process; false where nobody waits for that.
func (t *Tree) Unanswered(f Function) (since time.Time, waits bool) {
	if since, waits = asking.since(t.dir, configOf(f)); waits {
		return since, true
	}

	earlier, waits := kernelcall.Find(t.presenceNote(f))
	return earlier.Since, waits
}

// presenceNote returns the file that says who asks whether the function is there;
// empty for none.
func (t *Tree) presenceNote(f Function) string {
	if t.notes == "" {
		return ""
	}
	return filepath.Join(t.notes, f.Address.String()+".presence")
}
