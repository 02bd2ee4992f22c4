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
	"github.com/cyborg-project/cyborg/internal/english"
)

// progress shows the user how an operation proceeds.
type progress interface {
	// update is called with each new state of the operation.
	update(operation apiclient.Operation)

	// trouble is called with each failure to reach the API, with nil when the API
	// answers again, and with what the records have lost (ErrGone).
	trouble(err error)

	// end is called once, after the last update.
	end()
}

// newProgress returns the progress that suits standard error.
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

// plain prints a line for each step that has ended, for logs and pipes.
type plain struct {
	shell *shell
	// reported has the steps that were printed, by number, state and note.
	reported map[string]bool
	// unreachable is set from the first failure to reach the API to its next
	// answer.
	unreachable bool
	// outcome is set when the end of the operation was printed.
	outcome bool
}

// update prints what is new.
func (p *plain) update(operation apiclient.Operation) {
	for _, line := range p.news(operation) {
		p.shell.sayf("%s", line)
	}
}

// news returns lines about what has happened since the last update.
func (p *plain) news(operation apiclient.Operation) []string {
	if p.reported == nil {
		p.reported = map[string]bool{}
	}

	var lines []string
	for i, step := range operation.Steps {
		key := fmt.Sprintf("%d %s %s", i, step.State, step.Note)
		// A running step with a note is being retried, which is worth a line.
		if p.reported[key] || (step.State == cyborg.StepRunning && step.Note == "") {
			continue
		}

		p.reported[key] = true
		lines = append(lines, fmt.Sprintf("%s: %s: %s%s", operation.Kind, step.Name, step.State, note(step.Note)))
	}

	if operation.State.Ended() && !p.outcome {
		p.outcome = true
		lines = append(lines, outcomeText(operation))
	}

	return lines
}

// trouble prints a line when the API stops answering, one when it answers again,
// and one when the records have lost changes.
func (p *plain) trouble(err error) {
	if cyborg.ErrorKindOf(err) == cyborg.ErrGone {
		p.shell.sayf("%s", missingText(err))
		return
	}

	switch {
	case err != nil && !p.unreachable:
		p.shell.sayf("Waiting for the API: %s", err)
	case err == nil && p.unreachable:
		p.shell.sayf("The API answers again.")
	}

	p.unreachable = err != nil
}

// end has nothing to clear up.
func (p *plain) end() {}

// outcomeText is the last line about an operation.
func outcomeText(operation apiclient.Operation) string {
	word := strings.ReplaceAll(string(operation.State), "_", " ")
	if operation.StartedAt.IsZero() || operation.EndedAt.IsZero() {
		return fmt.Sprintf("%s: %s", operation.Kind, word)
	}

	took := operation.EndedAt.Sub(operation.StartedAt)
	return fmt.Sprintf("%s: %s in %s", operation.Kind, word, english.Duration(took))
}

// note puts a remark in parentheses behind what it belongs to; an empty one is
// left out.
func note(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

// live redraws the running step in the last line of a terminal, and leaves a
// line for each step that has ended.
type live struct {
	shell     *shell
	ticker    *time.Ticker
	done      chan struct{}
	animation sync.WaitGroup

	// mu guards what follows, and the writes to the terminal: both the animation
	// and the updates draw.
	mu        sync.Mutex
	log       plain
	operation apiclient.Operation
	// away is the last failure to reach the API; nil where it answers.
	away error
	// frame counts the redraws, for the spinner.
	frame int
}

const (
	// redraw is the interval of the animation.
	redraw = 120 * time.Millisecond
	// eraseRest erases the rest of a line after the text was written; to erase the
	// line before would flicker.
	eraseRest  = "\x1b[K"
	longestBar = 24
	// A shorter bar shows less than its number.
	shortestBar = 8
)

// newLive starts the animation; end stops it.
func newLive(s *shell) *live {
	l := &live{shell: s, ticker: time.NewTicker(redraw), done: make(chan struct{}), log: plain{shell: s}}
	l.animation.Go(l.animate)
	return l
}

// animate redraws the line until the progress ends.
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

// update prints the lines of ended steps above the redrawn line.
func (l *live) update(operation apiclient.Operation) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.operation, l.away = operation, nil

	if lines := l.log.news(operation); len(lines) > 0 {
		for _, line := range lines {
			l.shell.write("\r" + message(line) + eraseRest + "\n")
		}
	}

	l.draw()
}

// trouble shows a failure to reach the API in the redrawn line, and what the
// records have lost in a line above it.
func (l *live) trouble(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if cyborg.ErrorKindOf(err) == cyborg.ErrGone {
		l.shell.write("\r" + message(missingText(err)) + eraseRest + "\n")
	} else {
		l.away = err
	}
	l.draw()
}

// end stops the animation, waits for its last write, and removes the line.
func (l *live) end() {
	l.ticker.Stop()
	close(l.done)
	l.animation.Wait()

	l.shell.write("\r" + eraseRest)
}

// draw writes the line again. The caller holds mu.
func (l *live) draw() {
	line := strings.ReplaceAll(clean(l.line()), "\n", " ")
	line = text.Trim(line, l.shell.errWidth()-1) // a line that wraps could not be drawn again
	l.shell.write("\r" + line + eraseRest)
}

// line begins with what matters most, since a narrow terminal cuts off its end.
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

	step, remark := currentStep(operation), ""
	if at := operation.Progress; at != nil {
		// A negative percentage means that the step cannot tell its progress.
		if at.Percent >= 0 {
			line += " " + bar(at.Percent, l.shell.errWidth()/4)
		}
		remark = at.Note
	}

	if !operation.StartedAt.IsZero() {
		line += " " + max(0, time.Since(operation.StartedAt)).Round(time.Second).String()
	}

	return line + ": " + step + note(remark)
}

// currentStep is what an operation is doing: the running step, or else its
// state.
func currentStep(operation apiclient.Operation) string {
	if operation.Progress != nil && operation.Progress.Step != "" {
		return inWords(operation.Progress.Step)
	}
	if n := len(operation.Steps); n > 0 && operation.Steps[n-1].State == cyborg.StepRunning {
		return operation.Steps[n-1].Name
	}
	return string(operation.State)
}

// inWords converts the API's name of a running step to words: StageImage
// becomes "stage image".
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

// bar draws a progress bar of at most width characters, or only the number
// where that is too narrow.
func bar(percent, width int) string {
	percent = min(max(percent, 0), 100)
	length := min(width, longestBar)
	if length < shortestBar {
		return fmt.Sprintf("%d%%", percent)
	}

	full := length * percent / 100
	return fmt.Sprintf("[%s%s] %d%%", strings.Repeat("#", full), strings.Repeat(".", length-full), percent)
}
