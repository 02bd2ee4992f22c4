// Package clock gives a program of the tests a real clock that is wrong: every
// part of the program reads it, its libraries too, and so do the processes that
// it forks. The machine's clock stays as it is.
//
// A program asks the time of day in the vDSO, a small library that the kernel
// maps into each process. Start replaces its functions in the memory of the new
// process, before the first instruction of the program, with ones that ask the
// kernel and add an offset. The monotonic clock stays true, as it does where
// somebody sets the clock of a machine. What the kernel writes itself, such as
// the times of files, is true as well, and so is the clock of another program
// that the process executes.
//
// It needs Linux, the permission to trace processes of its own, and for Shift
// the permission to write their memory. Refused says whether it has them.
package clock

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Required is the environment variable that makes Need fail a test, instead of
// skipping it, where the clocks of processes cannot be changed.
const Required = "CYBORG_TEST_CLOCKS"

// Need skips the test where this machine does not let it change the clocks of
// processes. With CYBORG_TEST_CLOCKS=required in the environment, the test fails
// instead.
func Need(t testing.TB) {
	t.Helper()
	err := Refused()
	switch {
	case err == nil:
	case os.Getenv(Required) == "required":
		t.Fatalf("%s=required, and the clocks of processes cannot be changed here: %v", Required, err)
	default:
		t.Skipf("the clocks of processes cannot be changed here: %v", err)
	}
}

// Refused returns why the clocks of processes cannot be changed here; nil where
// they can be. It tries that with a process that does nothing.
func Refused() error {
	cmd := exec.Command("sleep", "600") //nolint:noctx // it is killed below
	if err := Start(cmd, time.Hour); err != nil {
		return err
	}

	err := Shift(cmd.Process.Pid, 0)
	_ = cmd.Process.Kill() // it cannot be refused
	_ = cmd.Wait()         // it was killed
	return err
}

// Start starts the command, like its own method. The clock of the process is
// off by the offset: ahead where the offset is positive. Whole seconds count.
func Start(cmd *exec.Cmd, offset time.Duration) error {
	functions, err := replacement()
	if err != nil {
		return err
	}

	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Ptrace = true // the process stops before its first instruction

	// Only the thread that started the process may change it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	if err := cmd.Start(); err != nil {
		return err
	}

	if err := functions.install(cmd.Process.Pid, offset); err != nil {
		_ = cmd.Process.Kill() // the error says more
		_ = cmd.Wait()         // as above
		return fmt.Errorf("the clock of process %d cannot be changed: %w", cmd.Process.Pid, err)
	}
	return nil
}

// Shift makes the clock of a running process jump: from now on it is off by this
// offset from the machine's. Start must have started the process, or one of
// whose it is a fork. The error is os.ErrProcessDone where the process has
// ended.
func Shift(pid int, offset time.Duration) error {
	functions, err := replacement()
	if err != nil {
		return err
	}

	base, err := vdso(pid)
	if err != nil {
		return err
	}

	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return gone(err)
	}
	defer memory.Close()

	return functions.shift(memory, base, offset)
}

// functions are the replacement for those of the vDSO. They are the same for
// each process, because the kernel maps the same vDSO into all of them.
type functions struct {
	at      uint64 // where they are written, as a distance from the vDSO's begin; it holds the offset, and the code follows
	entries []entry
}

// entry is a function of the vDSO that is replaced by a jump.
type entry struct {
	at   uint64 // distance from the vDSO's begin
	was  []byte // what stands there
	jump []byte // what is written there
}

// replacement lays the functions out for the vDSO of this kernel, which it reads
// in this process.
func replacement() (*functions, error) {
	if len(code()) == 0 {
		return nil, fmt.Errorf("no code is written for %s", runtime.GOARCH)
	}

	base, err := vdso(os.Getpid())
	if err != nil {
		return nil, err
	}

	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		return nil, err
	}
	defer memory.Close()

	return layOut(memory, base)
}

// layOut reads a vDSO in which nothing is replaced. The code goes behind the
// end of the library, where its last page is empty.
func layOut(memory *os.File, base region) (*functions, error) {
	image := make([]byte, base.size)
	if _, err := memory.ReadAt(image, int64(base.from)); err != nil {
		return nil, err
	}

	f := &functions{at: uint64(len(bytes.TrimRight(image, "\x00"))+63) &^ 63}
	if f.at+word+uint64(len(code())) > base.size {
		return nil, errors.New("the vDSO of this kernel has no room for other functions")
	}

	library, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, fmt.Errorf("the vDSO cannot be read: %w", err)
	}
	symbols, err := library.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("the vDSO cannot be read: %w", err)
	}

	for _, symbol := range symbols {
		start, replaced := startTable[symbol.Name]
		if !replaced {
			continue
		}

		jump := jump(symbol.Value, f.at+word+start)
		if symbol.Size < uint64(len(jump)) {
			return nil, fmt.Errorf("%s of this kernel's vDSO has no room for a jump", symbol.Name)
		}
		f.entries = append(f.entries, entry{at: symbol.Value, was: image[symbol.Value:][:len(jump)], jump: jump})
	}

	if len(f.entries) != len(startTable) {
		return nil, fmt.Errorf("the vDSO of this kernel has %d of %d functions", len(f.entries), len(startTable))
	}
	return f, nil
}

// word is the size of the offset, which stands in front of the code.
const word = 8

// seconds is the offset as the code adds it.
func seconds(offset time.Duration) []byte {
	return binary.NativeEndian.AppendUint64(nil, uint64(int64(offset/time.Second)))
}

// install waits until the new process has stopped, replaces the functions, and
// lets it go on, no longer traced.
func (f *functions) install(pid int, offset time.Duration) error {
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(pid, &status, syscall.WALL, nil)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
	if !status.Stopped() {
		return fmt.Errorf("it ended instead of stopping (status %#x)", int(status))
	}

	base, err := vdso(pid)
	if err != nil {
		return err
	}

	// ptrace and not the file of the process's memory: a process of another user
	// may be closed to others, and is open to its tracer.
	block := append(seconds(offset), code()...)
	if _, err := syscall.PtracePokeData(pid, uintptr(base.from+f.at), block); err != nil {
		return err
	}

	for _, e := range f.entries {
		found := make([]byte, len(e.was))
		if _, err := syscall.PtracePeekData(pid, uintptr(base.from+e.at), found); err != nil {
			return err
		}
		if !bytes.Equal(found, e.was) {
			return errors.New("its vDSO is not the one of this process")
		}
		if _, err := syscall.PtracePokeData(pid, uintptr(base.from+e.at), e.jump); err != nil {
			return err
		}
	}

	return syscall.PtraceDetach(pid)
}

// shift writes the offset. The word is aligned, so that no thread of the process
// sees half of it.
func (f *functions) shift(memory *os.File, base region, offset time.Duration) error {
	first := f.entries[0]
	found := make([]byte, len(first.jump))
	if _, err := memory.ReadAt(found, int64(base.from+first.at)); err != nil {
		return gone(err)
	}
	if !bytes.Equal(found, first.jump) {
		return errors.New("the process was started with the machine's clock, so that its clock cannot jump")
	}

	_, err := memory.WriteAt(seconds(offset), int64(base.from+f.at))
	return gone(err)
}

// gone turns the errors of a process without memory into os.ErrProcessDone.
func gone(err error) error {
	for _, of := range []error{fs.ErrNotExist, syscall.ESRCH, syscall.EIO, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, of) {
			return os.ErrProcessDone
		}
	}
	return err
}

// region is a part of a process's memory.
type region struct{ from, size uint64 }

// vdso finds the vDSO of a process. The error is os.ErrProcessDone where the
// process has no memory any more.
func vdso(pid int) (region, error) {
	// The kernel gives the list out in parts. Where the process ends in between, the
	// parts that follow are empty, and so is the list that is read next.
	for range 2 {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		if err == nil && len(maps) == 0 {
			return region{}, os.ErrProcessDone
		}
		if err != nil {
			return region{}, gone(err)
		}

		found, err := vdsoIn(string(maps))
		if err != nil || found != (region{}) {
			return found, err
		}
	}

	return region{}, errors.New("the kernel maps no vDSO into processes")
}

// vdsoIn finds the vDSO in a list of mappings (proc_pid_maps(5)); the zero value
// is none.
func vdsoIn(maps string) (region, error) {
	for line := range strings.Lines(maps) {
		if !strings.HasSuffix(line, "[vdso]\n") {
			continue
		}

		var from, to uint64
		if _, err := fmt.Sscanf(line, "%x-%x ", &from, &to); err != nil {
			return region{}, err
		}
		return region{from: from, size: to - from}, nil
	}

	return region{}, nil
}
