package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Disk is a small file system for the state of one node, so that a test can
// fill it without harm to the machine. Only root can make one.
type Disk struct {
	Node string // name of the node
	dir  string // where it is mounted
}

// ownerFile is a file in the directory of a cluster. It holds the process id of
// the test, so that another test can see whether that one still runs.
const ownerFile = "owner"

// sweepDisks unmounts the disks of tests that were killed before their cleanup,
// and writes the owner file of this cluster. A disk that stays mounted takes
// memory for as long as the machine runs.
func (c *Cluster) sweepDisks(t testing.TB) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	places := filepath.Dir(c.dir)

	for line := range strings.Lines(string(mounts)) { // proc_mounts(5): device, directory, type…
		fields := strings.Fields(line)
		if len(fields) < 2 || !strings.HasPrefix(fields[1], filepath.Join(places, placePrefix)) {
			continue
		}

		name, _, _ := strings.Cut(strings.TrimPrefix(fields[1], places+"/"), "/")
		place := filepath.Join(places, name)
		text, err := os.ReadFile(filepath.Join(place, ownerFile))
		if err != nil {
			continue // it is not the directory of a cluster
		}
		owner, err := strconv.Atoi(string(text))
		if err != nil || !errors.Is(syscall.Kill(owner, 0), syscall.ESRCH) {
			continue // its test still runs, or nobody knows
		}

		if err := unix.Unmount(fields[1], unix.MNT_DETACH); err == nil {
			t.Logf("unmounted %s, which a test had left behind", fields[1])
		}
	}

	require.NoError(t, os.WriteFile(filepath.Join(c.dir, ownerFile), []byte(strconv.Itoa(os.Getpid())), 0o600))
}

// disk makes the directory dir for the state of a node and returns it. Where
// that is possible, it mounts a disk of size bytes there. Without one, the
// cluster runs as well, but the disk cannot be filled.
func (c *Cluster) disk(t testing.TB, node, dir string, size int) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	if os.Geteuid() != 0 {
		return dir
	}

	err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("mode=0755,size=%d", size))
	if errors.Is(err, syscall.EPERM) { // root in a container may not mount
		return dir
	}
	require.NoError(t, err)

	c.Disks = append(c.Disks, &Disk{Node: node, dir: dir})
	return dir
}

// Fill writes a file until no space is left on the disk. It halves its blocks
// down to single bytes, so that not even a small write of the node succeeds.
func (d *Disk) Fill() error {
	file, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()

	block := make([]byte, 64<<10)
	for {
		_, err := file.Write(block)
		switch {
		case errors.Is(err, syscall.ENOSPC) && len(block) == 1:
			return nil
		case errors.Is(err, syscall.ENOSPC):
			block = block[:len(block)/2]
		case err != nil:
			return err
		}
	}
}

// Heal removes the file that Fill has written. It may be called without Fill.
func (d *Disk) Heal() error {
	if err := os.Remove(d.ballast()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// ballast is the path of the file that fills the disk.
func (d *Disk) ballast() string { return filepath.Join(d.dir, "ballast") }

// unmount detaches the disk at once, even while a process still uses it.
func (d *Disk) unmount(t testing.TB) {
	t.Helper()
	if err := unix.Unmount(d.dir, unix.MNT_DETACH); err != nil {
		t.Errorf("%s stays mounted: %v", d.dir, err)
	}
}
