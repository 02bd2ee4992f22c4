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
	"syscall"
)

// ErrProcess is the error where the process could not be started, could not say
// that it is there, or has ended without an answer. Then nobody knows anything of
// the device, and an access that was begun may have been made.
var ErrProcess = errors.New("the process for it failed")

// Kind is what an access does.
type Kind string

// The kinds.
const (
	Read  Kind = "read"  // reads a file
	Write Kind = "write" // writes a text to a file with one write(2)
	Open  Kind = "open"  // opens a file for reading and writing, and closes it
	// Registers reads from the configuration space of a PCI function its header and,
	// behind that, its device serial number, if it has one.
	Registers Kind = "registers"
	// DeviceStatus reads from the configuration space of a PCI function its header and,
	// behind that, its Device Status register, if it has PCI Express.
	DeviceStatus Kind = "device_status"
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
}

// String says what the access is, such as "opening dev/vfio/12".
func (c Call) String() string {
	switch c.Kind {
	case Write:
		return "writing to " + c.Path
	case Open:
		return "opening " + c.Path
	case DeviceStatus:
		return "reading the device status in " + c.Path
	case Read, Registers:
	}
	return "reading " + c.Path
}

// order is what the process is told.
type order struct {
	Call
	Parent int `json:"parent"` // the id of the process that waits for it
}

// reply is the answer of the process.
type reply struct {
	Text  []byte        `json:"text,omitempty"`
	Errno syscall.Errno `json:"errno,omitempty"` // of the system call on the file of the path
	Error string        `json:"error,omitempty"` // any other reason why the path could not be opened
}

// Do makes the access, and returns once its process has ended, which may be
// never. The error is ErrProcess, or wraps the syscall.Errno that the kernel has
// returned, if any.
func (c Call) Do() (string, error) {
	input, err := c.order()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %v", c, ErrProcess, err) //nolint:errorlint // its error number says nothing of the device
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
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var output, complaint bytes.Buffer
	process.Stdout, process.Stderr = &output, &complaint
	if err := process.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %v: %s", c, ErrProcess, err, bytes.TrimSpace(complaint.Bytes())) //nolint:errorlint // as above
	}

	var r reply
	if err := json.Unmarshal(output.Bytes(), &r); err != nil {
		return "", fmt.Errorf("%s: %w: it answered %q", c, ErrProcess, output.String())
	}
	switch {
	case r.Errno != 0:
		return "", &fs.PathError{Op: string(c.Kind), Path: c.Path, Err: r.Errno}
	case r.Error != "":
		return "", errors.New(r.Error)
	}
	return string(r.Text), nil
}

// order returns what the process is told. Its working directory is not that of
// this process.
func (c Call) order() ([]byte, error) {
	var err error
	if c.Root, err = filepath.Abs(c.Root); err != nil {
		return nil, err
	}
	if c.Note != "" {
		if c.Note, err = filepath.Abs(c.Note); err != nil {
			return nil, err
		}
	}
	return json.Marshal(order{c, os.Getpid()})
}

// make makes the access in this process.
func (c Call) make() reply {
	root, err := os.OpenRoot(c.Root)
	if err != nil {
		return reply{Error: err.Error()}
	}

	flags := map[Kind]int{
		Read: os.O_RDONLY, Registers: os.O_RDONLY, DeviceStatus: os.O_RDONLY, Open: os.O_RDWR,
		Write: os.O_WRONLY, // without O_CREATE: an attribute that does not exist is an error
	}
	flag, known := flags[c.Kind]
	if !known {
		return reply{Error: fmt.Sprintf("there is no access of kind %q", c.Kind)}
	}

	var r reply
	file, err := root.OpenFile(c.Path, flag, 0)
	if err == nil {
		r.Text, err = c.use(file)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		r.Error = err.Error()
		_ = errors.As(err, &r.Errno) // others have the text alone
	}
	return r
}

// use reads or writes the file. It does not leave that to os.File, which writes
// again what the kernel has refused for the moment (EAGAIN, such as of a driver
// that defers a device), and waits for a message that sysfs never sends.
func (c Call) use(file *os.File) ([]byte, error) {
	descriptor := int(file.Fd())
	if err := syscall.SetNonblock(descriptor, false); err != nil {
		return nil, err
	}

	switch c.Kind {
	case Write:
		return nil, ignoringInterrupts(func() error {
			_, err := syscall.Write(descriptor, []byte(c.Text))
			return err
		})

	case Read:
		return read(descriptor, c.Most)

	case Registers, DeviceStatus:
		header, err := read(descriptor, HeaderSize)
		if err != nil || len(header) < HeaderSize {
			return header, err
		}
		more := serialNumber
		if c.Kind == DeviceStatus {
			more = deviceStatus
		}
		return append(header, more(descriptorAt(descriptor))...), nil

	case Open:
	}
	return nil, nil
}

// read returns so many bytes of the file, or what it has.
func read(descriptor, most int) ([]byte, error) {
	text, page := []byte{}, make([]byte, 64<<10)
	for len(text) < most {
		var n int
		err := ignoringInterrupts(func() (err error) {
			n, err = syscall.Read(descriptor, page[:min(len(page), most-len(text))])
			return err
		})
		if err != nil || n == 0 {
			return text, err
		}
		text = append(text, page[:n]...)
	}
	return text, nil
}

// ignoringInterrupts makes a system call again that a signal has interrupted.
func ignoringInterrupts(call func() error) error {
	for {
		if err := call(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// answer makes the access that the text describes, and writes the answer.
func answer(text string, to io.Writer) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}

	if o.Note != "" {
		if err := o.note(); err != nil {
			return err
		}
		defer func() { _ = os.Remove(o.Note) }() // where it stays, Find sees that the process has ended
	}

	// A parent that died before this process had its signal is known by this.
	if os.Getppid() != o.Parent {
		return errors.New("the process that it is for has ended")
	}
	return json.NewEncoder(to).Encode(o.make())
}
