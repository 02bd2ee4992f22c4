package sysfs

import (
	"context"
	"errors"
	"path"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs/kernelcall"
)

// headerSize is the size in bytes of the header of a function's configuration
// space (PCI Local Bus Specification, 6.1). Everybody may read it.
const headerSize = 64

// Answers says whether the function still answers on its bus. A card that was
// pulled out, or whose link is down, stays in sysfs until the kernel is told, but
// all its registers read as ones. No header of a function that works does, also
// not that of a virtual one, whose ids do.
//
// A function that sleeps (runtime power management) is woken up for it only with
// wake; otherwise it counts as one that answers. So does one without a
// configuration space in sysfs, as in recordings.
func (t *Tree) Answers(ctx context.Context, f Function, wake bool) (bool, error) {
	v, err := t.open()
	if err != nil {
		return false, err
	}
	defer v.close()

	config := path.Join(f.Path, "config")
	if !v.exists(config) {
		return true, nil
	}
	if state, err := v.text(path.Join(f.Path, "power/runtime_status")); err == nil && state == "suspended" && !wake {
		return true, nil
	}

	// Between a reset and its end there may be a moment without an answer.
	const pause = 500 * time.Millisecond
	for try := range 2 {
		header, err := v.ask(ctx, kernelcall.Call{Kind: kernelcall.Read, Path: config, Most: headerSize})
		switch {
		case isGone(err):
			return false, nil
		case err != nil:
			if _, told := errors.AsType[*cyborg.Error](err); told {
				return false, err // such as that it was not answered in time
			}
			return false, classify(f.Address, "reading "+config, err)
		case header == "" || header != strings.Repeat("\xff", len(header)):
			return true, nil
		}

		if try == 0 {
			select {
			case <-ctx.Done():
				return false, interrupted(ctx.Err(), "asking whether "+f.Address.String()+" answers")
			case <-time.After(pause):
			}
		}
	}
	return false, nil
}
