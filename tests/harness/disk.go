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

// Disk is a small file system of its own below the state of one node. Only root
// can make one.
type Disk struct {
	Node string
	dir  string
}

// ownerFile, in the directory of a cluster, holds the process id of its test.
const ownerFile = "owner"

// sweepDisks unmounts what tests left behind that were killed, and marks the
// cluster as ours.
func (c *Cluster) sweepDisks(t testing.TB) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	places := filepath.Dir(c.dir)
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || !strings.HasPrefix(fields[1], filepath.Join(places, placePrefix)) {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(fields[1], places+"/"), "/")
		place := filepath.Join(places, name)
		text, err := os.ReadFile(filepath.Join(place, ownerFile))
		if err != nil {
			continue // it is no cluster's
		}
		owner, err := strconv.Atoi(string(text))
		if err != nil || !errors.Is(syscall.Kill(owner, 0), syscall.ESRCH) {
			continue // it lives
		}
		if err := unix.Unmount(fields[1], unix.MNT_DETACH); err == nil {
			t.Logf("unmounted %s, which a test had left behind", fields[1])
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, ownerFile), []byte(strconv.Itoa(os.Getpid())), 0o600))
}

// disk makes a disk for a node where that is possible, and in any case a
// directory.
func (c *Cluster) disk(t testing.TB, node, dir string, size int) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	if os.Geteuid() != 0 {
		return dir
	}
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("mode=0755,size=%d", size))
	if errors.Is(err, syscall.EPERM) { // root of a container
		return dir
	}
	require.NoError(t, err)
	c.Disks = append(c.Disks, &Disk{Node: node, dir: dir})
	return dir
}

// Fill leaves no space on the disk.
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

// Heal gives the space back.
func (d *Disk) Heal() error {
	if err := os.Remove(d.ballast()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (d *Disk) ballast() string { return filepath.Join(d.dir, "ballast") }

func (d *Disk) unmount(t testing.TB) {
	t.Helper()
	if err := unix.Unmount(d.dir, unix.MNT_DETACH); err != nil {
		t.Errorf("%s stays mounted: %v", d.dir, err)
	}
}
