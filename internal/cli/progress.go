package cli

import (
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// progress shows a person how an operation gets on.
type progress interface {
	update(operation apiclient.Operation)
	// trouble is told of each failure to reach the API, and of nil when it is over.
	trouble(err error)
	end()
}

func (s *shell) newProgress() progress {
	switch {
	case s.quiet:
		return silent{}
	case s.ErrWidth > 0:
		return newLive(s)
	}
	return &plain{shell: s}
}

// silent shows nothing.
type silent struct{}

func (silent) update(apiclient.Operation) {}
func (silent) trouble(error)              {}
func (silent) end()                       {}

// plain writes a line for each step that has ended: for logs and pipes.
type plain struct {
	shell   *shell
	told    map[string]bool
	away    bool
	outcome bool
}

func (p *plain) update(operation apiclient.Operation) {
	for _, line := range p.news(operation) {
		p.shell.sayf("%s", line)
	}
}

// news lists what has happened since the last update.
func (p *plain) news(operation apiclient.Operation) []string {
	if p.told == nil {
		p.told = map[string]bool{}
	}
	var lines []string
	for i, step := range operation.Steps {
		key := fmt.Sprintf("%d %s %s", i, step.State, step.Note)
		if p.told[key] || (step.State == cyborg.StepRunning && step.Note == "") { // one with a note is tried again
			continue
		}
		p.told[key] = true
		lines = append(lines, fmt.Sprintf("%s: %s: %s%s", operation.Kind, step.Name, step.State, note(step.Note)))
	}
	if operation.State.Ended() && !p.outcome {
		p.outcome = true
		lines = append(lines, outcomeText(operation))
	}
	return lines
}

func (p *plain) trouble(err error) {
	switch {
	case err != nil && !p.away:
		p.shell.sayf("Waiting for the API: %s", err)
	case err == nil && p.away:
		p.shell.sayf("The API answers again.")
	}
	p.away = err != nil
}

func (p *plain) end() {}

func outcomeText(operation apiclient.Operation) string {
	word := strings.ReplaceAll(string(operation.State), "_", " ")
	if operation.StartedAt.IsZero() || operation.EndedAt.IsZero() {
		return fmt.Sprintf("%s: %s", operation.Kind, word)
	}
	took := operation.EndedAt.Sub(operation.StartedAt)
	return fmt.Sprintf("%s: %s in %s", operation.Kind, word, durationText(took))
}

func durationText(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

func note(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

// live draws the running step again and again in the last line of a terminal, and leaves a line for each that ended.
type live struct {
	shell  *shell
	ticker *time.Ticker
	done   chan struct{}
	gone   sync.WaitGroup

	mu        sync.Mutex
	log       plain
	operation apiclient.Operation
	away      error
	frame     int
}

const (
	redraw      = 120 * time.Millisecond
	eraseRest   = "\x1b[K" // after what was written: erasing before it would flicker
	longestBar  = 24
	shortestBar = 8 // a shorter one says less than its number
)

func newLive(s *shell) *live {
	l := &live{shell: s, ticker: time.NewTicker(redraw), done: make(chan struct{}), log: plain{shell: s}}
	l.gone.Go(l.animate)
	return l
}

func (l *live) animate() {
	for {
		select {
		case <-l.done:
			return
		case <-l.ticker.C:
			l.mu.Lock()
			l.frame++
			l.draw()
			l.mu.Unlock()
		}
	}
}

func (l *live) update(operation apiclient.Operation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.operation, l.away = operation, nil
	if lines := l.log.news(operation); len(lines) > 0 {
		for _, line := range lines {
			l.shell.write("\r" + clean(line) + eraseRest + "\n")
		}
	}
	l.draw()
}

func (l *live) trouble(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = err
	l.draw()
}

// end takes the last line away.
func (l *live) end() {
	l.ticker.Stop()
	close(l.done)
	l.gone.Wait()
	l.shell.write("\r" + eraseRest)
}

// draw writes the last line anew; the caller holds the lock.
func (l *live) draw() {
	line := clean(l.line())
	line = text.Trim(line, l.shell.errWidth()-1) // a line that wraps could not be drawn again
	l.shell.write("\r" + line + eraseRest)
}

// line is what matters most first, since a narrow terminal cuts its end off.
func (l *live) line() string {
	spinner := string(`|/-\`[l.frame%4])
	if l.away != nil {
		return fmt.Sprintf("%s waiting for the API: %s", spinner, l.away)
	}
	operation := l.operation
	if operation.Kind == "" || operation.State.Ended() {
		return ""
	}
	line := fmt.Sprintf("%s %s", spinner, operation.Kind)
	if !operation.CancelAt.IsZero() {
		line += " (cancelling)"
	}
	step, told := presentStep(operation), ""
	if at := operation.Progress; at != nil {
		if at.Percent >= 0 {
			line += " " + bar(at.Percent, l.shell.errWidth()/4)
		}
		told = at.Note
	}
	if !operation.StartedAt.IsZero() {
		line += " " + max(0, time.Since(operation.StartedAt)).Round(time.Second).String()
	}
	return line + ": " + step + note(told)
}

// presentStep is what an operation is at: the step that runs, or else its state.
func presentStep(operation apiclient.Operation) string {
	if operation.Progress != nil && operation.Progress.Step != "" {
		return inWords(operation.Progress.Step)
	}
	if n := len(operation.Steps); n > 0 && operation.Steps[n-1].State == cyborg.StepRunning {
		return operation.Steps[n-1].Name
	}
	return string(operation.State)
}

// inWords makes "stage image" of the name StageImage, as the API calls a step that runs.
func inWords(name string) string {
	var out strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			out.WriteByte(' ')
		}
		out.WriteRune(unicode.ToLower(r))
	}
	return out.String()
}

// bar is a progress bar for a terminal that has room for one of that length.
func bar(percent, room int) string {
	percent = min(max(percent, 0), 100)
	length := min(room, longestBar)
	if length < shortestBar {
		return fmt.Sprintf("%d%%", percent)
	}
	full := length * percent / 100
	return fmt.Sprintf("[%s%s] %d%%", strings.Repeat("#", full), strings.Repeat(".", length-full), percent)
}
