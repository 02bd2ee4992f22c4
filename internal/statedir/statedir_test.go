package statedir_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/internal/needtest"
	"github.com/cyborg-project/cyborg/internal/statedir"
)

// holdEnv makes the test binary a process that opens the directory it names,
// says how that went, and waits.
const holdEnv = "STATEDIR_TEST_HOLD"

func TestMain(m *testing.M) {
	if path := os.Getenv(holdEnv); path != "" {
		os.Exit(hold(path))
	}
	os.Exit(m.Run())
}

// hold is that process. It returns its exit status.
func hold(path string) int {
	dir, err := statedir.Open(path)
	if err != nil {
		fmt.Println(cyborg.ErrorKindOf(err), err)
		return 1
	}

	fmt.Println("open", dir.Path())
	_, err = io.Copy(io.Discard, os.Stdin) // until the test closes it, or kills us
	if err != nil || dir.Close() != nil {
		return 1
	}
	return 0
}

// holder starts such a process and returns it with the first line that it
// wrote.
func holder(t *testing.T, path string, attr *syscall.SysProcAttr) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe") // by that name another user can run it, too
	cmd.Env = append(os.Environ(), holdEnv+"="+path)
	cmd.SysProcAttr = attr
	cmd.Stderr = os.Stderr

	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})

	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	return cmd, line
}

func TestOpenCreatesAndReopens(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a", "state")

	dir, err := statedir.Open(path)
	require.NoError(t, err)
	require.Equal(t, path, dir.Path())
	require.Equal(t, filepath.Join(path, "x", "y"), dir.Join("x", "y"))

	info, err := os.Stat(path)
	require.NoError(t, err)
	want := os.FileMode(0o700)
	if os.Geteuid() == 0 {
		want = 0o711
	}
	require.Equal(t, want, info.Mode().Perm())

	require.NoError(t, os.WriteFile(dir.Join("kept"), []byte("x"), 0o600))
	require.NoError(t, dir.Close())

	again, err := statedir.Open(path)
	require.NoError(t, err)
	require.FileExists(t, again.Join("kept"))
	require.NoError(t, again.Close())
}

func TestOpenTakesAnEmptyDirectory(t *testing.T) {
	t.Parallel()
	dir, err := statedir.Open(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, dir.Close())
}

// TestOpenAfterDeathBeforeMarkerWasWritten: a process that died between the
// creation and the writing of the marker must not make the directory foreign.
func TestOpenAfterDeathBeforeMarkerWasWritten(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(path, "lock"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(path, "cyborg-state"), nil, 0o600))

	for range 2 {
		dir, err := statedir.Open(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(dir.Join("content"), nil, 0o600))
		require.NoError(t, dir.Close())
	}
}

// TestOpenRefuses: what is not ours, or too new, is refused and stays as it is.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		files map[string]string
		want  string
	}{
		"a directory of someone else": {
			files: map[string]string{"thesis.tex": "…"},
			want:  "holds something else (thesis.tex)",
		},
		"a newer format": {
			files: map[string]string{"cyborg-state": fmt.Sprintf("cyborg-state %d\n", statedir.Format+1), "data": ""},
			want:  fmt.Sprintf("has format %d and this release knows formats up to %d", statedir.Format+1, statedir.Format),
		},
		"a marker that is none": {
			files: map[string]string{"cyborg-state": "hello"},
			want:  `it reads "hello"`,
		},
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := t.TempDir()
			for name, content := range test.files {
				require.NoError(t, os.WriteFile(filepath.Join(path, name), []byte(content), 0o600))
			}

			_, err := statedir.Open(path)
			require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
			require.ErrorContains(t, err, test.want)
			require.ErrorContains(t, err, path)

			for name, content := range test.files {
				got, err := os.ReadFile(filepath.Join(path, name))
				require.NoError(t, err)
				require.Equal(t, content, string(got))
			}
		})
	}

	t.Run("a file", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		_, err := statedir.Open(path)
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err))
		require.ErrorContains(t, err, path)
	})
}

func TestOpenNamesTheProcessThatUsesIt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state")
	other, line := holder(t, path, nil)
	require.Equal(t, "open "+path+"\n", line)

	_, err := statedir.Open(path)
	require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err))
	require.ErrorContains(t, err, "is used by process "+strconv.Itoa(other.Process.Pid))

	require.NoError(t, other.Process.Kill())
	_ = other.Wait() // killed: not an exit status of zero
	dir, err := statedir.Open(path)
	require.NoError(t, err, "a killed process leaves no lock behind")
	require.NoError(t, dir.Close())
}

// TestOpenWaitsForTheNameOfTheProcess: a process that has just taken the lock has
// not written its id yet, and the file names the process before it, which has
// ended.
func TestOpenWaitsForTheNameOfTheProcess(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		then func(t *testing.T, lock *os.File) // what that process does next
		want string                            // in the refusal; empty where there is none
	}{
		{
			name: "it writes its id",
			then: func(t *testing.T, lock *os.File) {
				t.Helper()
				_, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n          "), 0)
				require.NoError(t, err)
			},
			want: "is used by process " + strconv.Itoa(os.Getpid()) + ":",
		},
		{
			name: "it never does",
			then: func(*testing.T, *os.File) {},
			want: "is used by another process:",
		},
		{
			name: "it ends",
			then: func(t *testing.T, lock *os.File) { t.Helper(); require.NoError(t, lock.Close()) },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "state")
			former, _ := holder(t, path, nil)
			require.NoError(t, former.Process.Kill())
			_ = former.Wait() // killed: not an exit status of zero

			lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR, 0)
			require.NoError(t, err)
			defer lock.Close()
			require.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
			waitRead := watchReads(t, lock.Name())

			var dir *statedir.Dir
			opened := make(chan error, 1)
			go func() {
				var err error
				dir, err = statedir.Open(path)
				opened <- err
			}()

			waitRead() // Open has read the id of the former process
			test.then(t, lock)

			err = <-opened
			if test.want == "" {
				require.NoError(t, err)
				require.NoError(t, dir.Close())
				return
			}
			require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err))
			require.ErrorContains(t, err, test.want)
		})
	}
}

// watchReads watches a file from now on. The function that it returns waits until
// somebody has read from the file.
func watchReads(t *testing.T, path string) (wait func()) {
	t.Helper()
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	require.NoError(t, err)
	reads := os.NewFile(uintptr(watch), "inotify")
	t.Cleanup(func() { require.NoError(t, reads.Close()) })

	_, err = unix.InotifyAddWatch(watch, path, unix.IN_ACCESS)
	require.NoError(t, err)

	return func() {
		t.Helper()
		_, err := reads.Read(make([]byte, 512))
		require.NoError(t, err)
	}
}

func TestOpenInOneProcessTwice(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	dir, err := statedir.Open(path)
	require.NoError(t, err)
	_, err = statedir.Open(path)
	require.Equal(t, cyborg.ErrClaimed, cyborg.ErrorKindOf(err))
	require.NoError(t, dir.Close())
}

func TestOpenOfAnotherUsersDirectory(t *testing.T) {
	t.Parallel()
	needtest.Root(t) // who becomes another user
	path := filepath.Join(t.TempDir(), "state")
	dir, err := statedir.Open(path)
	require.NoError(t, err)
	require.NoError(t, dir.Close())

	const nobody = 65534
	_, line := holder(t, path, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}})
	require.Contains(t, line, "invalid the state directory "+path+" cannot be used: run as the user that owns it")
}

// TestDefault: root has a directory of the system, and any other user one below
// XDG_STATE_HOME or the home directory.
func TestDefault(t *testing.T) {
	if os.Geteuid() == 0 {
		path, err := statedir.Default()
		require.NoError(t, err)
		require.Equal(t, "/var/lib/cyborg", path)
		return
	}

	t.Setenv("HOME", "/home/me")
	t.Setenv("XDG_STATE_HOME", "")
	path, err := statedir.Default()
	require.NoError(t, err)
	require.Equal(t, "/home/me/.local/state/cyborg", path)

	t.Setenv("XDG_STATE_HOME", "relative")
	path, err = statedir.Default()
	require.NoError(t, err)
	require.Equal(t, "/home/me/.local/state/cyborg", path, "a relative path is ignored")

	t.Setenv("XDG_STATE_HOME", "/state")
	path, err = statedir.Default()
	require.NoError(t, err)
	require.Equal(t, "/state/cyborg", path)

	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("HOME", "")
	_, err = statedir.Default()
	require.ErrorContains(t, err, "--state-dir")
}

// TestOpenRefusesDirectoriesWritableByOthers: where others could replace our
// files, nothing is stored, whichever path leads there.
func TestOpenRefusesDirectoriesWritableByOthers(t *testing.T) {
	t.Parallel()
	for _, mode := range []os.FileMode{0o777, 0o702, 0o777 | os.ModeSticky} {
		dir := filepath.Join(t.TempDir(), "state")
		require.NoError(t, os.Mkdir(dir, 0o700))
		link := dir + "-link"
		require.NoError(t, os.Symlink(dir, link))
		require.NoError(t, os.Chmod(dir, mode))

		for _, path := range []string{dir, link} {
			_, err := statedir.Open(path)
			require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "%v: %v", mode, err)
			require.ErrorContains(t, err, "chmod go-w")
		}

		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, entries)

		require.NoError(t, os.Chmod(dir, 0o755))
		opened, err := statedir.Open(link)
		require.NoError(t, err)
		require.NoError(t, opened.Close())
	}

	needtest.Root(t) // who can give a directory away

	foreign := filepath.Join(t.TempDir(), "foreign")
	require.NoError(t, os.Mkdir(foreign, 0o700))
	require.NoError(t, os.Chown(foreign, 4711, 4711))
	_, err := statedir.Open(foreign)
	require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), "%v", err)
	require.ErrorContains(t, err, "4711")

	require.NoError(t, os.Chown(foreign, 0, 4711))
	require.NoError(t, os.Chmod(foreign, 0o770))
	_, err = statedir.Open(foreign)
	require.ErrorContains(t, err, "chmod go-w")
}

// TestMarkerIsReplacedAsAWhole: a process or a machine that died while it took
// the directory into use has left an empty marker, or a part of the new one. The
// directory is still new, and the marker that is written replaces the empty one.
func TestMarkerIsReplacedAsAWhole(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.Mkdir(path, 0o700))
	marker, other := filepath.Join(path, "cyborg-state"), filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(marker, nil, 0o600))
	require.NoError(t, os.Link(marker, other))
	require.NoError(t, os.WriteFile(filepath.Join(path, ".cyborg-state.new"), []byte("cyb"), 0o600))

	dir, err := statedir.Open(path)
	require.NoError(t, err)
	require.NoError(t, dir.Close())

	content, err := os.ReadFile(marker)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("cyborg-state %d\n", statedir.Format), string(content))
	content, err = os.ReadFile(other)
	require.NoError(t, err)
	require.Empty(t, content, "the marker was not written in place")

	require.NoError(t, os.Remove(marker))
	require.NoError(t, os.WriteFile(filepath.Join(path, ".cyborg-state.new"), []byte("cyb"), 0o600))
	dir, err = statedir.Open(path)
	require.NoError(t, err, "without a marker, too")
	require.NoError(t, dir.Close())
	require.FileExists(t, marker)
}

// TestMarkerIsAPlainFile: a marker that somebody has made a link or a pipe is
// neither followed nor read, which would never end.
func TestMarkerIsAPlainFile(t *testing.T) {
	t.Parallel()
	for name, plant := range map[string]func(marker string) error{
		"a link":      func(marker string) error { return os.Symlink("/etc/hostname", marker) },
		"a pipe":      func(marker string) error { return syscall.Mkfifo(marker, 0o600) },
		"a directory": func(marker string) error { return os.Mkdir(marker, 0o700) },
	} {
		path := t.TempDir()
		require.NoError(t, plant(filepath.Join(path, "cyborg-state")))
		_, err := statedir.Open(path)
		require.Equal(t, cyborg.ErrInvalid, cyborg.ErrorKindOf(err), name)
		require.ErrorContains(t, err, "is no plain file", name)
	}
}
