package agent_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// The boot ID is that of the machine below the root, and that of this machine
// where the root has none.
func TestBootIDIsReadBelowTheRoot(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.deps.BootID = ""
	h.config.Root = t.TempDir()
	path := filepath.Join(h.config.Root, "proc/sys/kernel/random/boot_id")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	boot := uuid.NewString()
	require.NoError(t, os.WriteFile(path, []byte(boot+"\n"), 0o600))

	_, stop := h.run()
	require.Equal(t, boot, h.reports(1)[0].BootID)
	require.Zero(t, h.reports(1)[0].Uptime, "this root has no uptime")
	stop()

	require.NoError(t, os.Remove(path))
	h.run()
	machine := h.reports(2)[1].BootID
	require.NoError(t, uuid.Validate(machine), "without a boot ID below the root it is this machine's")
	require.NotEqual(t, boot, machine)
}

// The reported uptime belongs to the boot whose ID is reported, so it is sent
// only if both are read from the same root.
func TestUptimeIsReadBelowTheRoot(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.config.Root = t.TempDir()
	proc := filepath.Join(h.config.Root, "proc")
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "sys/kernel/random"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(proc, "sys/kernel/random/boot_id"), []byte(uuid.NewString()+"\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(proc, "uptime"), []byte("3600.25 7000.00\n"), 0o600))

	_, stop := h.run()
	require.Zero(t, h.reports(1)[0].Uptime, "nobody knows the time of a boot ID that was given")
	stop()

	h.deps.BootID = ""
	h.run()
	require.Equal(t, time.Hour+250*time.Millisecond, h.reports(2)[1].Uptime)
}
