package kernelcall

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Running is a process that makes an access.
type Running struct {
	PID string `json:"pid"` // as the proc file system at /proc has it
	// Boot is the boot id, and Start is when the process was started, in the unit of
	// proc_pid_stat(5): two processes with one id differ in them.
	Boot  string `json:"boot"`
	Start string `json:"start"`
	// Action says what the access is, as Call.String does.
	Action string    `json:"action"`
	Since  time.Time `json:"since"`
}

// note writes the file that says that this process is there.
func (c Call) note() error {
	r := Running{Action: c.String(), Since: time.Now()}
	var err error
	if r.PID, err = os.Readlink("/proc/self"); err != nil {
		return err
	}
	if r.Boot, err = bootID(); err != nil {
		return err
	}
	if r.Start, err = startOf(r.PID); err != nil {
		return err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}

	if err := os.MkdirAll(filepath.Dir(c.Note), 0o700); err != nil {
		return err
	}
	unfinished := c.Note + ".new"
	if err := os.WriteFile(unfinished, text, 0o600); err != nil {
		return err
	}
	return os.Rename(unfinished, c.Note)
}

// Find returns the process that a note is about; false where there is none any
// more.
func Find(note string) (Running, bool) {
	var r Running
	text, err := os.ReadFile(note)
	if err != nil || json.Unmarshal(text, &r) != nil {
		return Running{}, false
	}

	boot, err := bootID()
	if err != nil || boot != r.Boot {
		return Running{}, false
	}
	start, err := startOf(r.PID)
	return r, err == nil && start == r.Start
}

// bootID returns what differs between two boots.
func bootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
}

// startOf returns when a process was started, in clock ticks since the boot. For
// a process that has ended, and that nobody has waited for yet, it is empty.
func startOf(process string) (string, error) {
	text, err := os.ReadFile(filepath.Join("/proc", filepath.Base(process), "stat"))
	if err != nil {
		return "", err
	}

	// The name of the program, in parentheses, may contain anything. The state is the
	// third field, the first behind the name, and the time is the 22nd.
	const state, time = 0, 19
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) <= time {
		return "", fmt.Errorf("/proc/%s/stat has %d fields behind the name", process, len(fields))
	}
	if fields[state] == "Z" || fields[state] == "X" {
		return "", nil
	}
	return fields[time], nil
}
