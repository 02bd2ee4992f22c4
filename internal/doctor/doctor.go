// Package doctor is what every binary's doctor has in common: findings, one a line, and how they are printed. What is
// looked at is the matter of those who look.
package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg"
)

// State is how something was found.
type State string

// The states. Only Failed makes a doctor's exit code other than 0.
const (
	OK      State = "ok"
	Warning State = "warning"
	Failed  State = "failed"
)

// Finding is what one check came to.
type Finding struct {
	Check string `json:"check"`
	State State  `json:"state"`
	Found string `json:"found"`
	// Do says what to do, as a full sentence; empty where there is nothing to do.
	Do string `json:"do,omitempty"`
}

// Findings collects findings, in the order in which they are made.
type Findings struct{ list []Finding }

// OKf notes that a thing is as it should be.
func (f *Findings) OKf(check, format string, args ...any) {
	f.add(Finding{Check: check, State: OK, Found: fmt.Sprintf(format, args...)})
}

// Warn notes what should be looked at, and what to do.
func (f *Findings) Warn(check, found, do string) {
	f.add(Finding{Check: check, State: Warning, Found: found, Do: do})
}

// Fail notes what does not work, and what to do.
func (f *Findings) Fail(check, found, do string) {
	f.add(Finding{Check: check, State: Failed, Found: found, Do: do})
}

// Error notes an error as a failure; what to do is its hint, or else do.
func (f *Findings) Error(check string, err error, do string) {
	if hint := cyborg.AsError(err).Hint; hint != "" {
		do = hint
	}
	f.Fail(check, err.Error(), do)
}

func (f *Findings) add(finding Finding) {
	finding.Found = strings.Join(strings.Fields(finding.Found), " ") // one check, one line
	f.list = append(f.list, finding)
}

// All returns the findings.
func (f *Findings) All() []Finding { return f.list }

// Clock compares a clock with ours. What was asked for at asked came at answered, and said that it was then.
func (f *Findings) Clock(whose string, asked, answered, then time.Time) {
	const good, bearable = 2 * time.Second, 10 * time.Second
	offset, doubt := then.Sub(asked.Add(answered.Sub(asked)/2)), answered.Sub(asked)/2
	size := max(0, offset.Abs()-doubt) // what the way there cannot explain
	switch check := "clock of " + whose; {
	case size <= good:
		f.OKf(check, "differs by %s or less", (size + doubt).Round(time.Millisecond))
	case size <= bearable:
		f.Warn(check, fmt.Sprintf("%s by %s", direction(offset), size.Round(100*time.Millisecond)),
			"Let NTP set both clocks: histories of two machines are hard to read side by side.")
	default:
		f.Fail(check, fmt.Sprintf("%s by %s", direction(offset), size.Round(100*time.Millisecond)),
			"Let NTP set both clocks: certificates and waits depend on them.")
	}
}

func direction(offset time.Duration) string {
	if offset > 0 {
		return "is ahead of this machine's"
	}
	return "is behind this machine's"
}

// Err is an error where a check failed; nil where none did.
func (f *Findings) Err() error {
	failed := 0
	for _, finding := range f.list {
		if finding.State == Failed {
			failed++
		}
	}
	switch failed {
	case 0:
		return nil
	case 1:
		return &FailedError{"1 check failed"}
	}
	return &FailedError{fmt.Sprintf("%d checks failed", failed)}
}

// FailedError says that checks failed. They have been printed already.
type FailedError struct{ message string }

// Error says how many.
func (e *FailedError) Error() string { return e.message }

// Write prints the findings: as JSON, or one a line, with what to do below.
func (f *Findings) Write(w io.Writer, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(f.list); err != nil {
			return cyborg.Errorf(cyborg.ErrUnavailable, "the findings cannot be written: %w", err)
		}
		return nil
	}
	var text strings.Builder
	for _, finding := range f.list {
		fmt.Fprintf(&text, "%-8s %s: %s\n", finding.State, finding.Check, finding.Found)
		if finding.Do != "" {
			fmt.Fprintf(&text, "%-8s -> %s\n", "", finding.Do)
		}
	}
	if _, err := io.WriteString(w, text.String()); err != nil {
		return cyborg.Errorf(cyborg.ErrUnavailable, "the findings cannot be written: %w", err)
	}
	return nil
}
