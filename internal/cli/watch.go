package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

const (
	// watchEvery is how often a watch looks where no event tells it to: liveness and progress are no events.
	watchEvery = 5 * time.Second
	// gather is how long a watch waits after an event for the others that come with it.
	gather = 100 * time.Millisecond
)

// watching shows something again whenever it has changed. The zero value shows it once.
type watching struct {
	every time.Duration // 0 where nobody asked
	// held takes what a look prints; nil where it goes out at once.
	held   *strings.Builder
	looked bool   // at least once
	last   string // what it saw
	drew   int    // lines of the last drawing
	// before and now are the cells of the last look and of this one, by row and title.
	before, now map[string]string
}

// addWatch adds -w.
func (p *printer) addWatch(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.DurationVarP(&p.watch.every, "watch", "w", 0, "show it again when it changes, until Ctrl-C; look every `INTERVAL` at least (--watch=2s)")
	flags.Lookup("watch").NoOptDefVal = watchEvery.String()
}

// show prints what view prints: once, or with --watch whenever it has changed, until the context ends. It waits out an
// API that is away. The feed chooses the events after which it is worth a look.
func (p *printer) show(ctx context.Context, client *apiclient.Client, feed apiclient.EventFilter, view func(context.Context) error) error {
	if !p.command.Flags().Changed("watch") {
		return view(ctx)
	}
	if p.watch.every <= 0 {
		return usageErrorf(p.command, "--watch=%s is not a time ahead", p.watch.every)
	}
	changed := make(chan struct{}, 1)
	watched, cancel := context.WithCancel(ctx)
	var stream sync.WaitGroup
	stream.Go(func() { notice(watched, client, feed, changed) })
	defer stream.Wait()
	defer cancel()

	told := &plain{shell: p.shell}
	for {
		began := time.Now()
		p.watch.held = &strings.Builder{}
		err := view(ctx)
		seen := p.watch.held.String()
		p.watch.held = nil
		switch {
		case ctx.Err() != nil:
			return p.watched(ctx)
		case err != nil && !cyborg.ErrorKindOf(err).Retryable():
			return err
		}
		if err := p.look(told, seen, err); err != nil {
			return err
		}
		// A list that takes long to read is not read all the time.
		if !sleepUntil(ctx, changed, p.watch.every, gather+4*time.Since(began)) {
			return p.watched(ctx)
		}
	}
}

// look shows what was seen, or that the API is away.
func (p *printer) look(told *plain, seen string, trouble error) error {
	if p.inPlace() {
		return p.redraw(seen, trouble)
	}
	told.trouble(trouble)
	if trouble != nil {
		return nil //nolint:nilerr // the person was told of it
	}
	return p.again(seen)
}

// watched is how a watch ends: by Ctrl-C, or after --timeout, which says how long to watch.
func (p *printer) watched(ctx context.Context) error {
	if p.watch.looked && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return nil
	}
	return context.Cause(ctx)
}

// sleepUntil waits for a change, every at most and least at least, and says whether to look again.
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
	select {
	case <-soon.C:
	case <-ctx.Done():
		return false
	}
	select {
	case <-changed: // those that came meanwhile are seen with this look
	default:
	}
	return true
}

// notice says on changed when the feed told a change. Whatever ends it, the watch goes on by the clock, and meets what
// is wrong itself.
func notice(ctx context.Context, client *apiclient.Client, feed apiclient.EventFilter, changed chan<- struct{}) {
	for _, err := range client.Events(ctx, feed, "", nil) {
		if err != nil {
			return
		}
		select {
		case changed <- struct{}{}:
		default: // one that waits to be read is enough
		}
	}
}

// inPlace says that a table can be drawn over the one before.
func (p *printer) inPlace() bool { return p.shell.steers() && p.format == formatTable }

// again writes a document that differs from the one before: for pipes, logs, and formats that programs read.
func (p *printer) again(seen string) error {
	if p.watch.looked && seen == p.watch.last {
		return nil
	}
	separator := ""
	switch {
	case !p.watch.looked, p.format == formatJSON: // JSON values follow one another
	case p.format == formatYAML:
		separator = "---\n"
	default:
		separator = "\n"
	}
	p.watch.looked, p.watch.last = true, seen
	return p.write(separator + seen)
}

// redraw draws over what was drawn before, in one write and without clearing first, so that nothing flickers.
func (p *printer) redraw(seen string, trouble error) error {
	if trouble == nil {
		p.watch.looked, p.watch.last = true, seen
	}
	columns, rows := p.shell.outWidth(), 0
	if p.shell.Screen != nil {
		_, rows = p.shell.Screen()
	}
	lines := strings.Split(strings.TrimSuffix(p.watch.last, "\n"), "\n")
	foot := time.Now().UTC().Format(time.TimeOnly) + " UTC, Ctrl-C ends"
	if trouble != nil {
		foot = "waiting for the API: " + clean(trouble.Error())
	}
	if rows > 3 && len(lines) > rows-2 {
		foot = fmt.Sprintf("%d lines more do not fit; %s", len(lines)-rows+2, foot)
		lines = lines[:rows-2]
	}
	lines = append(lines, foot)
	var out strings.Builder
	if p.watch.drew > 0 {
		fmt.Fprintf(&out, "\x1b[%dA", p.watch.drew)
	}
	for _, line := range lines {
		out.WriteString("\r" + text.Trim(line, columns-1) + noColour + "\x1b[K\n") // what wraps could not be drawn over
	}
	out.WriteString("\x1b[J")
	p.watch.drew = len(lines)
	if _, err := io.WriteString(p.shell.Out, out.String()); err != nil {
		return cyborg.Errorf(cyborg.ErrInternal, "cannot write the result: %w", err)
	}
	return nil
}

// begin begins a new look.
func (w *watching) begin() { w.before, w.now = w.now, map[string]string{} }

// mark shows a cell in reverse where it differs from the look before.
func (w *watching) mark(id, title, cell, painted string) string {
	if w.held == nil {
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
