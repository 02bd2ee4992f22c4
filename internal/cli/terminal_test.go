package cli_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/apiclient"
)

// asProgram is the variable that makes the test binary run the command line
// instead of the tests.
const asProgram = "CYBORG_TEST_AS_PROGRAM"

// terminal is a pseudo-terminal on which the program runs.
type terminal struct {
	screen

	t        *testing.T
	keyboard *os.File
	program  *exec.Cmd
	gone     chan struct{} // closed once the program has ended and the screen has all that it wrote
}

// onTerminal starts the program on a terminal of its own with this width.
func onTerminal(t *testing.T, api *fakeAPI, columns uint16, args ...string) *terminal {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(int(ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: 24}))
	theirs, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)

	program, err := os.Executable()
	require.NoError(t, err)

	term := &terminal{t: t, keyboard: ours, program: exec.CommandContext(t.Context(), program, args...), gone: make(chan struct{})}
	term.program.Env = []string{asProgram + "=1", "CYBORG_URL=" + api.server.URL, "TERM=xterm", "HOME=" + t.TempDir()}
	term.program.Stdin, term.program.Stdout, term.program.Stderr = theirs, theirs, theirs
	term.program.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, term.program.Start())
	require.NoError(t, theirs.Close())

	go func() {
		defer close(term.gone)
		buffer := make([]byte, 4096)
		for {
			n, err := ours.Read(buffer)
			_, _ = term.Write(buffer[:n]) // to memory
			if err != nil {               // the other side is closed
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = term.program.Process.Kill() // it has ended, unless the test failed
		<-term.gone
		require.NoError(t, ours.Close())
	})

	return term
}

// types sends keys to the program.
func (term *terminal) types(keys string) {
	term.t.Helper()
	_, err := term.keyboard.WriteString(keys)
	require.NoError(term.t, err)
}

// ends waits for the program's end and returns its exit code and all that was
// on the screen.
func (term *terminal) ends() (int, string) {
	term.t.Helper()
	_ = term.program.Wait() // the exit code tells the outcome
	<-term.gone
	return term.program.ProcessState.ExitCode(), term.String()
}

// TestTerminalQuestion: the question is asked and answered on a real terminal.
func TestTerminalQuestion(t *testing.T) {
	t.Parallel()
	api := newAPI(t, at(cyborg.OperationSucceeded))
	term := onTerminal(t, api, 100, "accelerator", "detach", "fast")
	term.awaits(t, "Go on? [y/N] ")
	term.types("n\n")
	code, said := term.ends()
	require.Equal(t, 1, code)
	require.Contains(t, said, "Nothing was changed.")
	require.Empty(t, api.changes())

	term = onTerminal(t, api, 100, "accelerator", "detach", "fast")
	term.awaits(t, "Instance "+instance+" loses 0000:3b:00.1 of fast")
	term.types("y\n")
	code, said = term.ends()
	require.Zero(t, code)
	require.Contains(t, said, "detach: succeeded in 1.5s")
	require.Len(t, api.changes(), 1)
}

// TestTerminalCtrlCDetachesFromProgress: Ctrl-C ends the display, never the
// operation, and says how to come back to it.
func TestTerminalCtrlCDetachesFromProgress(t *testing.T) {
	t.Parallel()
	api := newAPI(t, then(func(operation *apiclient.Operation) {
		operation.State = cyborg.OperationRunning
		operation.Progress = &cyborg.Progress{Step: "LoadBits", Percent: 50, Note: "a story that does not fit into the line"}
	}))

	term := onTerminal(t, api, 48, "accelerator", "program", "fast", "afu.gbs", "--id", "afu-1")
	term.awaits(t, "program [######......] 50% ")

	term.types("\x03")
	code, said := term.ends()
	require.Equal(t, 130, code)
	require.True(t, strings.HasSuffix(said, "Stopped waiting: operation "+operation.String()+" goes on.\r\n"+
		"Return to it with: cyborg operation watch "+operation.String()+"\r\n"), said)
}

func TestTerminalWatchEndsWithCtrlC(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	term := onTerminal(t, api, 160, "accelerator", "list", "--watch=10ms")
	term.awaits(t, "\x1b[32mready")
	api.has(func(a *apiclient.Accelerator) { a.Status = cyborg.StatusError })
	term.awaits(t, "\x1b[7m\x1b[31merror")
	term.types("\x03")
	code, _ := term.ends()
	require.Equal(t, 130, code)
}
