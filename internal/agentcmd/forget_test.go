package agentcmd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg/internal/commandline"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/internal/statedir"
)

// withJournal makes a state directory whose journal has an attachment, an
// unfinished clean, layouts, an unfinished step and a number, and returns it with the journal's content.
func withJournal(t *testing.T) (dir string, text []byte) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "state")
	state, err := statedir.Open(dir)
	require.NoError(t, err)

	j, err := journal.Open(dir, journal.Options{BootID: "boot"})
	require.NoError(t, err)
	require.NoError(t, j.SetFloor(journal.Floor{Number: 40}))
	require.NoError(t, j.Raise(47, journal.Subject{Backend: "fake", Deployable: "fpga-0"}))
	require.NoError(t, j.Write(journal.Change{
		Attachments: []journal.Attachment{{
			Backend: "fake", Handle: "0bad:01:00.0", Deployable: "fpga-0", HolderKind: "host", HolderID: "h1", State: journal.Attached,
		}},
		Cleanings: []journal.Cleaning{{Backend: "fake", Handle: "0bad:01:00.1", Deployable: "fpga-0", Operation: uuid.Max, Method: "scrub"}},
		Layouts: []journal.Layout{
			{DeviceKey: journal.DeviceKey{Backend: "fake", Device: "0bad:01:00.0"}, Operation: uuid.Max, Wanted: map[string]int{"vf": 4}},
			{DeviceKey: journal.DeviceKey{Backend: "fake", Device: "0bad:02:00.0"}, Operation: uuid.Max},
		},
		Steps: []journal.Step{{StepKey: journal.StepKey{Operation: uuid.New(), Name: "attach"}, State: journal.Started}},
	}))
	require.NoError(t, j.Close())
	require.NoError(t, state.Close())

	text, err = os.ReadFile(filepath.Join(dir, "journal"))
	require.NoError(t, err)
	return dir, text
}

// kept returns what was kept aside.
func kept(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "journal.forgotten-*"))
	require.NoError(t, err)
	return found
}

// Somebody who says yes loses the journal and has a copy of it. The next one
// knows nothing, and asks which numbers count.
func TestForgetJournal(t *testing.T) {
	t.Parallel()
	dir, text := withJournal(t)

	code, out, errOut := command(t, "", "forget-journal", "--state-dir", dir, "--yes")
	require.Equal(t, 0, code, errOut)
	require.Contains(t, errOut, "1 attachments, 1 unfinished cleans, 2 divided devices, 0 loaded images and 1 unfinished steps; its highest assignment number is 47")
	require.Contains(t, errOut, "attached 0bad:01:00.0 of fpga-0, for host h1")
	require.Contains(t, errOut, "unfinished clean (scrub) of 0bad:01:00.1 of fpga-0, since operation "+uuid.Max.String())

	require.Contains(t, errOut, "device 0bad:01:00.0 of fake, since operation "+uuid.Max.String()+": vf=4")
	require.Contains(t, errOut, "device 0bad:02:00.0 of fake, since operation "+uuid.Max.String()+": as its hardware has it")

	copies := kept(t, dir)
	require.Len(t, copies, 1)
	require.Contains(t, out, copies[0])
	same, err := os.ReadFile(copies[0])
	require.NoError(t, err)
	require.Equal(t, text, same)

	j, err := journal.Open(dir, journal.Options{BootID: "boot"})
	require.NoError(t, err)
	require.Empty(t, j.Attachments())
	require.False(t, j.HasFloor(), "the conductor is asked first")
	require.NoError(t, j.Close())

	// What was kept once stays.
	code, _, errOut = command(t, "", "forget-journal", "--state-dir", dir, "-y")
	require.Equal(t, 0, code, errOut)
	require.Len(t, kept(t, dir), 2)

	code, _, errOut = command(t, "", "forget-journal", "--state-dir", dir, "-y")
	require.Equal(t, commandline.ExitNotFound, code, errOut)
}

// Without a yes, and beside a running agent, the journal stays as it is.
func TestForgetJournalIsRefused(t *testing.T) {
	t.Parallel()
	dir, text := withJournal(t)
	stays := func() {
		same, err := os.ReadFile(filepath.Join(dir, "journal"))
		require.NoError(t, err)
		require.Equal(t, text, same)
		require.Empty(t, kept(t, dir))
	}

	code, _, errOut := command(t, "", "forget-journal", "--state-dir", dir)
	require.Equal(t, commandline.ExitUsage, code)
	require.Contains(t, errOut, "1 attachments")
	require.Contains(t, errOut, "--yes")
	stays()

	agent, err := statedir.Open(dir)
	require.NoError(t, err)
	code, _, errOut = command(t, "", "forget-journal", "--state-dir", dir, "--yes")
	require.Equal(t, commandline.ExitConflict, code)
	require.Contains(t, errOut, "stop that one first")
	stays()
	require.NoError(t, agent.Close())

	missing := filepath.Join(t.TempDir(), "missing")
	code, _, _ = command(t, "", "forget-journal", "--state-dir", missing, "--yes")
	require.Equal(t, commandline.ExitNotFound, code)
	require.NoDirExists(t, missing)
}

// A journal that cannot be read is given up, too.
func TestForgetADamagedJournal(t *testing.T) {
	t.Parallel()
	dir, _ := withJournal(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "journal"), []byte("what is this\n"), 0o600))

	code, _, errOut := command(t, "", "forget-journal", "--state-dir", dir, "--yes")
	require.Equal(t, 0, code, errOut)
	require.Contains(t, errOut, "The journal cannot be read: its first line is")
	require.Len(t, kept(t, dir), 1)
}
