package bench_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/tests/harness"
)

// tick is the unit of processor time in /proc (proc(5)). Linux shows hundredths
// of a second to user space.
const tick = 10 * time.Millisecond

// processorTime returns the processor time of a process: the 14th and 15th
// field of /proc/PID/stat.
func processorTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	fields, err := stat(pid)
	require.NoError(b, err)
	return ticks(b, fields[11:13])
}

// stat returns the fields of /proc/PID/stat from the third on.
func stat(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}

	_, rest, ok := strings.Cut(string(text), ") ") // the second field, a name, may hold spaces
	if !ok {
		return nil, fmt.Errorf("/proc/%d/stat has no name in parentheses", pid)
	}

	return strings.Fields(rest), nil
}

// ticks adds up fields that count ticks.
func ticks(b *testing.B, fields []string) time.Duration {
	b.Helper()
	var total time.Duration

	for _, field := range fields {
		n, err := strconv.Atoi(field)
		require.NoError(b, err)
		total += time.Duration(n) * tick
	}

	return total
}

// family returns the process id of a standalone, and then those of its
// PostgreSQL.
func family(b *testing.B, s *harness.Standalone) []int {
	b.Helper()
	found := []int{s.PID()}

	if text, err := os.ReadFile(filepath.Join(s.StateDir, "postgres", "data", "postmaster.pid")); err == nil {
		first, _, _ := strings.Cut(string(text), "\n")
		postmaster, err := strconv.Atoi(first)
		require.NoError(b, err)

		found = append(found, postmaster)
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", postmaster, postmaster))
		require.NoError(b, err)

		for child := range strings.FieldsSeq(string(children)) {
			pid, err := strconv.Atoi(child)
			require.NoError(b, err)
			found = append(found, pid)
		}
	}

	return found
}

// usage is the processor time of a standalone and its PostgreSQL.
type usage struct{ server, postgres time.Duration }

// since returns the difference to an earlier usage.
func (u usage) since(before usage) usage {
	return usage{u.server - before.server, u.postgres - before.postgres}
}

// used returns the processor time that a standalone and its PostgreSQL have
// used so far. The time of ended processes of connections is in the 16th and
// 17th field of their parent.
func used(b *testing.B, s *harness.Standalone) usage {
	b.Helper()
	var u usage

	for i, pid := range family(b, s) {
		fields, err := stat(pid)
		switch {
		case err != nil: // the process has just ended
		case i == 0:
			u.server = ticks(b, fields[11:13])
		default:
			u.postgres += ticks(b, fields[11:15])
		}
	}

	return u
}

// memory returns an entry of /proc/PID/status (proc(5)) in MiB.
func memory(b *testing.B, pid int, name string) float64 {
	b.Helper()
	value, err := kibibytes(fmt.Sprintf("/proc/%d/status", pid), name)
	require.NoError(b, err)
	return value / 1024
}

// resident returns the memory of a standalone's process and of all processes of
// its PostgreSQL, in MiB. Pages that PostgreSQL's processes share count once.
func resident(b *testing.B, s *harness.Standalone) (server, postgres float64) {
	b.Helper()
	for i, pid := range family(b, s) {
		value, err := kibibytes(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss")
		switch {
		case err != nil: // the process has just ended
		case i == 0:
			server = value / 1024
		default:
			postgres += value / 1024
		}
	}
	return server, postgres
}

// kibibytes returns an entry of a file in /proc that is in KiB.
func kibibytes(path, name string) (float64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}

	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strconv.ParseFloat(strings.Fields(value)[0], 64)
		}
	}

	return 0, fmt.Errorf("%s has no %s", path, name)
}
