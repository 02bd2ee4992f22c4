package sysfs_test

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers/sysfs"
	"github.com/cyborg-project/cyborg/drivers/sysfs/kernelcall"
	"github.com/cyborg-project/cyborg/drivers/sysfs/sysfstest"
)

// silent is a host whose kernel does not say whether its card is there before answer.
type silent struct {
	*sysfstest.Host
	config string
	notes  string // the directory of the notes
}

// newSilent makes such a host. A pipe stands for the configuration space: reading it
// sleeps until somebody has written.
func newSilent(t *testing.T) silent {
	t.Helper()
	s := silent{sysfstest.New(t, sysfstest.GPU(t, gpu)), "sys/bus/pci/devices/" + gpu + "/config", filepath.Join(t.TempDir(), "notes")}
	require.NoError(t, syscall.Mkfifo(filepath.Join(s.Root(), s.config), 0o600))
	return s
}

// tree returns a tree of the host, as each driver has one, and the card.
func (s silent) tree(t *testing.T) (*sysfs.Tree, sysfs.Function) {
	t.Helper()
	one := tree(t, s.Root()).NotingIn(s.notes)
	f, err := one.Function(t.Context(), sysfstest.Address(t, gpu))
	require.NoError(t, err)
	return one, f
}

// asked waits until the kernel is asked.
func (s silent) asked(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, there := kernelcall.Find(filepath.Join(s.notes, gpu+".presence"))
		return there
	}, deadline, time.Millisecond)
}

// answer has the kernel answer, and also whoever asks later.
func (s silent) answer(t *testing.T) {
	t.Helper()
	name, header := filepath.Join(s.Root(), s.config), make([]byte, kernelcall.HeaderSize)
	pipe, err := os.OpenFile(name, os.O_WRONLY, 0) // this waits until somebody reads
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name+".new", header, 0o600))
	require.NoError(t, os.Rename(name+".new", name))
	_, err = pipe.Write(header)
	require.NoError(t, err)
	require.NoError(t, pipe.Close())
}

// TestTwoTreesAskOnce: while a driver is exchanged for another one, both ask for the same
// card. The second one waits for the answer to the question of the first.
func TestTwoTreesAskOnce(t *testing.T) {
	t.Parallel()
	s := newSilent(t)
	first, f := s.tree(t)
	answers := make(chan error, 1)
	go func() {
		_, err := first.Presence(t.Context(), f, true)
		answers <- err
	}()
	s.asked(t)

	second, _ := s.tree(t)
	_, waits := second.Unanswered(f)
	require.True(t, waits)
	limited, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := second.Presence(limited, f, true)
	require.ErrorIs(t, err, context.DeadlineExceeded, "it waits for the answer as long as it may")

	s.answer(t)
	require.NoError(t, <-answers)
	presence, err := second.Presence(t.Context(), f, true)
	require.NoError(t, err)
	require.True(t, presence.Answers)
}

// TestNextAgentDoesNotAsk: a process of an earlier agent asks for the card, and nobody gets
// its answer. The next agent does not ask as well, and knows at once.
func TestNextAgentDoesNotAsk(t *testing.T) {
	t.Parallel()
	s := newSilent(t)
	one, f := s.tree(t)
	_, waits := one.Unanswered(f)
	require.False(t, waits)

	ended := make(chan error, 1)
	go func() {
		_, err := kernelcall.Call{Kind: kernelcall.Registers, Root: s.Root(), Path: s.config, Note: filepath.Join(s.notes, gpu+".presence")}.Do()
		ended <- err
	}()
	s.asked(t)
	_, waits = one.Unanswered(f)
	require.True(t, waits)
	_, err := one.Presence(t.Context(), f, true)
	require.Equal(t, cyborg.ErrTimeout, cyborg.ErrorKindOf(err), err)
	require.ErrorContains(t, err, "has not come back since 20")

	s.answer(t)
	require.NoError(t, <-ended)
	_, waits = one.Unanswered(f)
	require.False(t, waits)
}
