// Package kernelcall makes one access to the kernel in a process of its own.
//
// An access to a device can sleep in the kernel for as long as the driver of the
// device likes, and a process that sleeps there cannot be killed: its ports, its
// locks and its open files stay taken. So the process of the agent never makes
// such an access itself. It starts this program once more; that process makes
// the access and ends, and inherits nothing but a pipe for its answer. It says in
// a file that it is there, from which another agent learns of it, also after the
// first one has died.
//
// The package imports the standard library only, because all that it imports is
// initialized in each of these processes. Go initializes packages in the order of
// their paths as far as their imports allow, so the process ends before most of
// the program is initialized, and costs some milliseconds.
package kernelcall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// name is the name under which the process runs, by which it knows what it is.
const name = "cyborg-kernel-call"

// Kind is what an access does.
type Kind string

// The kinds.
const (
	Read  Kind = "read"  // reads a file
	Write Kind = "write" // writes a text to a file with one write(2)
	Open  Kind = "open"  // opens a file for reading and writing, and closes it
)

// Call is one access to the kernel.
type Call struct {
	Kind Kind   `json:"kind"`
	Root string `json:"root"` // directory below which the path lies; no link leads out of it
	Path string `json:"path"`
	Text string `json:"text,omitempty"` // what Write writes
	// Most is how many bytes Read returns at most.
	Most int `json:"most,omitempty"`
	// Note is the file that says that the process is there, while it is; empty for
	// none. The process makes it, with its directory, and removes it.
	Note string `json:"note,omitempty"`
	// Action describes the access in the note.
	Action string `json:"action,omitempty"`
}

// String says what the access is, such as "open of dev/vfio/12".
func (c Call) String() string { return string(c.Kind) + " of " + c.Path }

// reply is the answer of the process.
type reply struct {
	Text  []byte        `json:"text,omitempty"`
	Errno syscall.Errno `json:"errno,omitempty"` // of the system call that failed
	Error string        `json:"error,omitempty"`
}

// Do makes the access, and returns once its process has ended, which may be
// never. An error wraps the syscall.Errno that the kernel has returned, if any.
func (c Call) Do() (string, error) {
	input, err := c.input()
	if err != nil {
		return "", err
	}

	// The kernel kills the process with the thread that has started it, so the
	// thread must not end before. What has not begun when the agent dies must not
	// happen after the next agent has looked.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	// No context ends it: it would be killed between its access and its answer, and
	// while it sleeps it cannot be killed.
	process := exec.CommandContext(context.Background(), "/proc/self/exe")
	process.Args = []string{name, string(input)}
	process.Env = []string{"GOMAXPROCS=1"}
	process.Dir = "/"
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var output, complaint bytes.Buffer
	process.Stdout, process.Stderr = &output, &complaint
	if err := process.Run(); err != nil {
		return "", fmt.Errorf("the process for the %s: %w: %s", c, err, bytes.TrimSpace(complaint.Bytes()))
	}

	var r reply
	if err := json.Unmarshal(output.Bytes(), &r); err != nil {
		return "", fmt.Errorf("the process for the %s answered %q: %w", c, output.String(), err)
	}
	switch {
	case r.Errno != 0:
		return "", &fs.PathError{Op: string(c.Kind), Path: c.Path, Err: r.Errno}
	case r.Error != "":
		return "", errors.New(r.Error)
	}
	return string(r.Text), nil
}

// input returns what the process is told. Its working directory is not that of
// this process.
func (c Call) input() ([]byte, error) {
	var err error
	if c.Root, err = filepath.Abs(c.Root); err != nil {
		return nil, err
	}
	if c.Note != "" {
		if c.Note, err = filepath.Abs(c.Note); err != nil {
			return nil, err
		}
	}
	return json.Marshal(c)
}

// init makes the access where this is the process for one. It is the beginning of
// the program, so that nothing else of it runs there.
func init() { //nolint:gochecknoinits // main comes after the initialization of all that the program imports
	if len(os.Args) != 2 || os.Args[0] != name {
		return
	}

	if err := answer(os.Args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		syscall.Exit(1)
	}
	syscall.Exit(0) // and not os.Exit: nothing has begun that would have to be ended
}

// answer makes the access that the text describes, and writes the answer.
func answer(text string, to io.Writer) error {
	var c Call
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}

	var r reply
	var err error
	if r.Text, err = c.make(); err != nil {
		r.Error = err.Error()
		_ = errors.As(err, &r.Errno) // others have the text alone
	}
	return json.NewEncoder(to).Encode(r)
}

// make makes the access in this process.
func (c Call) make() (text []byte, err error) {
	if c.Note != "" {
		if err := c.note(); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.Remove(c.Note)) }()
	}

	root, err := os.OpenRoot(c.Root)
	if err != nil {
		return nil, err
	}

	flags := map[Kind]int{
		Read: os.O_RDONLY, Open: os.O_RDWR,
		Write: os.O_WRONLY, // without O_CREATE: an attribute that does not exist is an error
	}
	flag, known := flags[c.Kind]
	if !known {
		return nil, fmt.Errorf("there is no access of kind %q", c.Kind)
	}

	file, err := root.OpenFile(c.Path, flag, 0)
	if err != nil {
		return nil, err
	}

	switch c.Kind {
	case Read:
		text, err = io.ReadAll(io.LimitReader(file, int64(c.Most)))
	case Write:
		_, err = file.WriteString(c.Text)
	case Open:
	}
	return text, errors.Join(err, file.Close())
}

// Running is a process that makes an access.
type Running struct {
	PID int `json:"pid"`
	// Start is when the process was started, in the unit of proc_pid_stat(5): two
	// processes with one id differ in it.
	Start  string    `json:"start"`
	Action string    `json:"action"`
	Since  time.Time `json:"since"`
}

// note writes the file that says that this process is there.
func (c Call) note() error {
	start, err := startOf("self")
	if err != nil {
		return err
	}
	text, err := json.Marshal(Running{PID: os.Getpid(), Start: start, Action: c.Action, Since: time.Now()})
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
// more. The proc file system is at /proc.
func Find(note string) (Running, bool) {
	var r Running
	text, err := os.ReadFile(note)
	if err != nil || json.Unmarshal(text, &r) != nil {
		return Running{}, false
	}
	start, err := startOf(strconv.Itoa(r.PID))
	return r, err == nil && start == r.Start
}

// startOf returns when a process was started, in clock ticks since the boot. For
// a process that has ended, and that nobody has waited for yet, it is empty.
func startOf(process string) (string, error) {
	text, err := os.ReadFile(filepath.Join("/proc", process, "stat"))
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
