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

// watchInterval is how often Watch looks for changes of the cards' files. It
// polls instead of using inotify, because a user may have only a few inotify
// instances (128 by default), and many fake hosts can share a machine.
const watchInterval = 500 * time.Millisecond

// Watch calls changed once when it has begun to observe the cards, and then
// whenever Discover would report something new: a card vanished or returned,
// somebody else programmed it, the host was booted, or a scripted failure of
// Discover began or ended. It compares the cards with what it saw last and also
// with what Discover reported last: a card may vanish and return between two
// polls of Watch, while a Discover in between has reported it as gone. It
// returns nil when ctx ends.
func (d *driver) Watch(ctx context.Context, changed func()) error {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()

	stamps, boot := d.stamps()
	view, _ := d.view(ctx)
	var reported *string // the lastReports that were compared last; nil before the first

	changed()

	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}

		newStamps, newBoot := d.stamps()
		newReported := d.lastReports.Load()
		if boot == newBoot && reported == newReported && slices.EqualFunc(stamps, newStamps, sameFile) {
			continue
		}
		stamps, boot, reported = newStamps, newBoot, newReported

		now, reports := d.view(ctx)
		if ctx.Err() == nil && (now != view || reported != nil && *reported != reports) {
			view, reported = now, &reports
			d.lastReports.Store(reported)
			changed()
		}
	}
}

// stamps returns what must change for Discover to report something new: the
// boot id, and the stat of each card's file. The stat of a file that cannot be
// read is nil; view then says why.
func (d *driver) stamps() (stamps []fs.FileInfo, boot string) {
	boot, err := d.bootID()
	if err != nil {
		boot = err.Error()
	}
	return d.bench.stats(d.slots), boot
}

// sameFile says whether the file was not written between the two stats.
func sameFile(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}

	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// view returns all that decides on the answer of Discover at this moment, as
// text, and reports, which is only the part that Discover reports. Of a
// scripted failure, view holds only that there is one: that it is used up by
// one call is no reason for another Discover.
func (d *driver) view(ctx context.Context) (view, reports string) {
	list, err := d.reports(ctx)
	if err != nil {
		return err.Error(), err.Error()
	}

	reports = textOf(list)
	view = reports
	for _, s := range d.slots {
		if card, err := d.currentCard(ctx, s); err == nil && card.Fail[StepDiscover].Times != 0 {
			view += s.identity()
		}
	}

	return view, reports
}

// textOf encodes reports as text that can be compared.
func textOf(reports []cyborg.DeviceReport) string {
	text, err := json.Marshal(reports)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "a discovery cannot be written: %w", err).Error()
	}
	return string(text)
}
