package kernelcall

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"unsafe"
)

// name is the name under which the process runs, by which it knows what it is.
const name = "cyborg-kernel-call"

// init makes the access where this is the process for one. It is the beginning of
// the program, so that nothing else of it runs there.
func init() { //nolint:gochecknoinits // main comes after the initialization of all that the program imports
	if len(os.Args) != 2 || os.Args[0] != name {
		return
	}

	err := prepare()
	if err == nil {
		err = answer(os.Args[1], os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		syscall.Exit(1)
	}
	syscall.Exit(0) // and not os.Exit: nothing has begun that would have to be ended
}

// prepare makes the process what it should be.
func prepare() error {
	// What stops the agent, such as systemd, may send its signal to this process,
	// too, and the agent still waits for the answer. The agent's death ends it.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)

	// The kernel takes that away where the program has more rights than the one who
	// starts it (execve(2)). Whoever may start it could use its rights, then.
	const getParentDeathSignal = 2 // PR_GET_PDEATHSIG of linux/prctl.h
	var sent int32
	_, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, getParentDeathSignal, uintptr(unsafe.Pointer(&sent)), 0) //nolint:gosec // the package imports only the standard library, which does not have this call
	if errno != 0 {
		return errno
	}
	if syscall.Signal(sent) != syscall.SIGKILL {
		return errors.New("this process would outlive the one that it is for: the program must have no capabilities of its file, and no set-user-ID bit")
	}

	// Otherwise ps shows the name of the link by which the program was started.
	return os.WriteFile("/proc/self/comm", []byte(name), 0)
}
