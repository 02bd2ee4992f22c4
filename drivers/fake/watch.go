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

// period is how often Watch looks at the cards' files. Their number is small, and notification instances of the kernel
// are few where many fake hosts share a machine.
const period = 500 * time.Millisecond

// Watch calls changed once it has begun to look, and then when Discover would tell something else than before: a card vanished or returned, somebody else
// programmed it, the host was booted, Discover is scripted to fail or no longer is. It returns nil when ctx ends.
func (d *driver) Watch(ctx context.Context, changed func()) error {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	stamps, boot := d.stamps()
	view := d.view(ctx)
	changed()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		newStamps, newBoot := d.stamps()
		if boot == newBoot && slices.EqualFunc(stamps, newStamps, sameFile) {
			continue
		}
		stamps, boot = newStamps, newBoot
		if now := d.view(ctx); now != view && ctx.Err() == nil {
			view = now
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

// view is all that Discover tells at this moment, as text; of a scripted failure it holds only that there is one, since
// to use one up is no reason to look again.
func (d *driver) view(ctx context.Context) string {
	reports, err := d.reports(ctx)
	if err != nil {
		return err.Error()
	}
	text, err := json.Marshal(reports)
	if err != nil {
		return cyborg.Errorf(cyborg.Internal, "a discovery cannot be written: %w", err).Error()
	}
	for _, s := range d.slots {
		if card, err := d.look(ctx, s); err == nil && card.Fail[StepDiscover].Times != 0 {
			text = append(text, s.identity()...)
		}
	}
	return string(text)
}
