// Package clock tells the time of day to whoever decides by it. It can be set off, so that tests of whole processes can
// make a machine's clock jump. Spans of time are not its matter: those are measured by Go's monotonic clock, which no jump
// reaches. It imports the standard library only.
package clock

import (
	"os"
	"strings"
	"time"
)

// FileVariable is the environment variable that names a file with how far the clock is off, as Go writes durations. The
// file is read whenever somebody asks for the time. It is for tests: nothing of the system sets it.
const FileVariable = "CYBORG_CLOCK_OFFSET_FILE"

// Clock tells the time of day.
type Clock func() time.Time

// System is the machine's clock, or that which the environment sets off.
func System() Clock {
	path := os.Getenv(FileVariable) //nolint:forbidigo // no option: it is for tests, and none of their configuration's business
	if path == "" {
		return time.Now
	}
	return func() time.Time { return time.Now().Add(offset(path)).Round(0) }
}

// offset is what the file says; none where it cannot be read.
func offset(path string) time.Duration {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	off, err := time.ParseDuration(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return off
}
