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

// tick is the unit of processor time in /proc (proc(5)); Linux has one hundredth of a second everywhere.
const tick = 10 * time.Millisecond

// processorTime reads how long a process has run: the 14th and 15th field of /proc/PID/stat.
func processorTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	fields, err := stat(pid)
	require.NoError(b, err)
	return ticks(b, fields[11:13])
}

// stat reads /proc/PID/stat from its third field on.
func stat(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	_, rest, ok := strings.Cut(string(text), ") ") // the second field, a name, may hold spaces
	if !ok {
		return nil, fmt.Errorf("/proc/%d/stat is not understood", pid)
	}
	return strings.Fields(rest), nil
}

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

// family lists a standalone's process and those of its PostgreSQL.
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

// usage is what a standalone has used of the processors.
type usage struct{ server, postgres time.Duration }

func (u usage) since(before usage) usage {
	return usage{u.server - before.server, u.postgres - before.postgres}
}

// used reads what a standalone and its PostgreSQL have used so far. A connection's process that ended has left its time
// with its parent: the 16th and 17th field.
func used(b *testing.B, s *harness.Standalone) usage {
	b.Helper()
	var u usage
	for i, pid := range family(b, s) {
		fields, err := stat(pid)
		switch {
		case err != nil: // ended just now
		case i == 0:
			u.server = ticks(b, fields[11:13])
		default:
			u.postgres += ticks(b, fields[11:15])
		}
	}
	return u
}

// memory reads a line of /proc/PID/status, which is in KiB (proc(5)), and returns MiB.
func memory(b *testing.B, pid int, name string) float64 {
	b.Helper()
	value, err := kibibytes(fmt.Sprintf("/proc/%d/status", pid), name)
	require.NoError(b, err)
	return value / 1024
}

// resident is the memory of a standalone's own process and of all of its PostgreSQL, in MiB. Pages that PostgreSQL's
// processes share are counted once.
func resident(b *testing.B, s *harness.Standalone) (server, postgres float64) {
	b.Helper()
	for i, pid := range family(b, s) {
		value, err := kibibytes(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss")
		switch {
		case err != nil: // ended just now
		case i == 0:
			server = value / 1024
		default:
			postgres += value / 1024
		}
	}
	return server, postgres
}

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
