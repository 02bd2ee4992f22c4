package fake

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"slices"
	"strings"
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

	var sight sight
	stamps, boot := d.stamps()
	view, _ := sight.of(ctx, d, stamps, boot)
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

		now, reports := sight.of(ctx, d, stamps, boot)
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

// sight is what Watch saw of each card when it looked last. It reads only the
// cards whose files have changed: a park may have hundreds.
type sight struct {
	boot  string
	cards []sightOfCard
}

// sightOfCard is what Watch saw of one card.
type sightOfCard struct {
	stamp  fs.FileInfo // nil where the card must be read again
	report string      // what Discover reports of it, as text; empty while it is gone
	fails  bool        // a scripted failure of Discover is left
	err    error       // why the card cannot be read
}

// of returns all that decides on the answer of Discover at this moment, as text,
// and reports, which is only the part that Discover reports. Of a scripted
// failure, view holds only that there is one: that it is used up by one call is
// no reason for another Discover.
func (v *sight) of(ctx context.Context, d *driver, stamps []fs.FileInfo, boot string) (view, reports string) {
	if v.boot != boot || len(v.cards) != len(stamps) {
		v.boot, v.cards = boot, make([]sightOfCard, len(stamps))
	}

	var shown, failing []string
	for i, s := range d.slots {
		one := &v.cards[i]
		if one.stamp == nil || stamps[i] == nil || !sameFile(one.stamp, stamps[i]) {
			*one = d.look(ctx, s)
			one.stamp = stamps[i] // from before the look: what is written meanwhile is read again
		}

		if one.err != nil {
			one.stamp = nil
			return one.err.Error(), one.err.Error()
		}
		if one.report != "" {
			shown = append(shown, one.report)
		}
		if one.fails {
			failing = append(failing, s.identity())
		}
	}

	reports = inList(shown)
	return reports + strings.Join(failing, ""), reports
}

// look reads one card.
func (d *driver) look(ctx context.Context, s *slot) sightOfCard {
	card, err := d.currentCard(ctx, s)
	if err != nil {
		return sightOfCard{err: err}
	}

	out := sightOfCard{fails: card.Fail[StepDiscover].Times != 0}
	if !card.Vanished {
		out.report = textOf(s.report(card))
	}
	return out
}

// textOfAll encodes reports as text that can be compared.
func textOfAll(reports []cyborg.DeviceReport) string {
	texts := make([]string, len(reports))
	for i, report := range reports {
		texts[i] = textOf(report)
	}
	return inList(texts)
}

// inList joins the texts of reports.
func inList(texts []string) string { return strings.Join(texts, "\n") }

// textOf encodes a report.
func textOf(report cyborg.DeviceReport) string {
	text, err := json.Marshal(report)
	if err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "a discovery cannot be written: %w", err).Error()
	}
	return string(text)
}
