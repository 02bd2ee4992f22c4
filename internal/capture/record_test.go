package capture_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
	"github.com/cyborg-project/cyborg/internal/capture"
)

// recordAndOpen records a machine and returns the root of the opened recording.
func recordAndOpen(t *testing.T, root string) string {
	t.Helper()
	var packed bytes.Buffer
	require.NoError(t, capture.Record(t.Context(), root, &packed))

	name := filepath.Join(t.TempDir(), "machine.tar.gz")
	require.NoError(t, os.WriteFile(name, packed.Bytes(), 0o600))

	opened, err := capture.Open(name, filepath.Join(t.TempDir(), "machine"))
	require.NoError(t, err)
	return opened
}

// survey returns what drivers see of a machine: its PCI functions, and which of
// them are protected.
func survey(t *testing.T, root string) ([]sysfs.Function, sysfs.Protection) {
	t.Helper()
	tree := sysfs.NewTree(root, slog.New(slog.NewTextHandler(t.Output(), nil)))
	functions, protection, err := tree.Survey(t.Context())
	require.NoError(t, err)
	return functions, protection
}

// TestRecordingShowsTheSameMachine: drivers must see the same functions and the
// same protection in a recording as on the machine.
func TestRecordingShowsTheSameMachine(t *testing.T) {
	t.Parallel()
	port := sysfstest.Bridge(t, "0000:00:01.0")
	host := sysfstest.New(t, port, sysfstest.Under(port, sysfstest.GPU(t, "0000:3b:00.0")),
		sysfstest.NIC(t, "0000:18:00.0", "ens1"), sysfstest.NIC(t, "0000:19:00.0", "ens2"),
		sysfstest.QAT(t, "0000:b1:00.0"), sysfstest.SSD(t, "0000:c1:00.0", "nvme0n1", "259:0"))
	host.SetVFs("0000:b1:00.0", "3")
	host.Up("ens2")
	host.Mount("259:0", "/dev/nvme0n1", "/")

	functions, protection := survey(t, host.Root())
	require.Len(t, functions, 9)
	require.Len(t, protection, 3)

	opened := recordAndOpen(t, host.Root())
	recorded, recordedProtection := survey(t, opened)
	require.Equal(t, functions, recorded)
	require.Equal(t, protection, recordedProtection)

	again, _ := survey(t, recordAndOpen(t, opened))
	require.Equal(t, functions, again, "a recording can be recorded")
}

// TestRecordThisMachine: recording works on whatever machine runs the test.
func TestRecordThisMachine(t *testing.T) {
	t.Parallel()
	functions, protection := survey(t, "/")
	recorded, recordedProtection := survey(t, recordAndOpen(t, "/"))
	require.Equal(t, functions, recorded)
	require.Len(t, recordedProtection, len(protection))
}

// TestRecordIsReproducibleAndKeepsSecrets: two recordings of a machine are
// equal, and hold no MAC addresses, serial numbers or remote mounts.
func TestRecordIsReproducibleAndKeepsSecrets(t *testing.T) {
	t.Parallel()
	host := sysfstest.New(t, sysfstest.NIC(t, "0000:18:00.0", "ens1"))
	host.Set("sys/class/net/ens1/address", "52:54:00:12:34:56\n")
	host.Set("sys/bus/pci/devices/0000:18:00.0/vpd", "SN123456")
	host.Set("proc/1/mountinfo", "40 1 0:50 / /mnt rw - nfs4 fileserver.example:/secret rw\n41 1 8:1 / / rw - ext4 /dev/sda1 rw\n")

	var first, second bytes.Buffer
	require.NoError(t, capture.Record(t.Context(), host.Root(), &first))
	require.NoError(t, capture.Record(t.Context(), host.Root(), &second))
	require.Equal(t, first.Bytes(), second.Bytes())

	opened := recordAndOpen(t, host.Root())
	require.NoFileExists(t, filepath.Join(opened, "sys/class/net/ens1/address"))
	require.NoFileExists(t, filepath.Join(opened, "sys/bus/pci/devices/0000:18:00.0/vpd"))

	mounts, err := os.ReadFile(filepath.Join(opened, "proc/1/mountinfo"))
	require.NoError(t, err)
	require.Equal(t, "41 1 8:1 / / rw - ext4 /dev/sda1 rw\n", string(mounts))
}

// TestRecordStops: recording ends with its context, and where there is no
// machine.
func TestRecordStops(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := capture.Record(ctx, sysfstest.New(t).Root(), &bytes.Buffer{})
	require.ErrorIs(t, err, context.Canceled)

	err = capture.Record(t.Context(), "/nonexistent", &bytes.Buffer{})
	require.Equal(t, cyborg.ErrNotFound, cyborg.ErrorKindOf(err))
}
