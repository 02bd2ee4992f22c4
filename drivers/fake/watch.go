package fake

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/cyborg-project/cyborg"
)

// watchInterval is how often Watch looks at the cards' files. Their number is small, and notification instances of the kernel
// are few where many fake hosts share a machine.
const watchInterval = 500 * time.Millisecond

// Watch calls changed once it has begun to look, and then when Discover would tell something else than before: a card vanished
// or returned, somebody else programmed it, the host was booted, Discover is scripted to fail or no longer is. What Discover
// told last counts as well as what was seen last: a card may be back before it is missed here. It returns nil when ctx ends.
func (d *driver) Watch(ctx context.Context, changed func()) error {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	stamps, boot := d.stamps()
	view, _ := d.view(ctx)
	var told *string // nil: nothing that was told has been looked at
	changed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		newStamps, newBoot := d.stamps()
		newTold := d.lastReports.Load()
		if boot == newBoot && told == newTold && slices.EqualFunc(stamps, newStamps, sameFile) {
			continue
		}
		stamps, boot, told = newStamps, newBoot, newTold
		now, seen := d.view(ctx)
		if ctx.Err() == nil && (now != view || told != nil && *told != seen) {
			view, told = now, &seen
			d.lastReports.Store(told)
			changed()
		}
	}
}

// stamps tell whether a card's file was written, and the host booted, since; the stamp of a file that cannot be seen is
// nil, and view tells why.
func (d *driver) stamps() (stamps []fs.FileInfo, boot string) {
	for _, s := range d.slots {
		info, err := os.Stat(d.bench.path(s.identity()))
		if err != nil {
			info = nil
		}
		stamps = append(stamps, info)
	}
	boot, err := d.bootID()
	if err != nil {
		boot = err.Error()
	}
	return stamps, boot
}

func sameFile(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// view is all that Discover tells at this moment, as text, and seen is that without its script; of a scripted failure view
// holds only that there is one, since to use one up is no reason to look again.
func (d *driver) view(ctx context.Context) (view, seen string) {
	reports, err := d.reports(ctx)
	if err != nil {
		return err.Error(), err.Error()
	}
	seen = textOf(reports)
	view = seen
	for _, s := range d.slots {
		if card, err := d.currentCard(ctx, s); err == nil && card.Fail[StepDiscover].Times != 0 {
			view += s.identity()
		}
	}
	return view, seen
}

func textOf(reports []cyborg.DeviceReport) string {
	text, err := json.Marshal(reports)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "a discovery cannot be written: %w", err).Error()
	}
	return string(text)
}
