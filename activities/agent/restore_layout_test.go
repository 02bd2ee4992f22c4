package agent_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/cyborg-project/cyborg"
	"github.com/cyborg-project/cyborg/drivers"
	"github.com/cyborg-project/cyborg/internal/journal"
	"github.com/cyborg-project/cyborg/workflows"
)

// boots boots the machine: the card is whole again, and a process of the agent with that
// fate looks at it and restores layouts, as before its first report.
func (h *host) boots(f *fate) {
	h.t.Helper()
	h.boot += "+"
	h.division.set(func(layout cyborg.Layout) { clear(layout) })
	h.begins(f)
}

// begins starts a process of the agent with that fate, up to its first report.
func (h *host) begins(f *fate) {
	h.t.Helper()
	h.startAs(f)
	h.inventory.Scan(h.t.Context())
	h.activities.RestoreLayouts(h.t.Context(), time.Minute)
}

// reports has the agent send a report, and returns how it says that the card is divided.
func (h *host) reports() string {
	h.t.Helper()
	_, _, err := h.reporter.Report(h.t.Context())
	require.NoError(h.t, err)
	layout, _ := h.shownLayout()
	return layout
}

// TestBootRestoresLayouts: what the last partition has made of the card is there again before
// the first report, also where a part is attached by a boot before, or not clean. A mere
// restart of the agent asks no driver.
func TestBootRestoresLayouts(t *testing.T) {
	t.Parallel()
	h := divided(t, 2)
	doubt := partAttachment(1)
	doubt.State = journal.InDoubt
	require.NoError(t, h.journal.Write(journal.Change{Attachments: []journal.Attachment{partAttachment(0), doubt}}))
	h.unclean(1)

	h.boots(&fate{dieAt: -1})
	require.Equal(t, 1, h.fate.count("partition"))
	require.Empty(t, h.division.last().Prior)
	h.requireDivided(vfs(2), vfs(2))
	require.Equal(t, "vf=2", h.reports())
	require.Len(t, h.journal.Cleanings(), 1, "it is still to be cleaned")
	require.Len(t, h.journal.Attachments(), 2)

	h.begins(&fate{dieAt: -1})
	require.Zero(t, h.fate.count("partition"))
	require.Equal(t, "vf=2", h.reports())

	// What the hardware has kept is left alone, also at the next start.
	h.boot = "boot-3"
	h.begins(&fate{dieAt: -1})
	require.Zero(t, h.fate.count("partition"))
	h.division.set(func(layout cyborg.Layout) { clear(layout) })
	h.begins(&fate{dieAt: -1})
	require.Zero(t, h.fate.count("partition"))
}

// TestBootRestoresWholeCards: a card that is wanted whole is made whole, and one that no
// partition has divided is left as it is.
func TestBootRestoresWholeCards(t *testing.T) {
	t.Parallel()
	h := divided(t, 2)
	h.must(workflows.PartitionActivity, partition(uuid.New(), cyborg.Layout{}), nil)
	h.division.set(func(layout cyborg.Layout) { layout["half"] = 1 })
	h.boot = "boot-2"
	h.begins(&fate{dieAt: -1})
	h.requireDivided(cyborg.Layout{}, cyborg.Layout{})

	h = newDivisibleHost(t)
	in := partition(uuid.New(), vfs(2))
	h.must(workflows.PartitionActivity, in, nil)
	h.must(workflows.RestoreLayoutActivity, asBefore(in.Operation), nil)
	h.division.set(func(layout cyborg.Layout) { layout["half"] = 1 })
	h.boot = "boot-2"
	h.begins(&fate{dieAt: -1})
	require.Zero(t, h.fate.count("partition"))
	h.requireDivided(cyborg.Layout{"half": 1}, nil)
}

// TestBootAfterAnUndo: a boot brings back what the undo has left.
func TestBootAfterAnUndo(t *testing.T) {
	t.Parallel()
	h := divided(t, 2)
	in := partition(uuid.New(), vfs(3))
	h.must(workflows.PartitionActivity, in, nil)
	h.must(workflows.RestoreLayoutActivity, asBefore(in.Operation), nil)
	h.boots(&fate{dieAt: -1})
	h.requireDivided(vfs(2), vfs(2))
}

// TestBootDuringAPartition: the host boots at each point of a partition. The boot brings back
// what was before it, and the step can be repeated or undone.
func TestBootDuringAPartition(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"again", "undo"} {
		for point, killed := 0, true; killed; point++ {
			h := divided(t, 2)
			in := partition(uuid.New(), vfs(3))
			h.startAs(&fate{dieAt: point})
			killed = h.try(workflows.PartitionActivity, in)
			done := !killed
			h.boots(&fate{dieAt: -1})
			step, _ := h.journal.Step(journal.StepKey{Operation: in.Operation, Name: workflows.PartitionActivity})
			if done = done || step.State == journal.Done; done {
				h.requireDivided(vfs(3), vfs(3))
			} else {
				h.requireDivided(vfs(2), vfs(2))
			}

			if how == "again" {
				h.must(workflows.PartitionActivity, in, nil)
				h.requireDivided(vfs(3), vfs(3))
				continue
			}
			h.must(workflows.RestoreLayoutActivity, asBefore(in.Operation), nil)
			h.requireDivided(vfs(2), vfs(2))
		}
	}
}

// TestAgentKilledWhileItRestores: the next process goes on, wherever the one before was, also
// where it shows a part by then that is not clean.
func TestAgentKilledWhileItRestores(t *testing.T) {
	t.Parallel()
	for point := 0; ; point++ {
		require.Less(t, point, 30)
		h := divided(t, 2)
		h.unclean(0)
		h.boots(&fate{dieAt: point})
		h.fate.mu.Lock()
		died := h.fate.points > point
		h.fate.mu.Unlock()

		h.begins(&fate{dieAt: -1})
		h.requireDivided(vfs(2), vfs(2))
		require.Equal(t, "vf=2", h.reports())
		require.Len(t, h.journal.Cleanings(), 1, "it is still to be cleaned")
		h.begins(&fate{dieAt: -1})
		require.Zero(t, h.fate.count("partition"))
		if !died {
			require.Greater(t, point, 6)
			return
		}
	}
}

// TestBootRestoresNothing: nothing is touched of what somebody really uses or has since the
// boot, of another card, and of what the host must not divide. The report shows what is
// there. From then on no start brings the other layout back, because the records may have
// given away what is shown.
func TestBootRestoresNothing(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(h *host){
		"in use": func(h *host) { h.division.users[handle] = "qemu" },
		"attached in this boot": func(h *host) {
			entry := partAttachment(1)
			entry.BootID = h.boot + "+"
			require.NoError(h.t, h.journal.Write(journal.Change{Attachments: []journal.Attachment{entry}}))
		},
		"it fails": func(h *host) {
			h.division.meanwhile = func(context.Context, drivers.PartitionRequest) (bool, error) {
				return false, cyborg.Errorf(cyborg.ErrHardware, "it smoked")
			}
		},
		"it panics": func(h *host) {
			h.division.meanwhile = func(context.Context, drivers.PartitionRequest) (bool, error) { panic("what a day") }
		},
		"it does something else": func(h *host) {
			h.division.meanwhile = func(context.Context, drivers.PartitionRequest) (bool, error) { return false, nil }
		},
		"not allowed": func(h *host) { h.allowed = []cyborg.OperationKind{cyborg.OperationAttach} },
		"it refuses the layout": func(h *host) {
			entry, _ := h.journal.Layout(deviceKey())
			entry.Wanted = map[string]int{"vf": 1, "half": 1}
			require.NoError(h.t, h.journal.Write(journal.Change{Layouts: []journal.Layout{entry}}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := divided(t, 2)
			spoil(h)
			changed := h.division.changed + 1 // by the boot
			h.boots(&fate{dieAt: -1})
			require.Equal(t, changed, h.division.changed)
			require.Empty(t, h.division.now())
			require.NotNil(t, h.wanted(), "nothing was reported yet")
			require.Equal(t, "whole", h.reports())
			require.Nil(t, h.wanted())

			h.division.meanwhile, h.division.users, h.allowed = nil, nil, nil
			h.boots(&fate{dieAt: -1})
			require.Equal(t, changed+1, h.division.changed)
			require.Equal(t, "whole", h.reports())
		})
	}
}

// wanted is what the journal says that a boot has to bring back.
func (h *host) wanted() map[string]int {
	entry, _ := h.journal.Layout(deviceKey())
	return entry.Wanted
}

// TestBootOfADividedCardThatWasExchanged: another card in the place is not touched, and neither is one that
// is not there. When the former one is back at a later boot, it is divided again.
func TestBootOfADividedCardThatWasExchanged(t *testing.T) {
	t.Parallel()
	h := newDivisibleHost(t)
	in := partition(uuid.New(), vfs(2))
	in.Device.Fingerprint = h.look()
	require.NotEmpty(t, in.Device.Fingerprint.Serial)
	h.must(workflows.PartitionActivity, in, nil)

	require.NoError(t, h.bench.Exchange(t.Context(), card, "", otherSerial))
	h.boots(&fate{dieAt: -1})
	require.Zero(t, h.fate.count("partition"))
	require.Equal(t, "whole", h.reports())

	require.NoError(t, h.bench.Vanish(t.Context(), card))
	h.boots(&fate{dieAt: -1})
	require.Zero(t, h.fate.count("partition"))
	require.Empty(t, h.reports())

	require.NoError(t, h.bench.Exchange(t.Context(), card, "", ""))
	require.NoError(t, h.bench.Return(t.Context(), card))
	h.boots(&fate{dieAt: -1})
	require.Equal(t, "vf=2", h.reports())
}

// TestLayoutLostWhileTheAgentRuns: somebody has made the card whole by hand. Once that was
// reported, no boot divides it; the next partition counts again. What a partition is dividing
// at the time of a report is not given up.
func TestLayoutLostWhileTheAgentRuns(t *testing.T) {
	t.Parallel()
	h := divided(t, 2)
	h.division.set(func(layout cyborg.Layout) { clear(layout) })
	h.inventory.Scan(t.Context())
	h.requireDivided(cyborg.Layout{}, vfs(2))
	require.Equal(t, "whole", h.reports())
	h.requireDivided(cyborg.Layout{}, nil)

	h.must(workflows.PartitionActivity, partition(uuid.New(), vfs(3)), nil)
	in := partition(uuid.New(), vfs(1))
	h.division.meanwhile = func(context.Context, drivers.PartitionRequest) (bool, error) {
		h.division.set(func(layout cyborg.Layout) { clear(layout) })
		h.inventory.Scan(t.Context())
		require.Equal(t, "whole", h.reports())
		h.requireDivided(cyborg.Layout{}, vfs(3))
		return true, nil
	}
	h.must(workflows.PartitionActivity, in, nil)
	h.requireDivided(vfs(1), vfs(1))
	h.division.meanwhile = nil
	h.must(workflows.RestoreLayoutActivity, asBefore(in.Operation), nil)
	h.requireDivided(vfs(3), vfs(3))
}

// overdue is a context whose time is over when somebody says so.
type overdue struct {
	context.Context
	over chan struct{}
}

func (o overdue) Done() <-chan struct{} { return o.over }

func (o overdue) Err() error {
	select {
	case <-o.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestBootWithADriverThatHangs: the agent goes on, and reports nothing of that backend, so
// that nobody gets the card while its driver may still divide it.
func TestBootWithADriverThatHangs(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]error{"vf=2": nil, "whole": cyborg.Errorf(cyborg.ErrHardware, "it smoked")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := divided(t, 2)
			ctx := overdue{t.Context(), make(chan struct{})}
			back := make(chan struct{})
			h.division.meanwhile = func(context.Context, drivers.PartitionRequest) (bool, error) {
				close(ctx.over)
				<-back
				return end == nil, end
			}
			h.boot += "+"
			h.division.set(func(layout cyborg.Layout) { clear(layout) })
			h.start()
			h.inventory.Scan(t.Context())
			h.activities.RestoreLayouts(ctx, time.Hour)

			_, _, err := h.reporter.Report(t.Context())
			require.NoError(t, err)
			report := h.reporter.reports[len(h.reporter.reports)-1].Content.Backends[0]
			require.Equal(t, cyborg.BackendFailed, report.State)
			require.Contains(t, report.Error, "has not come back from dividing devices")
			require.Empty(t, report.Devices)
			h.requireDivided(cyborg.Layout{}, vfs(2))
			_, err = h.inventory.FindDevice(t.Context(), backend, card, time.Hour)
			require.Equal(t, cyborg.ErrUnavailable, cyborg.ErrorKindOf(err))

			close(back)
			require.Eventually(t, func() bool { return h.backends()[backend] == cyborg.BackendOK }, 5*time.Minute, time.Millisecond)
			require.Equal(t, name, h.reports())
		})
	}
}

// appears pulls the card, boots the machine, has the agent report without the card, and puts
// it back, whole. The agent has looked at it then, and done nothing yet.
func (h *host) appears() {
	h.t.Helper()
	require.NoError(h.t, h.bench.Vanish(h.t.Context(), card))
	h.boots(&fate{dieAt: -1})
	require.Empty(h.t, h.reports())
	require.NoError(h.t, h.bench.Return(h.t.Context(), card))
	h.inventory.Scan(h.t.Context())
}

// TestCardThatAppearsAfterABoot: a card that comes after the first report is divided again
// before it is reported, once in a boot. A mere restart of the agent changes nothing of that.
func TestCardThatAppearsAfterABoot(t *testing.T) {
	t.Parallel()
	h := divided(t, 2)
	require.NoError(t, h.journal.Write(journal.Change{Attachments: []journal.Attachment{partAttachment(0)}}))
	h.appears()
	for range 2 {
		require.Empty(t, h.reports(), "it is not restored yet")
		require.NotNil(t, h.wanted())
	}
	h.activities.RestoreAppeared(t.Context(), time.Minute)
	require.Equal(t, 1, h.fate.count("partition"))
	require.Equal(t, "vf=2", h.reports())
	h.requireDivided(vfs(2), vfs(2))

	// The same boot sees it whole again: that is none of the boot's.
	h.division.set(func(layout cyborg.Layout) { clear(layout) })
	h.inventory.Scan(t.Context())
	h.activities.RestoreAppeared(t.Context(), time.Minute)
	require.Equal(t, 1, h.fate.count("partition"))
	require.Equal(t, "whole", h.reports())
	h.requireDivided(cyborg.Layout{}, nil)

	// It has kept its parts, and the agent of before has died before it could note that.
	h = divided(t, 2)
	h.appears()
	h.division.set(func(layout cyborg.Layout) { layout["vf"] = 2 })
	h.begins(&fate{dieAt: -1})
	require.Zero(t, h.fate.count("partition"))
	require.Equal(t, "vf=2", h.reports())
	h.division.set(func(layout cyborg.Layout) { clear(layout) })
	h.inventory.Scan(t.Context())
	require.Equal(t, "whole", h.reports())
}

// TestCardThatAppearsAndCannotBeRestored: the guards are those of the first look. The card is
// reported as it is then, and its layout is given up.
func TestCardThatAppearsAndCannotBeRestored(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(h *host){
		"in use": func(h *host) { h.division.users[handle] = "qemu" },
		"it fails": func(h *host) {
			h.division.meanwhile = func(context.Context, drivers.PartitionRequest) (bool, error) {
				return false, cyborg.Errorf(cyborg.ErrHardware, "it smoked")
			}
		},
		"it panics": func(h *host) {
			h.division.meanwhile = func(context.Context, drivers.PartitionRequest) (bool, error) { panic("what a day") }
		},
		"not allowed": func(h *host) { h.allowed = []cyborg.OperationKind{cyborg.OperationAttach} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := divided(t, 2)
			spoil(h)
			h.appears()
			changed := h.division.changed
			require.Empty(t, h.reports())
			h.activities.RestoreAppeared(t.Context(), time.Minute)
			require.Equal(t, changed, h.division.changed)
			require.NotNil(t, h.wanted(), "nothing was reported yet")
			require.Equal(t, "whole", h.reports())
			require.Nil(t, h.wanted())
		})
	}
}

// TestOtherCardAppearsAfterABoot: another card in the place of the divided one is reported at
// once. The former one is divided again when it comes back, also in the same boot, and also
// where it was pulled again before anything could be tried.
func TestOtherCardAppearsAfterABoot(t *testing.T) {
	t.Parallel()
	h := newDivisibleHost(t)
	in := partition(uuid.New(), vfs(2))
	in.Device.Fingerprint = h.look()
	h.must(workflows.PartitionActivity, in, nil)
	require.NoError(t, h.bench.Exchange(t.Context(), card, "", otherSerial))
	h.boots(&fate{dieAt: -1})
	require.Equal(t, "whole", h.reports())

	require.NoError(t, h.bench.Exchange(t.Context(), card, "", ""))
	h.inventory.Scan(t.Context())
	require.Empty(t, h.reports())
	require.NoError(t, h.bench.Vanish(t.Context(), card))
	h.inventory.Scan(t.Context())
	h.activities.RestoreAppeared(t.Context(), time.Minute)
	require.Empty(t, h.reports())

	require.NoError(t, h.bench.Return(t.Context(), card))
	h.inventory.Scan(t.Context())
	require.Empty(t, h.reports())
	h.activities.RestoreAppeared(t.Context(), time.Minute)
	require.Equal(t, "vf=2", h.reports())
}

// TestDriverHangsAtACardThatAppears: the agent goes on, and the card is not reported before its
// driver is back. Its backend is.
func TestDriverHangsAtACardThatAppears(t *testing.T) {
	t.Parallel()
	h := divided(t, 2)
	h.appears()
	ctx := overdue{t.Context(), make(chan struct{})}
	back := make(chan struct{})
	h.division.meanwhile = func(context.Context, drivers.PartitionRequest) (bool, error) {
		close(ctx.over)
		<-back
		return false, cyborg.Errorf(cyborg.ErrHardware, "it smoked")
	}
	h.activities.RestoreAppeared(ctx, time.Hour)
	require.Empty(t, h.reports())
	require.Equal(t, cyborg.BackendOK, h.backends()[backend])
	h.activities.RestoreAppeared(t.Context(), time.Hour)
	require.Equal(t, 1, h.fate.count("partition"), "it is tried once")

	close(back)
	require.Eventually(t, func() bool { return h.reports() == "whole" }, 5*time.Minute, time.Millisecond)
	require.Nil(t, h.wanted())
}

// TestAgentStopsWhileItRestores: the end of its process is no reason to give up a layout.
func TestAgentStopsWhileItRestores(t *testing.T) {
	t.Parallel()
	h := divided(t, 2)
	h.appears()
	ctx, stop := context.WithCancel(t.Context())
	h.division.meanwhile = func(ctx context.Context, _ drivers.PartitionRequest) (bool, error) {
		stop()
		return false, ctx.Err()
	}
	h.activities.RestoreAppeared(ctx, time.Hour)
	require.Empty(t, h.reports())
	h.division.meanwhile = nil
	h.begins(&fate{dieAt: -1})
	require.Equal(t, "vf=2", h.reports())
}
