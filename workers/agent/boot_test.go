package agent_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func TestTheBootIsThatOfTheRoot(t *testing.T) {
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
	stop()

	require.NoError(t, os.Remove(path))
	h.run()
	machine := h.reports(2)[1].BootID
	require.NoError(t, uuid.Validate(machine), "a root without one boots with this machine")
	require.NotEqual(t, boot, machine)
}
