// Package clock tells the time of day, and waits. The clock can be set off, so
// that tests of whole processes can make a machine's clock jump. Durations are
// measured by Go's monotonic clock, which no jump affects. It imports only the
// standard library.
package clock

import (
	"context"
	"os"
	"strings"
	"time"
)

// FileVariable is the environment variable with the path of a file that holds
// the clock's offset, as Go writes durations. The file is read each time
// somebody asks for the time. It exists for tests: nothing in production sets
// it.
const FileVariable = "CYBORG_CLOCK_OFFSET_FILE"

// Clock tells the time of day.
type Clock func() time.Time

// System returns the machine's clock, or the clock with the offset that the
// environment demands. Round drops the monotonic reading, which would not
// follow a jump of the offset.
func System() Clock {
	path := os.Getenv(FileVariable) //nolint:forbidigo // no option: it is for tests, and none of their configuration's business
	if path == "" {
		return time.Now
	}

	return func() time.Time { return time.Now().Add(offset(path)).Round(0) }
}

// offset reads the offset from the file; 0 where the file cannot be read.
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

// Sleep waits for the duration. Where ctx ends first, it returns the cause of
// that.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
