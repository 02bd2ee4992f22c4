package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

const (
	// watchEvery is how often a watch refreshes without an event: liveness and
	// progress change without events.
	watchEvery = 5 * time.Second

	// batchDelay is how long a watch waits after an event for further events of the
	// same change.
	batchDelay = 100 * time.Millisecond
)

// watching shows something again whenever it has changed. The zero value shows
// it once.
type watching struct {
	// every is the longest time between two refreshes; 0 without --watch.
	every time.Duration

	// buffer collects what one refresh prints; nil where output goes to the
	// terminal at once.
	buffer *strings.Builder

	// shown is set after the first successful refresh.
	shown bool
	// last is what the last successful refresh printed.
	last string
	// drawn counts the lines on the terminal, which the next drawing covers.
	drawn int
	// missing says what the feed has lost; empty where it has lost nothing.
	missing string

	// before and now are the cells of the last refresh and of this one, by row and
	// title.
	before, now map[string]string
}

// addWatch adds --watch.
func (p *printer) addWatch(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.DurationVarP(&p.watch.every, "watch", "w", 0, "show it again whenever it changes, until Ctrl-C; refresh at least every `INTERVAL` (--watch=2s)")
	flags.Lookup("watch").NoOptDefVal = watchEvery.String()
}

// show prints what view prints: once, or with --watch again whenever it has
// changed, until the context ends. While the API cannot be reached it waits.
// The feed selects the events that trigger a refresh.
func (p *printer) show(ctx context.Context, c call, feed feeder, view func(context.Context) error) error {
	if !p.command.Flags().Changed("watch") {
		return view(ctx)
	}

	if p.watch.every <= 0 {
		return usageErrorf(p.command, "--watch=%s is not a positive duration", p.watch.every)
	}

	filter := apiclient.EventFilter{}
	if feed != nil {
		var err error
		if filter, err = feed(ctx, c); err != nil {
			return err
		}
	}

	// changed holds one notification at most: further events during a refresh are
	// covered by the next one.
	changed := make(chan struct{}, 1)
	var lost atomic.Pointer[cyborg.Error] // what the user was not told yet
	watched, cancel := context.WithCancel(ctx)
	var stream sync.WaitGroup
	stream.Go(func() { notifyChanges(watched, c.client, filter, changed, &lost) })
	defer stream.Wait()
	defer cancel()

	reporter := &plain{shell: p.shell}
	for {
		began := time.Now()
		p.watch.buffer = &strings.Builder{}
		err := view(ctx)
		seen := p.watch.buffer.String()
		p.watch.buffer = nil

		switch {
		// The context may have ended the view in the middle; what it printed until then
		// is not shown.
		case ctx.Err() != nil:
			return p.watched(ctx)
		case err != nil && !cyborg.ErrorKindOf(err).Retryable():
			return err
		}

		if err := lost.Swap(nil); err != nil {
			p.watch.missing = missingText(err)
			if !p.inPlace() {
				p.shell.sayf("%s", p.watch.missing)
			}
		}

		if err := p.refresh(reporter, seen, err); err != nil {
			return err
		}

		// A list that takes long to read is not read all the time: at least four times
		// as long is spent waiting.
		if !sleepUntil(ctx, changed, p.watch.every, batchDelay+4*time.Since(began)) {
			return p.watched(ctx)
		}
	}
}

// refresh shows the output of one refresh, or that the API cannot be reached.
func (p *printer) refresh(reporter *plain, seen string, trouble error) error {
	if p.inPlace() {
		return p.redraw(seen, trouble)
	}

	reporter.trouble(trouble)
	if trouble != nil {
		return nil //nolint:nilerr // the user has been informed of it
	}

	return p.printChanged(seen)
}

// watched is the result of a watch that the context has ended. --timeout says
// how long to watch, so reaching it is a success once something was shown.
func (p *printer) watched(ctx context.Context) error {
	if p.watch.shown && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return nil
	}
	return context.Cause(ctx)
}

// sleepUntil waits for a change, for every at most, and for least in any case.
// It reports whether to refresh, which is false when the context has ended.
func sleepUntil(ctx context.Context, changed <-chan struct{}, every, least time.Duration) bool {
	most, soon := time.NewTimer(max(every, least)), time.NewTimer(least)
	defer most.Stop()
	defer soon.Stop()

	select {
	case <-changed:
	case <-most.C:
		return true
	case <-ctx.Done():
		return false
	}

	// A burst of events is waited out.
	select {
	case <-soon.C:
	case <-ctx.Done():
		return false
	}

	select {
	case <-changed: // the coming refresh covers these too
	default:
	}

	return true
}

// missingText tells the user that the feed has lost events, and that what is
// shown comes from the records.
func missingText(err error) string {
	return fmt.Sprintf("Changes are missing here: %s. Going on with what the records have.", err)
}

// notifyChanges sends on changed when the feed has an event, or has lost some,
// of which lost gets the error. Whatever ends the feed, the watch continues by the
// clock, and meets the cause itself with its next request.
func notifyChanges(ctx context.Context, client *apiclient.Client, feed apiclient.EventFilter, changed chan<- struct{}, lost *atomic.Pointer[cyborg.Error]) {
	after := ""
	for {
		for event, err := range client.Events(ctx, feed, after, nil) {
			next := event.Cursor.String()
			// Events that the records have lost are a change as well.
			if err != nil {
				next = cyborg.AsError(err).After.String()
				if cyborg.ErrorKindOf(err) != cyborg.ErrGone || next == after {
					return
				}
				lost.Store(cyborg.AsError(err))
			}
			after = next

			select {
			case changed <- struct{}{}:
			default: // a notification is pending already
			}
		}
	}
}

// inPlace reports whether a table can be drawn over the one before.
func (p *printer) inPlace() bool { return p.shell.steers() && p.format == formatTable }

// printChanged prints a document that differs from the one before, for pipes,
// logs, and formats that programs read.
func (p *printer) printChanged(seen string) error {
	if p.watch.shown && seen == p.watch.last {
		return nil
	}

	separator := ""
	switch {
	case !p.watch.shown, p.format == formatJSON: // JSON values follow one another
	case p.format == formatYAML:
		separator = "---\n"
	default:
		separator = "\n"
	}

	p.watch.shown, p.watch.last = true, seen
	return p.write(separator + seen)
}

// redraw draws over what was drawn before, in one write and without clearing
// first, so that nothing flickers.
func (p *printer) redraw(seen string, trouble error) error {
	if trouble == nil {
		p.watch.shown, p.watch.last = true, seen
	}

	// The size is asked for each time, because the terminal may have been resized.
	columns, rows := p.shell.outWidth(), 0
	if p.shell.Screen != nil {
		_, rows = p.shell.Screen()
	}

	lines := strings.Split(strings.TrimSuffix(p.watch.last, "\n"), "\n")

	foot := time.Now().UTC().Format(time.TimeOnly) + " UTC, Ctrl-C ends"
	if trouble != nil {
		foot = "waiting for the API: " + clean(trouble.Error())
	}

	fit := rows - 2
	if p.watch.missing != "" {
		fit--
	}

	// The cursor cannot move above the screen, so the drawing must fit it.
	if fit > 1 && len(lines) > fit {
		foot = fmt.Sprintf("%d lines more do not fit; %s", len(lines)-fit, foot)
		lines = lines[:fit]
	}

	if p.watch.missing != "" {
		lines = append(lines, clean(p.watch.missing))
	}
	lines = append(lines, foot)

	var out strings.Builder
	if p.watch.drawn > 0 {
		fmt.Fprintf(&out, "\x1b[%dA", p.watch.drawn)
	}
	for _, line := range lines {
		// A line that wraps could not be drawn over, so it is cut.
		out.WriteString("\r" + text.Trim(line, columns-1) + noColour + "\x1b[K\n")
	}

	out.WriteString("\x1b[J")
	p.watch.drawn = len(lines)
	if _, err := io.WriteString(p.shell.Out, out.String()); err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "cannot write the result: %w", err)
	}

	return nil
}

// begin starts a refresh: the cells of the last one become those to compare
// with.
func (w *watching) begin() { w.before, w.now = w.now, map[string]string{} }

// mark shows a cell in reverse where it differs from the refresh before.
func (w *watching) mark(id, title, cell, painted string) string {
	if w.buffer == nil {
		return painted
	}

	key := id + "\x00" + title
	w.now[key] = cell

	old, known := w.before[key]
	if w.before == nil || (known && old == cell) || strings.TrimSpace(cell) == "" {
		return painted
	}

	return "\x1b[7m" + painted + noColour
}
