// Package doctor is what the doctor commands of all binaries have in common:
// the findings, and how they are printed. The checks themselves are in the
// binaries' packages.
package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg"
)

// State is the result of a check.
type State string

// The states. Only Failed makes the exit code other than 0.
const (
	OK      State = "ok"
	Warning State = "warning"
	Failed  State = "failed"
)

// Finding is the result of one check.
type Finding struct {
	// Check names what was checked, and Found continues it as a sentence.
	Check string `json:"check"`
	State State  `json:"state"`
	Found string `json:"found"`
	// Do is the remedy, as a full sentence; it is empty where there is nothing to
	// do.
	Do string `json:"do,omitempty"`
}

// Findings collects findings in the order in which they are added. The zero
// value is empty.
type Findings struct{ list []Finding }

// OKf adds a finding that all is well.
func (f *Findings) OKf(check, format string, args ...any) {
	f.add(Finding{Check: check, State: OK, Found: fmt.Sprintf(format, args...)})
}

// Warn adds a finding that does not stop anything now, with its remedy.
func (f *Findings) Warn(check, found, do string) {
	f.add(Finding{Check: check, State: Warning, Found: found, Do: do})
}

// Fail adds a finding about what does not work, with its remedy.
func (f *Findings) Fail(check, found, do string) {
	f.add(Finding{Check: check, State: Failed, Found: found, Do: do})
}

// Error adds an error as a failed check. The remedy is the error's hint, or
// else do.
func (f *Findings) Error(check string, err error, do string) {
	if hint := cyborg.AsError(err).Hint; hint != "" {
		do = hint
	}
	f.Fail(check, err.Error(), do)
}

// add keeps each finding on one line.
func (f *Findings) add(finding Finding) {
	finding.Found = strings.Join(strings.Fields(finding.Found), " ")
	f.list = append(f.list, finding)
}

// All returns the findings.
func (f *Findings) All() []Finding { return f.list }

// Clock compares another machine's clock with this one's. The other was asked
// at asked, answered at answered, and said that its time was then.
func (f *Findings) Clock(whose string, asked, answered, then time.Time) {
	const good, bearable = 2 * time.Second, 10 * time.Second
	// The answer was made in the middle of the round trip, give or take half of it.
	offset, doubt := then.Sub(asked.Add(answered.Sub(asked)/2)), answered.Sub(asked)/2
	size := max(0, offset.Abs()-doubt) // the part that the round trip cannot explain

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

// direction says which of the two clocks is ahead.
func direction(offset time.Duration) string {
	if offset > 0 {
		return "is ahead of this machine's"
	}
	return "is behind this machine's"
}

// Err returns a FailedError where a check failed, and nil otherwise.
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

// FailedError means that checks failed. The findings have been printed already,
// so a caller needs only its exit code.
type FailedError struct{ message string }

// Error says how many checks failed.
func (e *FailedError) Error() string { return e.message }

// Write prints the findings as JSON, or as text: a line for each, with the
// remedy below.
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
