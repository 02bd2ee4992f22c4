// Package clock tells the time of day, and waits. The clock can be given an
// offset, so that tests of whole processes can make a machine's clock jump.
// Durations are measured by Go's monotonic clock, which no jump affects. The
// package imports only the standard library.
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

// System returns the machine's clock, or the clock with the offset in the file
// that FileVariable names. Round drops the monotonic reading, which would not
// follow a jump of the offset.
func System() Clock {
	path := os.Getenv(FileVariable) //nolint:forbidigo // for tests only, so it is no option of the configuration
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

// Sleep waits for the duration. If ctx ends first, it returns
// context.Cause(ctx).
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
