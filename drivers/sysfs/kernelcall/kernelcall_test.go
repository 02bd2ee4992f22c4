package kernelcall_test

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/drivers/sysfs/kernelcall"
)

const patience = time.Minute

func TestCalls(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, note := filepath.Join(dir, "attribute"), filepath.Join(dir, "notes", "note")
	require.NoError(t, os.WriteFile(file, []byte("before\n"), 0o600))
	require.NoError(t, os.Symlink("/etc", filepath.Join(dir, "out")))
	do := func(kind kernelcall.Kind, path, text string) (string, error) {
		return kernelcall.Call{Kind: kind, Root: dir, Path: path, Text: text, Most: 6, Note: note}.Do()
	}

	text, err := do(kernelcall.Read, "attribute", "")
	require.NoError(t, err)
	require.Equal(t, "before", text)

	_, err = do(kernelcall.Write, "attribute", "after!")
	require.NoError(t, err)
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "after!\n", string(content))

	_, err = do(kernelcall.Open, "attribute", "")
	require.NoError(t, err)

	for _, kind := range []kernelcall.Kind{kernelcall.Read, kernelcall.Write, kernelcall.Open} {
		_, err = do(kind, "nothing", "")
		require.ErrorIs(t, err, syscall.ENOENT, kind)
		require.NoFileExists(t, filepath.Join(dir, "nothing"))

		_, err = do(kind, "out/hostname", "")
		require.ErrorContains(t, err, "escapes", kind)
	}

	_, there := kernelcall.Find(note)
	require.False(t, there)
}

func TestFailures(t *testing.T) {
	t.Parallel()
	full := kernelcall.Call{Kind: kernelcall.Write, Root: "/", Path: "dev/full", Text: "x"}
	_, err := full.Do()
	require.ErrorIs(t, err, syscall.ENOSPC)

	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "attribute"), []byte("before"), 0o600))
	unnoted := kernelcall.Call{Kind: kernelcall.Write, Root: dir, Path: "attribute", Text: "after!", Note: "/proc/none/note"}
	_, err = unnoted.Do()
	require.ErrorIs(t, err, kernelcall.ErrProcess)
	require.NotErrorIs(t, err, syscall.ENOENT, "that would be said of the attribute")
	content, err := os.ReadFile(filepath.Join(dir, "attribute"))
	require.NoError(t, err)
	require.Equal(t, "before", string(content), "what cannot be noted is not done")
}

// hang makes a call that nobody answers: the other end of a pipe is not open.
func hang(dir, note string) (string, error) {
	return kernelcall.Call{Kind: kernelcall.Write, Root: dir, Path: "pipe", Text: "x", Note: note}.Do()
}

// found waits until a process has noted that it is there.
func found(t *testing.T, note string) kernelcall.Running {
	t.Helper()
	var running kernelcall.Running
	require.Eventually(t, func() (there bool) {
		running, there = kernelcall.Find(note)
		return there
	}, patience, time.Millisecond)
	return running
}

// TestHangs looks at a process that hangs. It has nothing of this process: no
// port, no lock, no other file.
func TestHangs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	note := filepath.Join(dir, "note")
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))

	port, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer port.Close()
	lock, err := os.Create(filepath.Join(dir, "lock"))
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))

	done := make(chan error, 1)
	go func() {
		_, err := hang(dir, note)
		done <- err
	}()
	running := found(t, note)
	require.Equal(t, "writing to pipe", running.Action)
	require.WithinDuration(t, time.Now(), running.Since, patience)

	files, err := os.ReadDir(filepath.Join("/proc", running.PID, "fd"))
	require.NoError(t, err)
	for _, file := range files {
		link, err := os.Readlink(filepath.Join("/proc", running.PID, "fd", file.Name()))
		require.NoError(t, err)
		require.NotContains(t, link, "socket:")
		require.NotEqual(t, lock.Name(), link)
	}
	require.NoError(t, lock.Close())
	again, err := os.Open(lock.Name())
	require.NoError(t, err)
	defer again.Close()
	// A process that another test has just forked has the lock until it executes.
	require.Eventually(t, func() bool { return syscall.Flock(int(again.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil }, patience, time.Millisecond)

	// What stops an agent that still waits does not stop the access.
	comm, err := os.ReadFile(filepath.Join("/proc", running.PID, "comm"))
	require.NoError(t, err)
	require.Equal(t, "cyborg-kernel-c\n", string(comm), "the kernel keeps 15 bytes")
	id, err := strconv.Atoi(running.PID)
	require.NoError(t, err)
	for _, stop := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		require.NoError(t, syscall.Kill(id, stop))
	}

	reader, err := os.Open(filepath.Join(dir, "pipe"))
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.NoError(t, reader.Close())
	_, there := kernelcall.Find(note)
	require.False(t, there)
}

// TestEndsWithItsParent kills a process that waits for a call. The one that makes
// the call does not outlive it, unless it sleeps in the kernel.
func TestEndsWithItsParent(t *testing.T) {
	t.Parallel()
	const variable = "CYBORG_TEST_HANG_IN"
	if dir := os.Getenv(variable); dir != "" {
		_, err := hang(dir, filepath.Join(dir, "note"))
		require.NoError(t, err)
		return
	}

	dir := t.TempDir()
	note := filepath.Join(dir, "note")
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	parent := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestEndsWithItsParent$")
	parent.Env = append(os.Environ(), variable+"="+dir)
	require.NoError(t, parent.Start())
	running := found(t, note)

	require.NoError(t, parent.Process.Kill())
	require.Error(t, parent.Wait())
	require.Eventually(t, func() bool { _, there := kernelcall.Find(note); return !there }, patience, time.Millisecond)
	require.FileExists(t, note, "it could not remove its note")

	// Another process that has its number is not taken for it.
	for _, other := range []kernelcall.Running{
		{PID: strconv.Itoa(os.Getpid()), Boot: running.Boot, Start: running.Start},
		{PID: strconv.Itoa(os.Getpid()), Boot: "of before", Start: startOfThis(t)},
	} {
		text, err := json.Marshal(other)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(note, text, 0o600))
		_, there := kernelcall.Find(note)
		require.False(t, there, other)
	}
}

// startOfThis returns when this process was started, as the kernel shows it.
func startOfThis(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/stat")
	require.NoError(t, err)
	return strings.Fields(string(text[strings.LastIndex(string(text), ")"):]))[20]
}

// TestNobodyElse starts the program with the name of such a process, and without
// what it should do.
func TestNobodyElse(t *testing.T) {
	t.Parallel()
	start := func(order string, signal syscall.Signal) string {
		command := exec.CommandContext(t.Context(), os.Args[0], order)
		command.Args[0] = "cyborg-kernel-call"
		command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: signal}
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		output, err := command.CombinedOutput()
		require.Error(t, err)
		return string(output)
	}
	require.Contains(t, start("{", syscall.SIGKILL), "unexpected end of JSON input")
	require.Contains(t, start(`{"kind": "read", "root": "/", "path": "proc/version", "most": 9}`, syscall.SIGKILL), "has ended")
	require.Contains(t, start("{", 0), "would outlive")
}

func BenchmarkCall(b *testing.B) {
	dir := b.TempDir()
	require.NoError(b, os.WriteFile(filepath.Join(dir, "attribute"), []byte("before\n"), 0o600))
	for b.Loop() {
		_, err := kernelcall.Call{Kind: kernelcall.Read, Root: dir, Path: "attribute", Most: 100, Note: filepath.Join(dir, "note")}.Do()
		require.NoError(b, err)
	}
}
