package fake

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cyborg-project/cyborg"
)

// Step names a call of the driver that a script can make slow or let fail.
type Step string

// The steps. The first seven change a card. The other six change nothing, so a
// failure before them is the same as one after them.
const (
	StepInstall   Step = "install"
	StepUninstall Step = "uninstall"
	StepAttach    Step = "attach"
	StepDetach    Step = "detach"
	StepProgram   Step = "program"
	StepClean     Step = "clean"
	StepPartition Step = "partition"

	StepDiscover   Step = "discover"
	StepAttached   Step = "attached"
	StepInUse      Step = "in_use"
	StepUsage      Step = "usage"
	StepHealth     Step = "health"
	StepCheckImage Step = "check_image"
)

// Steps lists every step.
func Steps() []Step {
	return []Step{
		StepInstall, StepUninstall, StepAttach, StepDetach, StepProgram, StepClean, StepPartition,
		StepDiscover, StepAttached, StepInUse, StepUsage, StepHealth, StepCheckImage,
	}
}

// checkStep returns an error of kind ErrInvalid where there is no such step.
func checkStep(step Step) error {
	if slices.Contains(Steps(), step) {
		return nil
	}

	names := make([]string, 0, len(Steps()))
	for _, s := range Steps() {
		names = append(names, string(s))
	}

	return cyborg.Errorf(cyborg.ErrInvalid, "there is no step %q; the steps are %s", step, strings.Join(names, ", "))
}

// Always as the Times of a failure lets every call fail.
const Always Times = -1

// Times is the number of calls that will still fail; in JSON it is a number or
// "always".
type Times int

// MarshalJSON writes what UnmarshalJSON reads.
func (t Times) MarshalJSON() ([]byte, error) {
	if t == Always {
		return []byte(`"always"`), nil
	}
	return json.Marshal(int(t))
}

// UnmarshalJSON reads a number of at least 1, or "always". The error is of kind
// ErrInvalid.
func (t *Times) UnmarshalJSON(text []byte) error {
	if string(text) == `"always"` {
		*t = Always
		return nil
	}

	var number int
	if err := json.Unmarshal(text, &number); err != nil || number < 1 {
		return cyborg.Errorf(cyborg.ErrInvalid, "%s is not how often to fail; write a number from 1, or \"always\"", text)
	}

	*t = Times(number)
	return nil
}

// When says whether a step fails before or after it touches the hardware.
type When string

// The two moments of a failure. A program step that fails after the change
// leaves the part empty, as if the image had not been accepted, or its flash memory
// half-written, a scrub that does so leaves the handle half scrubbed, and a partition has
// made the first of its changes.
const (
	Before When = "before"
	After  When = "after"
)

// Failure is a scripted failure of a step. In JSON it is an object of this
// form, or only its Times.
type Failure struct {
	Times   Times            `json:"times"`             // 1 where it is missing
	Kind    cyborg.ErrorKind `json:"kind"`              // hardware where it is missing
	When    When             `json:"when"`              // before where it is missing
	Message string           `json:"message,omitempty"` // a standard sentence where it is missing
}

// UnmarshalJSON reads an object, a number or "always". Unknown keys and values
// are an error of kind ErrInvalid.
func (f *Failure) UnmarshalJSON(text []byte) error {
	read := Failure{Times: 1, Kind: cyborg.ErrHardware, When: Before} // the defaults

	if trimmed := bytes.TrimSpace(text); len(trimmed) > 0 && trimmed[0] == '{' {
		type plain Failure // has not this method, so that Decode does not call it again
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode((*plain)(&read)); err != nil {
			return cyborg.Errorf(cyborg.ErrInvalid, "failure %s: %w", text, err)
		}
	} else if err := read.Times.UnmarshalJSON(text); err != nil {
		return err
	}

	if !slices.Contains(cyborg.ErrorKinds(), read.Kind) {
		return cyborg.Errorf(cyborg.ErrInvalid, "there is no error kind %q; hardware, busy and in_use are some", read.Kind)
	}
	if read.When != Before && read.When != After {
		return cyborg.Errorf(cyborg.ErrInvalid, "a step fails %q or %q, not %q", Before, After, read.When)
	}

	*f = read
	return nil
}

// Duration is a time.Duration that JSON shows as text, such as "1.5s".
type Duration time.Duration

// MarshalText writes what UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads a duration such as "1.5s". A negative duration is an
// error of kind ErrInvalid.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil || parsed < 0 {
		return cyborg.Errorf(cyborg.ErrInvalid, "%q is not how long to wait; write it as 250ms or 2m", text)
	}

	*d = Duration(parsed)
	return nil
}

// failure returns the scripted failure of the step at that moment, or nil where
// none is due. It counts the failure as used in the card; the caller stores the
// card.
func (c *Card) failure(step Step, when When, identity string) error {
	scripted, ok := c.Fail[step]
	if !ok || scripted.When != when {
		return nil
	}

	if scripted.Times != Always {
		scripted.Times--
		if scripted.Times > 0 {
			c.Fail[step] = scripted
		} else {
			delete(c.Fail, step)
		}
	}

	message := scripted.Message
	if message == "" {
		message = fmt.Sprintf("%s on fake card %s failed, as its script says", step, identity)
	}

	return cyborg.Errorf(scripted.Kind, "%s", message)
}
