package sysfs

import (
	"cmp"
	"context"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs/kernelcall"
)

// answerLimit is how long the kernel may take to answer a question.
const answerLimit = 30 * time.Second

// ask makes an access that may sleep in the kernel, because the driver of a
// device answers it or holds a lock meanwhile. A process of its own makes it, and
// while that one sleeps, everybody who asks the same waits for its answer: another
// process would only sleep beside it. The error is of kind ErrTimeout where the
// kernel does not answer in time, and otherwise that of kernelcall.
func (v *view) ask(ctx context.Context, call kernelcall.Call) (string, error) {
	call.Root, call.Most = v.root.Name(), cmp.Or(call.Most, maxText)
	what := call.String()
	answer := v.pending.DoChan(what, func() (any, error) { return call.Do() }) //nolint:contextcheck // others may wait for it, too

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
			WithHint("The driver of the device, or the kernel below it, hangs. The kernel log (dmesg) may say why.")
	}
}
