package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cyborg-project/cyborg/internal/clock"
)

// Disk is a small file system for the state of one node, so that a test can
// fill it, and take its power, without harm to the machine. Only root can make
// one.
type Disk struct {
	Node string // name of the node
	dir  string // where it is mounted
	// image is the file that has its content; empty where it is in memory, and loses
	// nothing with its power.
	image string

	mu sync.Mutex // held while it is filled or loses its power
}

// RootRequired is the environment variable that, with the value "required", lets no
// test do without what only root can have here.
const RootRequired = "CYBORG_TEST_ROOT"

// NeedDisks skips the test where this machine lets it make no disks that lose their
// power. With CYBORG_TEST_ROOT=required in the environment, the test fails instead.
func NeedDisks(t testing.TB) {
	t.Helper()
	err := DisksRefused()
	switch {
	case err == nil:
	case os.Getenv(RootRequired) == "required":
		t.Fatalf("%s=required, and disks cannot be made here: %v", RootRequired, err)
	default:
		t.Skipf("disks cannot be made here: %v", err)
	}
}

// DisksRefused returns why a cluster has no disks here that can be filled, and that
// lose what was not synced; nil where it has. It tries that with a small one.
func DisksRefused() (err error) {
	if os.Geteuid() != 0 {
		return errors.New("only root can make disks")
	}

	dir, err := os.MkdirTemp("", "disk-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	disk := &Disk{dir: filepath.Join(dir, "mounted"), image: filepath.Join(dir, "image")}
	if err := os.Mkdir(disk.dir, 0o700); err != nil {
		return err
	}
	if err := disk.format(8 << 20); err != nil {
		return err
	}
	if err := disk.mount(); err != nil {
		return err
	}
	return errors.Join(disk.shutDown(), unix.Unmount(disk.dir, unix.MNT_DETACH))
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
// that is possible, it mounts a disk of size bytes there: an ext4 on a loop device,
// or where there is none, a tmpfs, which cannot lose what was not synced. Without
// any, the cluster runs as well, but the disk cannot be filled.
func (c *Cluster) disk(t testing.TB, node, dir string, size int64) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	if os.Geteuid() != 0 {
		return dir
	}

	disk := &Disk{Node: node, dir: dir, image: filepath.Join(c.dir, node+".ext4")}
	err := disk.format(size)
	if err == nil {
		err = disk.mount()
	}
	if err != nil {
		t.Logf("the disk of %s cannot lose its power: %v", node, err)
		disk.image = ""
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("mode=0755,size=%d", size))
	}
	if errors.Is(err, syscall.EPERM) { // root in a container may not mount
		return dir
	}
	require.NoError(t, err)

	c.Disks = append(c.Disks, disk)
	return dir
}

// format makes an empty file system in the image.
func (d *Disk) format(size int64) error {
	file, err := os.OpenFile(d.image, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(file.Truncate(size), file.Close()); err != nil {
		return err
	}
	return run("mkfs.ext4", "-q", "-m", "0", d.image)
}

// mount mounts the image. The file system writes as little as it may of what
// nobody has synced: it commits its journal every ten minutes only, and a file that
// is renamed over another one is not written for that.
//
// Each mount has a loop device of its own. On the device of the mount before, the
// kernel would go on with the file system that has lost its power, as long as a
// process in another mount namespace has it mounted.
func (d *Disk) mount() error {
	output, err := exec.Command("losetup", "--find", "--show", d.image).Output() //nolint:noctx // it ends by itself
	if err != nil {
		return fmt.Errorf("losetup: %w", err)
	}

	loop := strings.TrimSpace(string(output))
	err = run("mount", "-o", "commit=600,noauto_da_alloc", loop, d.dir)
	return errors.Join(err, run("losetup", "--detach", loop)) // the kernel does so when nobody uses it any more
}

// run runs a program of the system.
func run(program string, args ...string) error {
	if output, err := exec.Command(program, args...).CombinedOutput(); err != nil { //nolint:noctx // it ends by itself
		return fmt.Errorf("%s: %w: %s", program, err, output)
	}
	return nil
}

// LosesPower reports whether the disks lose what was not synced.
func (c *Cluster) LosesPower() bool {
	return len(c.Disks) > 0 && !slices.ContainsFunc(c.Disks, func(d *Disk) bool { return d.image == "" })
}

// LosePower takes the power from the machine of a node: its processes end at once,
// and its disk has only what was synced. ran is whether the node ran. Node.Up lets
// it run again. Where the disk cannot lose its power, it loses nothing.
func (c *Cluster) LosePower(name string) (ran bool, err error) {
	return c.losePower(name, func() error { return nil })
}

// losePower is LosePower, and calls change before the node can run again.
func (c *Cluster) losePower(name string, change func() error) (ran bool, err error) {
	node := c.Node(name)
	i := slices.IndexFunc(c.Disks, func(d *Disk) bool { return d.Node == name && d.image != "" })
	if i < 0 {
		return node.PowerCut(change)
	}
	disk := c.Disks[i]
	disk.mu.Lock()
	defer disk.mu.Unlock()

	var members []int
	return node.powerCut(func() error {
		members = family(node.PID())
		return disk.shutDown()
	}, func() error {
		for _, pid := range members {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
		return errors.Join(disk.startUp(), change())
	})
}

// ext4Shutdown is EXT4_IOC_SHUTDOWN of the kernel's fs/ext4/ext4.h, and noLogFlush
// its flag EXT4_GOING_FLAGS_NOLOGFLUSH: from then on nothing is written, neither
// what the cache holds nor the journal.
const (
	ext4Shutdown = 0x8004587d
	noLogFlush   = 2
)

// shutDown keeps everything from the disk that it does not have yet.
func (d *Disk) shutDown() error {
	dir, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.IoctlSetPointerInt(int(dir.Fd()), ext4Shutdown, noLogFlush)
}

// startUp mounts the disk again after shutDown, as the machine does when it boots.
// The processes that had files open there have been killed; it waits until they are
// gone.
func (d *Disk) startUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	for {
		err := unix.Unmount(d.dir, 0)
		if err == nil {
			return d.mount()
		}
		if !errors.Is(err, syscall.EBUSY) || clock.Sleep(ctx, 10*time.Millisecond) != nil {
			return fmt.Errorf("%s stays mounted: %w", d.dir, err)
		}
	}
}

// sync writes everything to the disk that the test itself has changed there.
func (d *Disk) sync() error {
	dir, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Syncfs(int(dir.Fd()))
}

// syncDisk writes everything to the disk of a node that the test itself has
// changed there, so that it is not lost with the power.
func (c *Cluster) syncDisk(name string) error {
	for _, disk := range c.Disks {
		if disk.Node == name {
			return disk.sync()
		}
	}
	return nil
}

// Fill writes a file until no space is left on the disk. It halves its blocks
// down to single bytes, so that not even a small write of the node succeeds.
func (d *Disk) Fill() error {
	d.mu.Lock()
	defer d.mu.Unlock()
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

// Heal removes the file that Fill has written. It may be called without Fill. The
// file does not come back when the disk loses its power.
func (d *Disk) Heal() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := os.Remove(d.ballast())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return errors.Join(err, d.sync())
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
