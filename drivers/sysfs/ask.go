package sysfs

import (
	"cmp"
	"context"
	"path/filepath"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs/kernelcall"
)

// answerLimit is how long the kernel may take to answer a question.
const answerLimit = 30 * time.Second

// ask makes an access that may sleep in the kernel, because the driver of a
// device answers it or holds a lock meanwhile. A process of its own makes it, and
// while that one sleeps, everybody who asks the same waits for its answer: another
// process would only sleep beside it. One that an earlier agent has started, and of
// which its note tells, has nobody who could wait for it. The error is of kind
// ErrTimeout where the kernel does not answer in time, and otherwise that of
// kernelcall.
func (v *view) ask(ctx context.Context, call kernelcall.Call) (string, error) {
	call.Root, call.Most = v.root.Name(), cmp.Or(call.Most, maxText)
	what := call.String()
	answer := v.tree.pending.DoChan(what, func() (any, error) { //nolint:contextcheck // others may wait for it, too
		if earlier, asks := kernelcall.Find(call.Note); asks {
			return nil, cyborg.Errorf(cyborg.ErrTimeout, "%s has not come back since %s", what, earlier.Since.UTC().Format(time.RFC3339)).
				WithHint("%s", silentHint)
		}

		v.tree.note(call.Path, time.Now())
		defer v.tree.note(call.Path, time.Time{})
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
func (t *Tree) note(name string, since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if since.IsZero() {
		delete(t.asked, name)
	} else {
		t.asked[name] = since
	}
}

// Unanswered returns since when the kernel has not answered whether a function is
// there (Presence), also to an earlier process; false where nobody waits for that.
func (t *Tree) Unanswered(f Function) (since time.Time, waits bool) {
	t.mu.Lock()
	since, waits = t.asked[configOf(f)]
	t.mu.Unlock()
	if waits {
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
